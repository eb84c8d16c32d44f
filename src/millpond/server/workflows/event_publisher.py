"""The teller: an outbox that appends the stories of a partition to the streams of the pond.

Invariants:
* what is appended again is known by its position, and left out;
* stories that are dropped are told to their runs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final

from millpond.clock import Clock
from millpond.errors import Invalid
from millpond.events.event import EventBatch, NewEvent
from millpond.events.names import StreamName
from millpond.kernel.space import Space
from millpond.kernel.steps import step
from millpond.server.workflows.outbox import Outbox
from millpond.workflows.stories import (
    CommandStory,
    StoryPosition,
    delete_stories,
    drop_stories,
    stories_after,
    story_sizes,
)

__all__ = ("STORIES_WAITING_MAX", "teller_of")

STORIES_WAITING_MAX = 100_000
"""The commands whose events wait for streams that cannot be reached: some 30 MB."""
_SOURCE: Final = "workflows"
_LOG = logging.getLogger(__name__)


def _batches_of(stories: Sequence[CommandStory]) -> list[EventBatch]:
    """The events of some stories, by stream. A run whose path is too long for the name of a stream has none."""
    streams: dict[StreamName, tuple[list[NewEvent], list[int]]] = {}
    for (position, number), tenant, ms, facts in stories:
        for run, kind, headers in facts:
            events, positions = streams.setdefault(StreamName(tenant, run), ([], []))
            events.append(NewEvent(ms, b"", kind, headers))
            positions.append(position << 32 | number)
    return [
        EventBatch(stream, events, _SOURCE, positions)
        for stream, (events, positions) in streams.items() if _is_named(stream)
    ]  # fmt: skip


def _is_named(stream: StreamName) -> bool:
    try:
        stream.check()
    except Invalid:
        _LOG.warning("the run has no story, for its path is too long. run=%s…", stream.job_set[:60])
        return False
    return True


def teller_of(
    space: Space, clock: Clock, append: Callable[[Sequence[EventBatch]], object],
    ended: Callable[[StoryPosition, bool], object] | None = None, dropped: Callable[[int], object] = lambda _: None,
) -> Outbox[CommandStory]:  # fmt: skip
    """The outbox of a partition's stories; `ended`, see `Outbox`, None: its rows are this process' own."""

    def send(rows: Sequence[CommandStory]) -> None:
        append(_batches_of(rows))
        step("workflows.told")

    def delete(position: StoryPosition, dropped: bool) -> None:
        space.write(lambda tx: (drop_stories if dropped else delete_stories)(tx, position))

    return Outbox(
        "stories of runs", space, clock, send, page=stories_after, sizes=story_sizes, waiting_max=STORIES_WAITING_MAX,
        ended=ended or delete, dropped=dropped,
    )  # fmt: skip
