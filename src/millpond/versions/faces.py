"""Repositories and refs as a notebook shows them, those of a folder and those of a node alike."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from millpond.error_values import html_rows
from millpond.errors import MillpondError

if TYPE_CHECKING:
    from millpond.versions.protocols import ReferenceLike, RepositoryLike

__all__ = ("ReferenceFace", "RepositoryFace")

_COMMITS_SHOWN = 10


class ReferenceFace:
    """A ref that a notebook shows with its newest commits."""

    def _repr_html_(self: ReferenceLike) -> str | None:
        with suppress(MillpondError):
            return html_rows(f"{self!r}: the newest commits", list(self.log(limit=_COMMITS_SHOWN)))
        return None  # it is not there, or no node answers: a notebook shows the text


class RepositoryFace:
    """A repository that a notebook shows with its branches."""

    def _repr_html_(self: RepositoryLike) -> str | None:
        with suppress(MillpondError):
            page = self.branches()
            more = ", and there are more" if page.has_more else ""
            return html_rows(f"{self!r}: its branches{more}", page.items)
        return None
