"""The progress of attempts that run now: a worker sends it with its beats, and a server shows it with their tasks.

    a task that shows it ─▶ its worker's beat, metadata `METADATA` ─▶ each process of the server ─▶ the attempt's log

Nothing of it is stored. While an attempt runs it has no log yet: that field shows how far it is.

Invariants:
* a process knows the progress of at most `ATTEMPTS_MAX` attempts, and of none that was silent for `SILENT_SECONDS`;
* the progress of one beat has at most `BEAT_BYTES_MAX` bytes: what does not fit is left out.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from littlehorse.model import TaskRun, TaskRunId, TaskRunList, TaskStatus

from millpond.clock import Clock
from millpond.json_forms import FormError, parse_list, to_json
from millpond.workflows.engine.keys import run_path
from millpond.workflows.engine.values.conversions import value_of

__all__ = ("METADATA", "Progresses", "beaten", "rows_in", "showing", "words_of")

METADATA: Final = "millpond-progress"
"""The metadata of a beat: rows of JSON, in base64, for metadata are ASCII."""
BEAT_BYTES_MAX: Final = 3_000
ATTEMPTS_MAX: Final = 10_000
SILENT_SECONDS: Final = 10.0

_Attempt = tuple[str, str, int]
"""The path of a run, the guid of a task run, and the number of the attempt."""
_SHOWN: dict[_Attempt, Callable[[], Mapping[str, Any]]] = {}


@contextmanager
def showing(task: TaskRunId, attempt: int, status: Callable[[], Mapping[str, Any]]) -> Iterator[None]:
    """Let the beats of this process say how far an attempt is, while this lasts; what is empty is not shown."""
    key = run_path(task.wf_run_id), task.task_guid, attempt
    _SHOWN[key] = status
    try:
        yield
    finally:
        del _SHOWN[key]


def beaten() -> str:
    """The progress of this process's attempts, for a beat; nothing when none says so."""
    rows, size = list[Any](), 2
    for attempt, status in tuple(_SHOWN.items()):
        if shown := status():
            row = [*attempt, shown]
            size += len(to_json(row)) + 1
            if size > BEAT_BYTES_MAX:
                break
            rows.append(row)
    return b64encode(to_json(rows)).decode() if rows else ""


def words_of(status: Mapping[str, Any]) -> str:
    """The progress of an attempt in words.

    >>> words_of({"stage": 3, "name": "sum", "tasks_done": 5, "tasks": 8, "rows": 12000, "rows_per_second": 900})
    'stage 3 (sum), 5/8 tasks, 12,000 rows, 900 rows/s'
    """
    try:
        name = f" ({status['name']})" if status["name"] else ""
        tasks = f"stage {status['stage']}{name}, {status['tasks_done']}/{status['tasks']} tasks"
        if "rows" not in status:  # a server of Spark Connect does not say
            return tasks
        return f"{tasks}, {status['rows']:,} rows, {status['rows_per_second']:,} rows/s"
    except (KeyError, TypeError, ValueError):
        return ""  # of a worker of another release


def rows_in(output: object) -> str:
    """The rows that the output of an attempt tells, in words behind a line of its end.

    >>> rows_in({"path": "warm.parquet", "rows": 1200}), rows_in({"value": 3})
    (', 1,200 rows', '')
    """
    rows = output.get("rows") if isinstance(output, Mapping) else None
    return f", {rows:,} rows" if isinstance(rows, int) and not isinstance(rows, bool) else ""


class Progresses:
    """The progress of attempts of which a process of the server heard. Used from one event loop."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._heard: dict[tuple[str, _Attempt], tuple[float, dict[str, Any]]] = {}

    def note(self, tenant: str, beat: str) -> None:
        """Note what a beat of a worker says; what is not understood is nothing."""
        try:
            rows = [((str(run), str(guid), int(attempt)), dict(status)) for run, guid, attempt, status in
                    parse_list(b64decode(beat))]  # fmt: skip
        except (FormError, TypeError, ValueError):
            return
        now = self._clock.monotonic()
        for attempt, status in rows:
            self._heard.pop((tenant, attempt), None)
            self._heard[tenant, attempt] = now, status
        for key in [key for key, (heard, _) in self._heard.items() if now - heard > SILENT_SECONDS]:
            del self._heard[key]
        while len(self._heard) > ATTEMPTS_MAX:
            del self._heard[next(iter(self._heard))]

    def of(self, tenant: str, task: TaskRun) -> dict[str, Any]:
        """The progress of the attempt that a task run has now; nothing when none runs, or nobody said so lately."""
        attempt = run_path(task.id.wf_run_id), task.id.task_guid, len(task.attempts) - 1
        heard, status = self._heard.get((tenant, attempt), (0.0, {}))
        runs = task.status == TaskStatus.TASK_RUNNING and self._clock.monotonic() - heard <= SILENT_SECONDS
        return status if runs else {}

    def added(self, tenant: str, kind: type[TaskRun | TaskRunList], reply: bytes) -> bytes:
        """A reply with task runs, where those that run now show how far they are."""
        if not self._heard:
            return reply
        message = kind.FromString(reply)
        for task in message.results if isinstance(message, TaskRunList) else [message]:
            if status := self.of(tenant, task):
                task.attempts[-1].log_output.CopyFrom(value_of(status))
        return bytes(message.SerializeToString())
