"""Limits of one command, one value and one run. Work beyond a limit ends in an error that names the limit."""

from __future__ import annotations

from typing import Final

__all__ = (
    "ROUNDS_MAX",
    "THREADS_ACTIVE_MAX",
    "THREADS_MAX",
    "THREADS_LISTED_MAX",
    "VALUE_BYTES_MAX",
    "FAILURE_CHARACTERS_MAX",
    "CHILD_RUNS_MAX",
    "BULK_RUNS_MAX",
    "RUN_DEPTH_MAX",
    "CORRELATION_KEY_CHARACTERS_MAX",
    "CORRELATIONS_MAX",
    "JSON_DEPTH_MAX",
    "DELAY_SECONDS_MAX",
    "INSTANT_MS_MAX",
)

ROUNDS_MAX: Final = 512
"""Rounds in which one command advances a run; more mean a loop without a wait."""

THREADS_ACTIVE_MAX: Final = 1_000
"""Threads of one run that move at once; more children wait in its queue. Handlers begin at once."""

THREADS_MAX: Final = 10_000
"""Threads of one run in all, those included that have ended."""

THREADS_LISTED_MAX: Final = 2_000
"""Threads in the row of a run; beyond it, completed ones are archived until half as many are left."""

VALUE_BYTES_MAX: Final = 1_047_000
"""Serialized bytes of one value: an input, an output, a variable or the content of an event."""

FAILURE_CHARACTERS_MAX: Final = 10_000
"""Characters of a failure's message that the handler of it is given."""

CHILD_RUNS_MAX: Final = 100
"""Child runs that one command starts."""

BULK_RUNS_MAX: Final = 100
"""Runs that one step of a bulk job deletes, or one of a migration moves."""

RUN_DEPTH_MAX: Final = 20
"""Runs from a root to its youngest descendant; their ids nest, and messages nest no deeper than 100."""

CORRELATION_KEY_CHARACTERS_MAX: Final = 200
"""Characters of a correlation key."""

CORRELATIONS_MAX: Final = 1_000
"""External events that one correlated event makes; nodes that come later wait for another one."""

JSON_DEPTH_MAX: Final = 100
"""Levels of nested objects and lists in one JSON value, and of nested expressions in one assignment."""

DELAY_SECONDS_MAX: Final = 3_155_760_000
"""Seconds until an action of a user task: a hundred years."""

INSTANT_MS_MAX: Final = 253_402_300_799_999
"""The end of the year 9999: a timer that is set for a later instant is set for this one."""
