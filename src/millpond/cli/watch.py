"""`millpond watch`: the events of job sets, from any id on and as they come."""

from __future__ import annotations

import sys
from collections import Counter, deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import typer

from millpond.cli.options import From, Headers, Jobs, Json, Kinds, PondLocation, event_filters, existing_pond
from millpond.cli.terminal import console
from millpond.cli.verbs import verb
from millpond.clock import SystemClock
from millpond.errors import Invalid
from millpond.events.selection import named_streams
from millpond.json_forms import FormError, parse_object
from millpond.kernel.cache import Cache
from millpond.sizes import human_count

if TYPE_CHECKING:
    from rich.console import RenderableType

    from millpond.events.event import Event
    from millpond.events.many_watch import StreamEvent
    from millpond.events.names import StreamName

__all__ = ("Batches", "Story", "details_of", "line_of", "print_event", "reason_of", "watch")

DONE_KINDS = frozenset(("succeeded", "failed", "cancelled", "preempted"))
"""The kinds after which nothing more is expected of a job."""
JOBS_MAX = 100_000
"""So many jobs are counted by their state; those that were done first are forgotten beyond."""
_QUEUED, _RETRYABLE = "queued", "retryable"
_LAST_EVENTS = 12
_REFRESH_SECONDS = 0.25


class Batches(Protocol):
    """A watch of job sets, of a folder or of a node."""

    @property
    def caught_up(self) -> bool: ...
    def next_batch(self, due: float | None) -> list[StreamEvent]: ...
    def close(self) -> None: ...


@verb(
    "watch",
    "millpond watch etl nightly",
    "millpond watch etl 'nightly-*' hourly",
    "millpond watch etl nightly --exit-when-done --raw",
    "millpond watch etl nightly --from newest --kind failed --header team=ops",
    "millpond watch etl nightly --pond http://localhost:7433 --json",
)
def watch(
    queue: Annotated[str, typer.Argument(metavar="QUEUE", help="The queue.")],
    job_sets: Annotated[
        list[str], typer.Argument(metavar="JOBSET...", help="The job sets; `*` and `?` stand for those that are there.")
    ],
    start: From = "",
    kind: Kinds = None,
    job: Jobs = None,
    header: Headers = None,
    raw: Annotated[bool, typer.Option("--raw", help="Print the id, kind and payload of each event.")] = False,
    exit_when_done: Annotated[
        bool, typer.Option("--exit-when-done", help="End when every job has succeeded, failed or was cancelled.")
    ] = False,
    pond: PondLocation = "pond",
    json: Json = False,
) -> None:
    """Show what happens in job sets: jobs by state and the last events, as they come. Interrupt to end."""
    filters = event_filters(kind, job, header)
    if kind and exit_when_done:
        raise Invalid(
            "events of some kinds do not say that jobs are done", kind="event_filter", hint="leave out --kind, or "
            "--exit-when-done",
        )  # fmt: skip
    with existing_pond(pond) as opened:
        streams = named_streams(opened.events, queue, job_sets)
        for stream in streams:
            if opened.events.index(*stream) is None:
                console.tell(f"there is no job set {stream.job_set} in the queue {queue} yet; waiting for it")
        with opened.events.watch_many(dict.fromkeys(streams, start), filters=filters) as watched:
            batches = _batches(watched, SystemClock(), exit_when_done=exit_when_done)
            several = len(streams) > 1
            if json or raw or not sys.stdout.isatty():
                _print(batches, raw=raw, json=json, several=several)
            else:
                _show(batches, f"{queue} {streams[0].job_set if not several else f'{len(streams)} job sets'}", several)


class Story:
    """Jobs by state, and the last events, of all that was read so far."""

    def __init__(self) -> None:
        self.events = 0
        self.last: deque[StreamEvent] = deque(maxlen=_LAST_EVENTS)
        self._jobs: Cache[tuple[StreamName, str], tuple[str, int]] = Cache(JOBS_MAX)
        self._counts: Counter[str] = Counter()

    def add(self, stream_event: StreamEvent) -> None:
        """Go on with an event. Its header `job_id` names the job; the kind is the job's state from now on.

        A job that is done stays so whatever comes late with an earlier time. A failure that is to be tried again ends
        nothing: the job is queued.
        """
        stream, event = stream_event
        self.events += 1
        self.last.append(stream_event)
        if "job_id" not in event.headers:
            return
        job = (stream, event.headers["job_id"])
        state = _QUEUED if event.kind == "failed" and event.headers.get(_RETRYABLE) == "true" else event.kind
        before, at_ms = self._jobs.get(job) or (None, 0)
        if before in DONE_KINDS and state not in DONE_KINDS and event.time_ms < at_ms:
            return
        if before is not None:
            self._counts[before] -= 1
        self._jobs.put(job, (state, event.time_ms))
        self._counts[state] += 1

    @property
    def counts(self) -> dict[str, int]:
        """The number of jobs in each state."""
        return {kind: count for kind, count in self._counts.items() if count}

    @property
    def done(self) -> bool:
        """True when there are jobs, and all of them are done; without jobs, when the last event says so."""
        kinds = set(self.counts) or {event.event.kind for event in list(self.last)[-1:]}
        return bool(kinds) and kinds <= DONE_KINDS


def _batches(watched: Batches, clock: Any, *, exit_when_done: bool) -> Iterator[tuple[Story, list[StreamEvent]]]:
    """The story after each batch of events; also when there was none for a moment."""
    story = Story()
    while True:
        events = watched.next_batch(clock.monotonic() + _REFRESH_SECONDS)
        for event in events:
            story.add(event)
        yield story, events
        if exit_when_done and watched.caught_up and not events and story.done:
            return


