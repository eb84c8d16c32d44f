"""The teller: a thread that appends the stories that wait in a partition to the streams of the pond.

Invariants:
* the processor waits for nobody: a story that cannot be appended waits in its row, and is tried again;
* many runs are one append, at most four times a second while the work is little;
* a row is deleted after its events are durable; what is appended again is known by its position, and left out.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Final

from millpond.errors import Invalid, MillpondError
from millpond.events.event import EventBatch, NewEvent
from millpond.events.names import StreamName
from millpond.kernel.steps import step
from millpond.workflows.stories import delete_stories, stories_after

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from millpond.clock import Clock
    from millpond.kernel.space import Space
    from millpond.workflows.stories import CommandStory, StoryPlace

__all__ = ("Teller",)

STORIES_PER_APPEND = 1_000
PAUSE_SECONDS = 0.25
RETRY_SECONDS = 1.0
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


class Teller:
    """Appends the stories of one partition. `appended` is called with the place up to which they are durable."""

    def __init__(
        self, space: Space, clock: Clock, append: Callable[[Sequence[EventBatch]], object],
        appended: Callable[[StoryPlace], object] | None = None,
    ) -> None:  # fmt: skip
        self._space, self._clock, self._append = space, clock, append
        self._appended = appended or self._delete
        self._after: StoryPlace = (0, 0)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="stories", daemon=True)

    def start(self) -> None:
        """Begin to tell."""
        self._thread.start()

    def stop(self) -> None:
        """Tell what waits, if that is possible now, and end. The space is its owner's to close."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()

    def turn(self) -> int:
        """Tell one page of the stories that wait; how many there were.

        Raises: as `StreamStore.append`; what was not told is told by another turn.
        """
        with self._space.read() as tx:
            stories = stories_after(tx, self._after, STORIES_PER_APPEND)
        if stories:
            self._append(_batches_of(stories))
            step("workflows.told")
            self._appended(stories[-1].place)
            self._after = stories[-1].place
        return len(stories)

    def _run(self) -> None:
        ending = False
        while not ending:
            ending = self._stop.is_set()
            pause = PAUSE_SECONDS
            try:
                while self.turn() == STORIES_PER_APPEND:
                    pass
            except Exception as error:
                known = isinstance(error, MillpondError)
                _LOG.warning("stories of runs wait: %s", error, exc_info=None if known else error)
                pause = RETRY_SECONDS
            self._clock.wait(self._stop, self._clock.monotonic() + pause)

    def _delete(self, place: StoryPlace) -> None:
        self._space.write(lambda tx: delete_stories(tx, place))
