"""The lineage of a pond, where the setting `lineage.target` names a target; and maps as events describe them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from millpond.errors import MillpondError
from millpond.process_settings import is_stated

if TYPE_CHECKING:
    from millpond.lineage.datasets import Enriching
    from millpond.lineage.targets import Lineage

__all__ = ("ENRICHING", "MASK", "PARENT", "fields_of", "lineage_of", "wait_sent")

PARENT: ContextVar[tuple[str, str] | None] = ContextVar("parent", default=None)
"""The key and the job of the run that work of this context is a part of."""
ENRICHING: ContextVar[Enriching | None] = ContextVar("enriching", default=None)
"""The files and maps of the enrichment of this context."""
MASK: ContextVar[Callable[[Any], Any]] = ContextVar("mask", default=lambda event: event)
"""Takes the secrets out of the events of this context."""


def lineage_of(pond: Any) -> Lineage | None:
    """The lineage of the work on an open pond; None without a target.

    Raises: `Invalid` for a setting that is not understood.
    """
    if not hasattr(pond, "settings") and not is_stated("lineage", "target"):
        return None
    from millpond.settings import load_settings

    settings = (pond.settings if hasattr(pond, "settings") else load_settings()).lineage
    if not settings.target:
        return None
    from millpond.lineage.targets import Lineage

    where = (pond.location.address if hasattr(pond, "location") else pond.nodes.where).partition("://")[2]
    return Lineage(settings.target, f"millpond://{where}", pond.clock)


def wait_sent() -> None:
    """Wait for the events that this process still sends, a short while: before it ends without its usual end."""
    if (targets := sys.modules.get(f"{__package__}.targets")) is not None:
        targets.wait_sent()


def fields_of(open_map: Callable[[], Any]) -> dict[str, str]:
    """The types of the columns of a map that is opened; none when it is not there."""
    from millpond.maps.model.columns import presented_schema

    with suppress(MillpondError):
        return {field.name: str(field.type) for field in presented_schema(open_map().definition)}
    return {}
