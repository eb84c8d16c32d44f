"""Commits, entries and times as commands print them."""

from __future__ import annotations

import getpass
import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from millpond.versions.graph.commits import Commit
    from millpond.versions.objects.entries import Entry

__all__ = (
    "ID_DIGITS", "commit_object", "committed", "committer_or_user", "entry_object", "headline", "iso", "short", "when",
)  # fmt: skip

ID_DIGITS = 12
_ID = re.compile(r"\b[0-9a-f]{64}\b")


def short(commit_id: str) -> str:
    """The first digits of a commit's id, enough to name it."""
    return commit_id[:ID_DIGITS]


def iso(seconds: int) -> str | None:
    """A time in ISO 8601; None for one that no calendar has."""
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    except (ValueError, OverflowError, OSError):
        return None


def when(seconds: int) -> str:
    """A time for a table."""
    text = iso(seconds)
    return "?" if text is None else f"{text[:10]} {text[11:16]}Z"


def committed(commit: Commit) -> str:
    """The time of a commit for a table: with the milliseconds that a ref by time counts, where it tells them."""
    return when(commit.created) if commit.moment_ms is None else _committed(commit) or "?"


def _committed(commit: Commit) -> str | None:
    text = iso(commit.created)
    if text is None or commit.moment_ms is None:
        return text
    return f"{text[:-1]}.{commit.moment_ms % 1000:03}Z"


def headline(message: str) -> str:
    """The first line of a message, ids of commits in it cut short.

    >>> headline("Revert " + 64 * "a" + "\\n\\nbecause")
    'Revert aaaaaaaaaaaa'
    """
    line = next((line for line in message.splitlines() if line.strip()), "")
    return _ID.sub(lambda match: short(match[0]), line)


def commit_object(commit: Commit) -> dict[str, Any]:
    """A commit for `--json`."""
    return {
        "id": commit.id, "parents": list(commit.parents), "message": commit.message, "committer": commit.committer,
        "created": _committed(commit), "metadata": commit.metadata, "tree": commit.tree,
        "generation": commit.generation,
    }  # fmt: skip


def entry_object(entry: Entry) -> dict[str, Any]:
    """An entry for `--json`."""
    return {
        "path": entry.path, "size": entry.size, "modified": iso(entry.mtime), "checksum": entry.checksum,
        "content_type": entry.content_type, "metadata": dict(entry.metadata), "address": entry.address,
    }  # fmt: skip


def committer_or_user(committer: str | None) -> str:
    """The committer that was given, else the name of the user."""
    if committer is not None:
        return committer
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a user without a name
        return ""
