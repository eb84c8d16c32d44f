"""Lines of text as events: of a file, or as they come out of a pipe.

Without a source each line is an event of the moment in which it is read, appended a moment later with its neighbours.
With one, the position of an event is the number of its line: what comes again adds nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, BinaryIO

from millpond.errors import Invalid
from millpond.events.event import EVENT_BYTES_MAX, NO_HEADERS, Appended, NewEvent
from millpond.events.importing import Imported

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from millpond.events.interface import EventsLike

__all__ = ("append_lines",)

BLOCK_LINES, BLOCK_BYTES = 1_000, 4 << 20


def append_lines(
    streams: EventsLike, queue: str, job_set: str, lines: BinaryIO, *, now_ms: Callable[[], int], kind: str = "",
    headers: Mapping[str, str] = NO_HEADERS, source: str = "",
) -> Imported:  # fmt: skip
    """Append each line that is not blank as an event, without its end.

    Raises: `Invalid`, kind `event_line`, for a line that is too long; as `Events.append`. What came before is appended.
    """
    events = ((number, NewEvent(now_ms(), line, kind, headers)) for number, line in _numbered(lines))
    done = Imported()
    if not source:
        with streams.appender() as appender:
            for _, event in events:
                appender.append(queue, job_set, event)
                done += Appended(1, 0, 0, 0)
        return done
    for block in _blocks(events):
        numbers, some = zip(*block, strict=True)
        done += streams.append(queue, job_set, some, source=source, positions=numbers)
    return done


def _numbered(lines: BinaryIO) -> Iterator[tuple[int, bytes]]:
    number = 0
    while line := lines.readline(EVENT_BYTES_MAX + 2):
        number += 1
        line = line.removesuffix(b"\n").removesuffix(b"\r")
        if len(line) > EVENT_BYTES_MAX:
            raise Invalid(
                "the line is too long for an event", kind="event_line", line=number, bytes_max=EVENT_BYTES_MAX,
                hint="is it a file of lines? one of Parquet comes with: millpond events import",
            )  # fmt: skip
        if line.strip():
            yield number, line


def _blocks(events: Iterator[tuple[int, NewEvent]]) -> Iterator[list[tuple[int, NewEvent]]]:
    block: list[tuple[int, NewEvent]] = []
    size = 0
    for event in events:
        block.append(event)
        size += len(event[1].payload)
        if len(block) >= BLOCK_LINES or size >= BLOCK_BYTES:
            yield block
            block, size = [], 0
    if block:
        yield block
