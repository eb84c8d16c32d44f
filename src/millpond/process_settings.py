"""The settings that a process looks up for itself, wherever its pond is, and only where they may be stated."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from millpond.events.maintenance import MaintenanceRules

__all__ = ("event_rules", "is_stated", "tracing_target")

_CONFIG = "MILLPOND_CONFIG"
_OWN_BYTES_PER_SECOND = 1 << 20
"""The compressed bytes of own events that a process writes in a second at most, beside its work."""


def is_stated(group: str, name: str) -> bool:
    """True when the environment, or the file of settings, may state a setting of a group: to import all settings
    takes longer than most work.

    >>> is_stated("lineage", "target")
    False
    """
    if f"MILLPOND_{group}_{name}".upper() in os.environ:
        return True
    try:
        return group in Path(os.environ.get(_CONFIG, "millpond.toml")).read_text()
    except (OSError, UnicodeError):
        return _CONFIG in os.environ  # whoever reads the settings says what is wrong with it


def event_rules() -> MaintenanceRules:
    """The ages at which the events of a folder are compressed and dropped.

    Raises: `Invalid` for a setting that is not understood.
    """
    from millpond.events.maintenance import MaintenanceRules

    if not is_stated("events", "retention"):
        return MaintenanceRules(bytes_per_second=_OWN_BYTES_PER_SECOND)
    from millpond.settings import load_settings

    return MaintenanceRules(retention_ms=load_settings().events.retention, bytes_per_second=_OWN_BYTES_PER_SECOND)


def tracing_target() -> str:
    """The target of spans; empty without one.

    Raises: `Invalid` for a setting that is not understood.
    """
    if not is_stated("tracing", "target"):
        return ""
    from millpond.settings import load_settings

    return load_settings().tracing.target
