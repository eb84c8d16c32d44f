"""The ages at which the events of a folder are compressed and dropped, as the settings of a process say."""

from __future__ import annotations

import os
from pathlib import Path

from millpond.events.maintenance import MaintenanceRules

__all__ = ("event_rules",)

_OWN_BYTES_PER_SECOND = 1 << 20
"""The compressed bytes of own events that a process writes in a second at most, beside its work."""
_SETTINGS = ("MILLPOND_CONFIG", "MILLPOND_EVENTS_COMPRESS_AFTER", "MILLPOND_EVENTS_RETENTION")


def event_rules() -> MaintenanceRules:
    """The rules of this process.

    Raises: `Invalid` for a setting that is not understood.
    """
    if not any(name in os.environ for name in _SETTINGS) and not Path("millpond.toml").exists():
        # To import the settings takes more of a processor than all reports of a load.
        return MaintenanceRules(bytes_per_second=_OWN_BYTES_PER_SECOND)
    from millpond.settings import load_settings

    settings = load_settings()
    return MaintenanceRules(
        compress_after_ms=settings.events.compress_after, retention_ms=settings.events.retention,
        bytes_per_second=_OWN_BYTES_PER_SECOND,
    )  # fmt: skip
