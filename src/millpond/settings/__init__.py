"""Settings of nodes and of who talks to them: frozen values in groups, each with its unit, default and trade.

groups.py    the groups, and Settings, which holds them: settings.server.port
types.py     text as people write it, taken to values: durations, sizes, names, tokens
load.py      from a file, the environment and arguments; shown in words
former.py    the names that settings had before
"""

from millpond.settings.groups import SETTINGS, Settings
from millpond.settings.load import (
    CONFIG,
    Explained,
    all_in_words,
    explain,
    in_words,
    load_settings,
    unknown_in_environment,
)
from millpond.settings.types import TokenSetting, duration_in_words

__all__ = (
    "CONFIG", "SETTINGS", "Explained", "Settings", "TokenSetting", "all_in_words", "duration_in_words", "explain",
    "in_words", "load_settings", "unknown_in_environment",
)  # fmt: skip