def _print(
    batches: Iterator[tuple[Story, list[StreamEvent]]], *, raw: bool, json: bool, several: bool
) -> None:  # fmt: skip
    for _, events in batches:
        for event in events:
            print_event(event, raw=raw, json=json, several=several)
        if events:
            sys.stdout.flush()


def print_event(stream_event: StreamEvent, *, raw: bool, json: bool, several: bool = False) -> None:
    """Print an event as one line."""
    from millpond.events.ndjson import shown_event

    stream, event = stream_event
    if json:
        console.print_json(shown_event(event) | ({"job_set": stream.job_set} if several else {}))
        return
    payload = event.payload.decode(errors="backslashreplace")
    line = f"{event.id} {event.kind} {payload}" if raw else line_of(event)
    name = f"{stream.job_set}: " if several else ""
    console.say(f"{name}{line}".replace("\n", "\\n"))  # an event is one line, and forges no other


def _show(batches: Iterator[tuple[Story, list[StreamEvent]]], title: str, several: bool) -> None:
    from rich.live import Live

    with Live(console=console.console(), refresh_per_second=4, transient=False) as live:
        for story, _ in batches:
            live.update(_screen(story, title, several=several))


def _screen(story: Story, title: str, *, several: bool = False) -> RenderableType:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    def text(written: str, style: str = "") -> Text:
        return Text(console.neutral(written), style)

    counts = text("  ".join(f"{kind}: {count:,}" for kind, count in sorted(story.counts.items())) or "no jobs yet")
    table = Table(box=None, pad_edge=False)
    for column in ("time", *(["job set"] if several else []), "event", "job"):
        table.add_column(column, overflow="ellipsis", no_wrap=True)
    table.add_column()  # the one that is narrowed first
    for stream, event in story.last:
        name = [stream.job_set] if several else []
        details = text(details_of(event))
        details.no_wrap, details.overflow = event.kind not in ENDED_BADLY, "ellipsis"  # a reason is not cut off
        cells = map(text, (_time_of(event), *name, event.kind, event.headers.get("job_id", "")))
        table.add_row(*cells, details)
    return Group(text(f"{title}: {console.human_count(story.events, 'event')}", "bold"), counts, table)


ENDED_BADLY = frozenset(("failed", "preempted", "cancelled", "lease_returned", "lease_expired", "unable_to_schedule"))
"""The kinds of events that may tell a reason."""
_REASONS = ("error", "reason")
_TEXTS = (*_REASONS, "message")
_JOB = "job_id"
_PAYLOAD_CHARACTERS = 120
"""The beginning of a payload that a line shows; `--raw` shows it whole."""


def line_of(event: Event) -> str:
    """One event in words, with the beginning of its payload, unless that told the reason."""
    facts = (_time_of(event), event.kind or "event", event.headers.get(_JOB, ""), details_of(event))
    return " ".join(filter(None, (*facts, "" if reason_of(event) else _short_payload(event.payload))))


def _short_payload(payload: bytes) -> str:
    """The beginning of a payload that is text; of another its size."""
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        return f"({human_count(len(payload), 'byte')})"
    return text if len(text) <= _PAYLOAD_CHARACTERS else f"{text[:_PAYLOAD_CHARACTERS]}…"


def _time_of(event: Event) -> str:
    """The time of an event, by the second."""
    try:
        return event.time.strftime("%Y-%m-%d %H:%M:%S")
    except Invalid:
        return f"{event.time_ms} ms"


def details_of(event: Event) -> str:
    """The reason of a failure, then the other headers."""
    names = sorted(event.headers, key=lambda name: name not in _REASONS) if event.kind in ENDED_BADLY else event.headers
    facts = {name: event.headers[name] for name in names if name != _JOB}
    reason = "" if any(name in facts for name in _REASONS) else reason_of(event)
    return " ".join(f"{name}={text}" for name, text in (({"reason": reason} if reason else {}) | facts).items())


def reason_of(event: Event) -> str:
    """The reason that an event of a job which did not succeed has in its payload: in JSON, or as Armada's message.

    >>> from millpond.events.event import Event
    >>> reason_of(Event(1, 0, b'{"reason": "no disk", "node": 7}', "failed", {}))
    'no disk'
    """
    if event.kind not in ENDED_BADLY or not event.payload:
        return ""
    if not event.payload.startswith(b"{"):
        return _reason_of_message(event)
    try:
        payload = parse_object(event.payload)
    except FormError:
        return ""
    texts = (payload.get(name) for name in _TEXTS)
    return ": ".join(text for text in texts if isinstance(text, str) and text)


def _reason_of_message(event: Event) -> str:
    """The reason in the fields of Armada's message for the kind; empty for a payload that is none."""
    from google.protobuf.message import DecodeError

    from millpond.server.armada.wire import armada_pb2 as pb

    inner: Any = getattr(pb.EventMessage(), event.kind)
    try:
        inner.MergeFromString(event.payload)
    except DecodeError:
        return ""
    return str(getattr(inner, "reason", "")) or "; ".join(map(_ended, getattr(inner, "container_statuses", ())))


def _ended(container: Any) -> str:
    code = f"{container.name or 'container'} ended with {container.exitCode}"
    return ": ".join(filter(None, (code, container.reason, container.message)))
