"""The teller: a thread that appends the stories that wait in a partition to the streams of the pond.

Invariants:
* the processor waits for nobody: a story that cannot be appended waits in its row, and is tried again;
* many runs are one append, at most four times a second while the work is little;
* a row is deleted after its events are durable; what is appended again is known by its position, and left out;
* at most `STORIES_WAITING_MAX` wait for streams that cannot be reached: the oldest beyond it are dropped, which is
  counted, said in the log, and told to their runs.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Final

from millpond.clock import Clock
from millpond.errors import Invalid, MillpondError
from millpond.events.event import EventBatch, NewEvent
from millpond.events.names import StreamName
from millpond.kernel.space import Space
from millpond.kernel.steps import step
from millpond.kernel.worker import WorkerThread
from millpond.workflows.stories import (
    CommandStory,
    StoryPlace,
    delete_stories,
    drop_stories,
    oldest_stories,
    stories_after,
    story_places,
)

__all__ = ("STORIES_WAITING_MAX", "Tally", "Teller")

STORIES_PER_APPEND = 1_000
STORIES_WAITING_MAX = 100_000
"""The commands whose events wait for streams that cannot be reached: some 30 MB."""
_DROPPED_AT_ONCE = 10
"""The part of the limit that is dropped in one write, so that one row more is no write more."""
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


class Tally:
    """A number that several threads add to."""

    def __init__(self) -> None:
        self.number = 0
        self._lock = threading.Lock()

    def add(self, more: int) -> None:
        """Count more."""
        with self._lock:
            self.number += more


class Teller:
    """Appends the stories of one partition."""

    def __init__(
        self, space: Space, clock: Clock, append: Callable[[Sequence[EventBatch]], object],
        ended: Callable[[StoryPlace, bool], object] | None = None, dropped: Callable[[int], object] = lambda _: None,
    ) -> None:  # fmt: skip
        """`ended` deletes the stories up to a place, True for those that are dropped; `dropped` gets their number."""
        self._space, self._clock, self._append = space, clock, append
        self._ended, self._dropped = ended or self._delete, dropped
        self._after: StoryPlace = (0, 0)
        self._seen, self._queued, self._lost = (0, 0), 0, 0
        self._worker = WorkerThread("stories of runs", self._tell, clock, retry_seconds=RETRY_SECONDS)

    def start(self) -> None:
        """Begin to tell."""
        self._worker.start()

    def stop(self) -> None:
        """Tell what waits, if that is possible now, and end. The space is its owner's to close."""
        if self._worker.started:
            self._worker.stop()
            try:
                self._tell()
            except Exception as error:
                is_ours = isinstance(error, MillpondError)
                _LOG.warning("stories of runs stay for the next owner: %s", error, exc_info=None if is_ours else error)

    def turn(self) -> int:
        """Tell one page of the stories that wait; how many there were.

        Raises: as `StreamStore.append`; what was not told is told by another turn.
        """
        with self._space.read() as tx:
            stories = stories_after(tx, self._after, STORIES_PER_APPEND)
        if stories:
            self._append(_batches_of(stories))
            step("workflows.told")
            self._ended(stories[-1].place, False)
            self._after = stories[-1].place
            self._note_appended(len(stories))
        return len(stories)

    def drop(self) -> None:
        """Drop the oldest stories beyond the limit. It reads those that came since it was called before."""
        with self._space.read() as tx:
            for place in story_places(tx, max(self._seen, self._after)):
                self._seen, self._queued = place, self._queued + 1
        while self._queued > STORIES_WAITING_MAX:
            with self._space.read() as tx:
                place, number, ms = oldest_stories(tx, self._after, max(1, STORIES_WAITING_MAX // _DROPPED_AT_ONCE))
            if not number:
                return
            if not self._lost:
                _LOG.error("more stories of runs wait than may: the oldest are dropped. waiting_max=%s oldest_ms=%s",
                           STORIES_WAITING_MAX, ms)  # fmt: skip
            self._ended(place, True)
            self._dropped(number)
            self._lost, self._queued = self._lost + number, self._queued - number

    def _note_appended(self, count: int) -> None:
        self._queued = 0 if self._after >= self._seen else max(0, self._queued - count)
        if self._lost:
            _LOG.error("stories of runs are told again, but for the oldest that waited. dropped=%s", self._lost)
            self._lost = 0

    def _tell(self) -> float:
        try:
            while self.turn() == STORIES_PER_APPEND:
                pass
        except Exception:
            self._make_room()
            raise
        return self._clock.monotonic() + PAUSE_SECONDS

    def _make_room(self) -> None:
        try:
            self.drop()
        except Exception as error:
            is_ours = isinstance(error, MillpondError)
            _LOG.warning("stories of runs cannot be dropped: %s", error, exc_info=None if is_ours else error)

    def _delete(self, place: StoryPlace, dropped: bool) -> None:
        self._space.write(lambda tx: (drop_stories if dropped else delete_stories)(tx, place))
