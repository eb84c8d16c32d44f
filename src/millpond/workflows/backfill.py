"""Backfills: a run of a pipeline for each partition of time, so many at a time.

    2026-01-01 … 2026-03-31, every day ─▶ partitions ─▶ a run each, whose id is made of pipeline and parameters
                                                         ├─ is there and has ended: nothing is done
                                                         ├─ is there and open: it is carried on
                                                         ├─ is there and stopped: it stays so, and is named
                                                         └─ is not there: it begins, when fewer than `parallel` are open

Invariants:
* the same backfill again begins no run twice: what it knows is which runs there are;
* a run that failed stays failed, and the others go on; only who asks for it gets another run for it, with a number.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from typing import Any, Final, Protocol

from millpond.errors import AlreadyExists, Invalid, NotFound
from millpond.json_forms import stable_json
from millpond.workflows.deferred import conversions, pipeline_starts, protocol

__all__ = (
    "EVERY", "PARTITIONS_MAX", "Backfill", "NodeRuns", "Runs", "check_parameter", "newest_run", "partitions",
    "run_name",
)  # fmt: skip

PARTITIONS_MAX: Final = 10_000
"""Partitions of one backfill."""
_STEPS = {"hour": timedelta(hours=1), "day": timedelta(days=1), "week": timedelta(weeks=1)}
EVERY = (*_STEPS, "month")
_FAILED = ("ERROR", "EXCEPTION")
_ENDS = {"COMPLETED": "done", "HALTED": "stopped", **dict.fromkeys(_FAILED, "failed")}


class Runs(Protocol):
    """The runs of a pipeline, as a backfill sees them."""

    def status(self, run: str) -> str:
        """The status of a run; nothing when there is none."""

    def begin(self, run: str, parameters: Mapping[str, str]) -> None:
        """Begin a run, or carry on one that is there and open."""


@dataclass(frozen=True, slots=True)
class NodeRuns:
    """The runs of a pipeline of a node, whose methods `call` calls."""

    call: Any
    pipeline: str

    def status(self, run: str) -> str:
        try:
            return protocol.LHStatus.Name(self.call("GetWfRun", protocol.WfRunId(id=run)).status)
        except NotFound:
            return ""

    def begin(self, run: str, parameters: Mapping[str, str]) -> None:
        """Begin a run; one that is there goes on by itself."""
        inputs = {pipeline_starts.PARAMETERS: conversions.value_of(dict(parameters))}
        try:
            self.call(
                "RunWf",
                protocol.RunWfRequest(wf_spec_name=pipeline_starts.spec_name(self.pipeline), id=run, variables=inputs),
            )
        except AlreadyExists:
            return


def check_parameter(pipeline: str, parameter: str, names: Sequence[str]) -> None:
    """Refuse a partition that is no parameter of the pipeline.

    Raises: `Invalid`.
    """
    if parameter not in names:
        raise Invalid("the pipeline has no such parameter", kind="pipeline_value", pipeline=pipeline,
                      parameter=parameter, hint=f"the partition is one of: {', '.join(names) or 'none'}")  # fmt: skip


def partitions(first: str, last: str, every: str) -> list[str]:
    """The partitions from the first to the last, both included.

    >>> partitions("2026-02-27", "2026-03-01", "day"), partitions("2026-01-01", "2026-03-31", "month")
    (['2026-02-27', '2026-02-28', '2026-03-01'], ['2026-01-01', '2026-02-01', '2026-03-01'])

    Raises: `Invalid` for what is no time, for more than `PARTITIONS_MAX`, and for none.
    """
    if every not in EVERY:
        raise Invalid("a backfill has no such step", kind="backfill", every=every, hint=f"one of: {', '.join(EVERY)}")
    of_time = every == "hour"
    at, stop = (_parsed(text, of_time=of_time) for text in (first, last))
    if (at.tzinfo is None) is not (stop.tzinfo is None):
        raise Invalid("one time of a backfill names an offset, and the other none", kind="backfill", first=first,
                      last=last, hint="give both one, as in 2026-01-31T06:00+01:00, or neither")  # fmt: skip
    if stop < at:
        raise Invalid("the first partition of a backfill comes after the last", kind="backfill", first=first, last=last,
                      hint="exchange them")  # fmt: skip
    texts: list[str] = []
    with suppress(OverflowError):  # the calendar ends
        while at <= stop and len(texts) <= PARTITIONS_MAX:
            texts.append((at if of_time else at.date()).isoformat())
            at = _next_month(at) if every == "month" else at + _STEPS[every]
    if not texts or len(texts) > PARTITIONS_MAX:
        raise Invalid("a backfill has some partitions, and not too many", kind="backfill", first=first, last=last,
                      every=every, limit=PARTITIONS_MAX)  # fmt: skip
    return texts


def _parsed(text: str, *, of_time: bool) -> datetime:
    try:
        if of_time:
            return datetime.fromisoformat(text)
        return datetime.combine(date.fromisoformat(text), datetime.min.time())
    except ValueError:
        raise Invalid("not a time of a backfill", kind="backfill", text=text,
                      hint="2026-01-31, and 2026-01-31T06:00 for hours") from None  # fmt: skip


def _next_month(at: datetime) -> datetime:
    if at.day != 1:
        raise Invalid("months begin with their first day", kind="backfill", text=at.date().isoformat())
    return (at + timedelta(days=31)).replace(day=1)


def run_name(pipeline: str, parameters: Mapping[str, str]) -> str:
    """The id of the run of a pipeline with these parameters: the same for the same."""
    return f"{pipeline}-{hashlib.sha256(stable_json(dict(parameters))).hexdigest()[:10]}".replace("_", "-")


def newest_run(name: str, status_of: Callable[[str], str]) -> tuple[str, str, str]:
    """The last of the runs `NAME`, `NAME-2` …, its status, nothing if there is none, and the id of one after it."""
    number, run, status = 1, name, status_of(name)
    following = f"{name}-2" if status else name
    while status and (further := status_of(following)):
        number, run, status = number + 1, following, further
        following = f"{name}-{number + 1}"
    return run, status, following


@dataclass(slots=True)
class Backfill:
    """The partitions of a backfill, and their runs."""

    runs: Runs
    pipeline: str
    parameter: str
    partitions: Sequence[str]
    parameters: Mapping[str, str] = field(default_factory=dict)
    parallel: int = 1
    begins_failed: bool = False
    tell: Callable[[str], object] = str
    done: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    stopped: dict[str, str] = field(default_factory=dict)
    going: dict[str, str] = field(default_factory=dict)

    def advance(self) -> bool:
        """Look at the runs, and begin those that may begin; False when all have ended, or are stopped."""
        for partition, run in tuple(self.going.items()):
            if status := self.runs.status(run):
                self._note(partition, status)
            else:  # it was deleted: the partition has had no run
                del self.going[partition]
        for partition in self.partitions:
            if len(self.going) >= self.parallel:
                break
            if not any(partition in own for own in (self.done, self.failed, self.stopped, self.going)):
                self._begin(partition)
        return bool(self.going)

    def left(self) -> list[str]:
        """The partitions whose runs have not ended."""
        return [own for own in self.partitions if own not in self.done and own not in self.failed]

    def inputs_of(self, partition: str) -> dict[str, str]:
        """The parameters of the run of a partition."""
        return {**self.parameters, self.parameter: partition}

    def _begin(self, partition: str) -> None:
        whole = self.inputs_of(partition)
        run, status, following = newest_run(run_name(self.pipeline, whole), self.runs.status)
        if self.begins_failed and status in _FAILED:
            run, status = following, ""
        self.going[partition] = run
        if status not in _ENDS:
            self.runs.begin(run, whole)
        self._note(partition, status)

    def _note(self, partition: str, status: str) -> None:
        word = _ENDS.get(status)
        if word is not None:
            ends = {"done": self.done, "failed": self.failed, "stopped": self.stopped}[word]
            ends[partition] = self.going.pop(partition)
            self.tell(f"{partition} {word}, {len(self.left())} left")
