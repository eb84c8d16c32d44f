"""Stories that wait: a row for each command that told something, until its events are in the streams.

    STORY: (position, number) ─▶ JSON [tenant, milliseconds, [[run, kind, headers], …]]

Invariant: a row is written with the rows of its command, and deleted after its events are durable.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple, cast

import msgspec

from millpond.errors import Corrupt
from millpond.kernel.scans import delete_rows
from millpond.workflows.keyspaces import STORY
from millpond.workflows.stories.facts import Fact

if TYPE_CHECKING:
    from collections.abc import Sequence

    from millpond.kernel.space import ReadTransaction, Transaction

__all__ = ("StoryPlace", "CommandStory", "delete_stories", "note_facts", "stories_after")

StoryPlace = tuple[int, int]
_ENCODER: Final = msgspec.json.Encoder()
_DECODER: Final = msgspec.json.Decoder(tuple[str, int, list[Fact]])


class CommandStory(NamedTuple):
    """The facts that one command told."""

    place: StoryPlace
    tenant: str
    ms: int
    facts: list[Fact]


def note_facts(tx: Transaction, tenant: str, facts: Sequence[Fact], now_ms: int, place: StoryPlace) -> None:
    """Note what a command told, in the write of its rows; `place` is that of the command."""
    tx.put(STORY.pack(*place), _ENCODER.encode((tenant, now_ms, facts)))


def stories_after(tx: ReadTransaction, after: StoryPlace, limit: int) -> list[CommandStory]:
    """The stories behind a place, at most `limit`.

    Raises:
        Corrupt: a row is damaged.
    """
    rows = tx.scan(STORY.range((after[0], after[1] + 1), None))
    try:
        return [
            CommandStory(cast("StoryPlace", STORY.unpack(key)), *_DECODER.decode(row))
            for key, row in islice(rows, limit)
        ]
    except msgspec.MsgspecError as error:
        raise Corrupt("the story of a run is damaged", kind="run_row_damaged", reason=str(error)) from error


def delete_stories(tx: Transaction, place: StoryPlace) -> None:
    """Delete the stories up to a place."""
    delete_rows(tx, list(tx.keys(STORY.range((), (place[0], place[1] + 1)))))
