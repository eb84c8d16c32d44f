"""Stories that wait: a row for each command that told something, until its events are in the streams.

    STORY: (position, number) ─▶ JSON [tenant, milliseconds, [[run, kind, headers], …]]

Invariants:
* a row is written with the rows of its command, and deleted after its events are durable, or dropped;
* rows that are dropped leave one for each tenant: it tells each of their runs how many events are missing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import Final, NamedTuple, cast

import msgspec

from millpond.errors import Corrupt
from millpond.kernel.keys import KeyRange
from millpond.kernel.scans import delete_rows
from millpond.kernel.space import ReadTransaction, Transaction
from millpond.workflows.keyspaces import STORY
from millpond.workflows.stories.facts import Fact

__all__ = (
    "DROPPED", "DROPPED_RUNS_MAX", "CommandStory", "StoryPosition", "delete_stories", "drop_stories", "note_facts",
    "stories_after", "story_sizes",
)  # fmt: skip

StoryPosition = tuple[int, int]
DROPPED: Final = "dropped"
"""The event of a run in place of others that were dropped; `events` in its headers is how many."""
DROPPED_RUNS_MAX = 1_000
"""The runs of a tenant that are told of dropped events: those whose events were dropped last."""
_ENCODER: Final = msgspec.json.Encoder()
_DECODER: Final = msgspec.json.Decoder(tuple[str, int, list[Fact]])


class CommandStory(NamedTuple):
    """The facts that one command told."""

    position: StoryPosition
    tenant: str
    ms: int
    facts: list[Fact]


def note_facts(tx: Transaction, tenant: str, facts: Sequence[Fact], now_ms: int, position: StoryPosition) -> None:
    """Note what a command told, in the write of its rows; `position` is that of the command."""
    tx.put(STORY.pack(*position), _ENCODER.encode((tenant, now_ms, facts)))


def stories_after(tx: ReadTransaction, after: StoryPosition, limit: int) -> list[CommandStory]:
    """The stories behind a place, at most `limit`.

    Raises:
        Corrupt: a row is damaged.
    """
    return list(islice(_stories(tx, after), limit))


def story_sizes(tx: ReadTransaction, after: StoryPosition) -> Iterator[tuple[StoryPosition, int]]:
    """The places of the stories behind a place, and 1 for each; 0 for one that tells of dropped ones.

    Raises:
        Corrupt: a row is damaged.
    """
    return ((story.position, int(any(fact.kind != DROPPED for fact in story.facts))) for story in _stories(tx, after))


def _behind(after: StoryPosition) -> KeyRange:
    return STORY.range((after[0], after[1] + 1), None)


def _stories(tx: ReadTransaction, after: StoryPosition) -> Iterator[CommandStory]:
    try:
        for key, row in tx.scan(_behind(after)):
            yield CommandStory(cast("StoryPosition", STORY.unpack(key)), *_DECODER.decode(row))
    except msgspec.MsgspecError as error:
        raise Corrupt("the story of a run is damaged", kind="run_row_damaged", reason=str(error)) from error


def delete_stories(tx: Transaction, position: StoryPosition) -> None:
    """Delete the stories up to a place."""
    delete_rows(tx, list(tx.keys(STORY.range((), (position[0], position[1] + 1)))))


def drop_stories(tx: Transaction, position: StoryPosition) -> None:
    """Drop the stories up to a place: what is left of them tells how many events their runs miss."""
    missing: dict[str, dict[str, int]] = {}
    retained: dict[str, tuple[bytes, int]] = {}
    keys = []
    for key, row in tx.scan(STORY.range((), (position[0], position[1] + 1))):
        keys.append(key)
        with suppress(msgspec.MsgspecError):  # a damaged row is no reason to keep what has no room
            tenant, ms, facts = _DECODER.decode(row)
            retained[tenant] = key, ms
            _count_missing(missing.setdefault(tenant, {}), facts)
    delete_rows(tx, keys)
    for tenant, (key, ms) in retained.items():
        runs = list(missing[tenant].items())[-DROPPED_RUNS_MAX:]
        tx.put(key, _ENCODER.encode((tenant, ms, [_dropped(run, count) for run, count in runs])))


def _count_missing(runs: dict[str, int], facts: Sequence[Fact]) -> None:
    """Count the events of each run; the run that comes last in the dictionary is that of the newest."""
    for run, kind, headers in facts:
        runs[run] = runs.pop(run, 0) + (int(headers["events"]) if kind == DROPPED else 1)


def _dropped(run: str, count: int) -> Fact:
    return Fact(run, DROPPED, {"job_id": run, "events": str(count)})
