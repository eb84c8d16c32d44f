"""The story of a step: events in the stream of its run (queue = tenant, job set = run), beside those of the server.

| kind | when |
|---|---|
| `running` | an attempt began, and is told with its end if it is short; header `attempt` |
| `failed` | an attempt failed; `retryable` tells if there may be another. Of one that is lost the next one says so |
| `succeeded` | the step is done: header for each fact of its result |

The job is the step's key, which is the load's id, so `millpond watch TENANT RUN` shows one job for each step.

Invariant: the events of a step come in the order of its attempts, `succeeded` once and last. They are appended with the
step's key as source, and positions that grow with the attempts; a late attempt's events are behind the last position.
So each run of lineage has one end: that of a lost attempt is sent by the next one, where it began and has none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from millpond.clock import SystemClock
from millpond.events.event import NewEvent
from millpond.events.names import is_unicode
from millpond.workflows.engine.pipeline_starts import NAME_OF_SECRET

if TYPE_CHECKING:
    from millpond.client.pond import RemotePond
    from millpond.errors import MillpondError
    from millpond.pipelines.step_lineage import StepLineage
    from millpond.pond import Pond

__all__ = ("StepReports",)

FACTS_MAX, FACT_CHARACTERS_MAX, REASON_CHARACTERS_MAX = 50, 300, 2_000
"""The facts of a result in an event, and the characters of each, and of a reason: the headers of an event are small."""
_LAST = 1 << 40
"""The position of the end, behind those of all attempts."""
_LOST = {"error": "attempt_lost", "reason": "its worker is gone", "retryable": "true"}


@dataclass(slots=True)
class StepReports:
    """The events of one attempt at a step, whose facts are `masked`. It `began` at an instant of `monotonic`."""

    queue: str
    job_set: str
    key: str
    about: Mapping[str, str]
    attempt: int
    began: float
    masked: Callable[[str], str] = str
    lineage: StepLineage | None = None
    _runs: bool = False
    _late: bool = False

    def running(self, pond: Pond | RemotePond) -> None:
        """Report that the attempt has begun; without it, its end reports that, too."""
        self._append(pond, [])

    def failed(self, pond: Pond | RemotePond, error: MillpondError, *, retryable: bool) -> None:
        """Report that the attempt failed."""
        facts = {"error": error.kind, "reason": error.message, "retryable": str(retryable).lower()}
        self._append(pond, [("failed", 2 * self.attempt + 2, facts)])
        self._send(pond, "FAIL", error=self.masked(str(error)))

    def succeeded(self, pond: Pond | RemotePond, result: Mapping[str, object]) -> None:
        """Report that the step is done, with those facts of its result that are small."""
        facts = dict(islice(_facts(result), FACTS_MAX))
        self._append(pond, [("succeeded", _LAST, facts)])
        self._send(pond, "COMPLETE", result)

    def _send(self, pond: Any, kind: str, result: Mapping[str, Any] | None = None, error: str = "") -> None:
        if self.lineage is not None:
            name, is_late = f"{self.key}.{self.attempt}", partial(self._is_late, pond, begins=kind == "START")
            self.lineage.send(pond, name, self.job_set, kind, result, error, unless=is_late)

    def _is_late(self, pond: Pond | RemotePond, *, begins: bool) -> bool:
        """True when a later attempt has begun, or this one begins when the step is done already."""
        for event in pond.events.read(self.queue, self.job_set, filters={"job": self.key}):
            number = int(event.headers.get("attempt", 0))
            is_done = begins and event.kind == "succeeded" and number != self.attempt
            self._late = self._late or number > self.attempt or is_done
        return self._late

    def _append(self, pond: Pond | RemotePond, ends: Sequence[tuple[str, int, Mapping[str, str]]]) -> None:
        """Append events by their kinds, positions and facts, behind the beginning of the attempt."""
        now = began_ms = pond.clock.now_ms()
        events, positions = list[NewEvent](), list[int]()

        def add(kind: str, position: int, facts: Mapping[str, str], attempt: int = self.attempt) -> None:
            headers = {"job_id": self.key, "attempt": str(attempt), **self.about}
            masked = {name: self.masked(fact)[:REASON_CHARACTERS_MAX] for name, fact in facts.items()}
            events.append(NewEvent(began_ms if kind == "running" else now, b"", kind, masked | headers))
            positions.append(position)

        if begins := not self._runs:
            began_ms -= round(1000 * (SystemClock().monotonic() - self.began))
            for number in range(self.attempt):  # those that have ended are there
                add("running", 2 * number + 1, {}, number)
                add("failed", 2 * number + 2, _LOST, number)
            add("running", 2 * self.attempt + 1, {})
        for kind, position, facts in ends:
            add(kind, position, facts)
        done = pond.events.append(self.queue, self.job_set, events, source=self.key, positions=positions)
        if begins:
            self._runs = True
            lost, has_begun = divmod(len(events) - done.count, 2)
            if self.lineage is not None and has_begun and lost < self.attempt:
                self.lineage.send(pond, f"{self.key}.{lost}", self.job_set, "ABORT")
            self._send(pond, "START")


def _facts(result: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """The facts of a result that are small, and by their names no secrets."""
    for name, fact in result.items():
        if isinstance(fact, str | int | float) and not NAME_OF_SECRET.search(name):
            text = str(fact)
            if len(text) <= FACT_CHARACTERS_MAX and len(name) <= FACT_CHARACTERS_MAX and is_unicode(name + text):
                yield name, text
