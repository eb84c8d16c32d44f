"""Metrics of workflows and tasks by windows of time, computed from their rows when they are asked for.

A window holds what began in it: the number, and of those that have ended how long they took. So a window changes until
its last run has ended, and nothing is written for it; runs that were deleted are in none.

| method | windows |
|---|---|
| `ListWfMetrics`, `ListTaskMetrics`, `GetMetricWindow`, `SearchWfMetricWindow` | a minute in which something began |
| `GetWfSpecMetricsWindow`, `GetTaskDefMetricsWindow` | 5 minutes, 2 hours or a day |
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from google.protobuf.message import Message
from littlehorse.model import (
    CountAndTiming,
    LHStatus,
    ListTaskMetricsRequest,
    ListWfMetricsRequest,
    MetricsList,
    MetricsWindowLength,
    MetricWindow,
    MetricWindowId,
    MetricWindowIdList,
    MetricWindowType,
    SearchWfMetricWindowRequest,
    TaskDefId,
    TaskDefMetrics,
    TaskDefMetricsQueryRequest,
    TaskRun,
    TaskStatus,
    TenantId,
    WfRun,
    WfSpecId,
    WfSpecMetrics,
    WfSpecMetricsQueryRequest,
)

from millpond.errors import Invalid, NotFound
from millpond.kernel.keys import encode
from millpond.kernel.patience import patiently
from millpond.server.workflows.pages import page_of
from millpond.server.workflows.run_filters import instant_of
from millpond.workflows.engine import key_of
from millpond.workflows.store import TagQuery

if TYPE_CHECKING:
    from google.protobuf.timestamp_pb2 import Timestamp

    from millpond.workflows.processor import ReadRows

__all__ = ("METRIC_READS", "MINUTE_MS", "METRIC_ROWS_MAX")

MINUTE_MS: Final = 60_000
METRIC_ROWS_MAX: Final = 100_000
"""Runs, or task runs, that one request for metrics reads; of more, it is refused."""
_AT_ONCE = 1_000
_LENGTHS_MS: Final = {
    MetricsWindowLength.MINUTES_5: 5 * MINUTE_MS, MetricsWindowLength.HOURS_2: 120 * MINUTE_MS,
    MetricsWindowLength.DAYS_1: 1440 * MINUTE_MS,
}  # fmt: skip
_RUN_ENDS: Final = {
    LHStatus.COMPLETED: "running_to_completed", LHStatus.ERROR: "running_to_error",
    LHStatus.EXCEPTION: "running_to_exception",
}  # fmt: skip
_TASK_ENDS: Final[dict[int, tuple[str, str]]] = {
    TaskStatus.TASK_SUCCESS: ("taskrun_created_to_completed", "taskattempt_running_to_success"),
    TaskStatus.TASK_EXCEPTION: ("taskrun_created_to_exception", "taskattempt_running_to_exception"),
    **dict.fromkeys(
        (TaskStatus.TASK_FAILED, TaskStatus.TASK_TIMEOUT, TaskStatus.TASK_OUTPUT_SERDE_ERROR,
         TaskStatus.TASK_INPUT_VAR_SUB_ERROR),
        ("taskrun_created_to_error", "taskattempt_running_to_error"),
    ),
}  # fmt: skip
"""The measures of an end: that of the task run, and that of the attempt."""


def _began(rows: ReadRows, kind: type[Message], query: TagQuery, start: int | None, stop: int | None) -> Iterator[Any]:
    """The objects of a search that began from `start` to before `stop`, in milliseconds."""
    timed = TagQuery(query.kind, query.attributes, start, None if stop is None else stop - 1)
    bookmark: bytes | None = None
    for _ in range(METRIC_ROWS_MAX // _AT_ONCE):
        page = rows.search(timed, limit=_AT_ONCE, bookmark=bookmark)
        runs = (rows.get(kind, key_of(address.id())) for address in page.rows)
        yield from (row for row in patiently(runs) if row is not None)
        bookmark = page.bookmark
        if bookmark is None:
            return
    raise Invalid("more rows than one request for metrics reads", kind="search_limit", limit=METRIC_ROWS_MAX,
                  hint="give a shorter time: window_start and window_end")  # fmt: skip


def _bounds(request: Any, first: str, last: str) -> tuple[int | None, int | None]:
    """The times of a request, both included as they are windows' starts."""
    start = instant_of(request, first) if request.HasField(first) else None
    stop = instant_of(request, last) + 1 if request.HasField(last) else None
    return start, stop


def _ms(stamp: Timestamp) -> int:
    return stamp.seconds * 1000 + stamp.nanos // 1_000_000


def _add(timing: CountAndTiming, start: Timestamp, end: Timestamp) -> None:
    took = max(0, _ms(end) - _ms(start))
    timing.min_latency_ms = min(timing.min_latency_ms, took) if timing.count else took
    timing.max_latency_ms = max(timing.max_latency_ms, took)
    timing.total_latency_ms += took
    timing.count += 1


# -- windows of a minute ----------------------------------------------------------------------------------


def _runs_of(rows: ReadRows, spec: WfSpecId, start: int | None, stop: int | None) -> Iterator[WfRun]:
    query = TagQuery.runs(spec=spec.name, major=spec.major_version, revision=spec.revision)
    return _began(rows, WfRun, query, start, stop)


def _add_run(window: MetricWindow, run: WfRun) -> None:
    window.workflow.started.count += 1
    end = _RUN_ENDS.get(run.status)
    if end is not None:
        _add(getattr(window.workflow, end), run.start_time, run.end_time)


def _add_task(window: MetricWindow, task: TaskRun) -> None:
    metrics = window.task
    metrics.SetInParent()
    for number, attempt in enumerate(task.attempts):
        if number and attempt.HasField("schedule_time"):
            _add(metrics.taskattempt_pending_to_scheduled, task.attempts[number - 1].end_time, attempt.schedule_time)
        if attempt.HasField("start_time"):
            _add(metrics.taskattempt_scheduled_to_running, attempt.schedule_time, attempt.start_time)
        if attempt.HasField("start_time") and attempt.status in _TASK_ENDS:
            _add(getattr(metrics, _TASK_ENDS[attempt.status][1]), attempt.start_time, attempt.end_time)
    if task.status in _TASK_ENDS:
        _add(getattr(metrics, _TASK_ENDS[task.status][0]), task.scheduled_at, task.attempts[-1].end_time)


def _windows(
    name: MetricWindowId, tenant: str, runs: Iterator[Any], add: Callable[[MetricWindow, Any], None]
) -> list[MetricWindow]:
    """The windows in which objects began, in their order."""
    windows: dict[int, MetricWindow] = {}
    for row in runs:
        at = _ms(row.start_time if isinstance(row, WfRun) else row.scheduled_at) // MINUTE_MS * MINUTE_MS
        if at not in windows:
            windows[at] = MetricWindow(id=name)
            windows[at].id.tenant_id.CopyFrom(TenantId(id=tenant))
            windows[at].id.window_start.FromMilliseconds(at)
        add(windows[at], row)
    return [windows[at] for at in sorted(windows)]


def _of_spec(rows: ReadRows, spec: WfSpecId, start: int | None, stop: int | None) -> list[MetricWindow]:
    name = MetricWindowId(wf_spec_id=spec, metric_type=MetricWindowType.WORKFLOW_METRIC)
    return _windows(name, rows.tenant, _runs_of(rows, spec, start, stop), _add_run)


def _of_task(rows: ReadRows, task: TaskDefId, start: int | None, stop: int | None) -> list[MetricWindow]:
    name = MetricWindowId(task_def_id=task, metric_type=MetricWindowType.TASK_METRIC)
    return _windows(name, rows.tenant, _began(rows, TaskRun, TagQuery.tasks(task.name), start, stop), _add_task)


def _list_runs(rows: ReadRows, request: ListWfMetricsRequest) -> MetricsList:
    return MetricsList(windows=_of_spec(rows, request.wf_spec, *_bounds(request, "window_start", "window_end")))


def _list_tasks(rows: ReadRows, request: ListTaskMetricsRequest) -> MetricsList:
    return MetricsList(windows=_of_task(rows, request.task_def, *_bounds(request, "window_start", "window_end")))


def _get_window(rows: ReadRows, name: MetricWindowId) -> MetricWindow:
    """One window.

    Raises: `NotFound` when nothing began in it.
    """
    start = instant_of(name, "window_start") // MINUTE_MS * MINUTE_MS
    match name.WhichOneof("id"):
        case "wf_spec_id":
            runs = _of_spec(rows, name.wf_spec_id, start, start + MINUTE_MS)
        case "task_def_id":
            runs = _of_task(rows, name.task_def_id, start, start + MINUTE_MS)
        case _:
            runs = []
    if not runs:
        raise NotFound("nothing began in this window", kind="workflow_object", type="MetricWindow", start_ms=start)
    return runs[0]


def _search_windows(rows: ReadRows, request: SearchWfMetricWindowRequest) -> Message:
    """The ids of the windows of all versions of a specification.

    Raises: `Invalid` without a name.
    """
    if not request.wf_spec_name:
        raise Invalid("a search has no condition", kind="search", field="wf_spec_name", hint="give wf_spec_name")
    runs = _began(
        rows, WfRun, TagQuery.runs(spec=request.wf_spec_name), *_bounds(request, "earliest_start", "latest_start")
    )
    keys = {(_ms(run.start_time) // MINUTE_MS * MINUTE_MS, *key_of(run.wf_spec_id)) for run in runs}
    entries = ((encode(key), _window_id(rows.tenant, key)) for key in sorted(keys, reverse=request.latest_only))
    return page_of(MetricWindowIdList, islice(entries, 1) if request.latest_only else entries, request)


def _window_id(tenant: str, key: tuple[Any, ...]) -> MetricWindowId:
    at, name, major, revision = key
    window = MetricWindowId(
        wf_spec_id=WfSpecId(name=name, major_version=major, revision=revision), tenant_id=TenantId(id=tenant),
        metric_type=MetricWindowType.WORKFLOW_METRIC,
    )  # fmt: skip
    window.window_start.FromMilliseconds(at)
    return window


# -- longer windows ---------------------------------------------------------------------------------------


def _longer(request: Any, length: MetricsWindowLength) -> tuple[int, int]:
    if length not in _LENGTHS_MS:
        raise Invalid("not a length of a window", kind="search", field="window_length", value=length)
    start = instant_of(request, "window_start") // _LENGTHS_MS[length] * _LENGTHS_MS[length]
    return start, start + _LENGTHS_MS[length]


def _whole(windows: list[MetricWindow], metric: str, names: tuple[str, ...]) -> CountAndTiming:
    """Some measures of windows together."""
    every = [getattr(getattr(window, metric), name) for window in windows for name in names]
    return CountAndTiming(
        count=sum(part.count for part in every), max_latency_ms=max((part.max_latency_ms for part in every), default=0),
        total_latency_ms=sum(part.total_latency_ms for part in every),
    )  # fmt: skip


def _average(timing: CountAndTiming) -> int:
    return timing.total_latency_ms // timing.count if timing.count else 0


def _spec_window(rows: ReadRows, request: WfSpecMetricsQueryRequest) -> WfSpecMetrics:
    """The runs of a specification that began in a window."""
    start, stop = _longer(request, request.window_length)
    windows = _of_spec(rows, request.wf_spec_id, start, stop)
    ended = _whole(windows, "workflow", tuple(_RUN_ENDS.values()))
    metrics = WfSpecMetrics(
        wf_spec_id=request.wf_spec_id, type=request.window_length, start_to_complete_max=ended.max_latency_ms,
        start_to_complete_avg=_average(ended), total_started=_whole(windows, "workflow", ("started",)).count,
        total_completed=_whole(windows, "workflow", ("running_to_completed",)).count,
        total_errored=_whole(windows, "workflow", ("running_to_error", "running_to_exception")).count,
    )  # fmt: skip
    metrics.window_start.FromMilliseconds(start)
    return metrics


def _task_window(rows: ReadRows, request: TaskDefMetricsQueryRequest) -> TaskDefMetrics:
    """The task runs of a definition that began in a window.

    Raises: `Invalid` without a name.
    """
    if not request.task_def_name:
        raise Invalid("a search has no condition", kind="search", field="task_def_name", hint="give task_def_name")
    start, stop = _longer(request, request.window_type)
    query, name = TagQuery.tasks(request.task_def_name), TaskDefId(name=request.task_def_name)
    windows = _of_task(rows, name, start, stop)
    claimed = _whole(windows, "task", ("taskattempt_scheduled_to_running",))
    ended = _whole(windows, "task", tuple(f"taskattempt_running_to_{end}" for end in ("success", "error", "exception")))
    failed = ("taskrun_created_to_error", "taskrun_created_to_exception")
    metrics = TaskDefMetrics(
        task_def_id=name, type=request.window_type, schedule_to_start_max=claimed.max_latency_ms,
        schedule_to_start_avg=_average(claimed), start_to_complete_max=ended.max_latency_ms,
        start_to_complete_avg=_average(ended), total_started=claimed.count,
        total_completed=_whole(windows, "task", ("taskrun_created_to_completed",)).count,
        total_errored=_whole(windows, "task", failed).count,
        total_scheduled=rows.count(TagQuery(query.kind, query.attributes, start, stop - 1)),
    )  # fmt: skip
    metrics.window_start.FromMilliseconds(start)
    return metrics


METRIC_READS: Final[dict[type[Message], Callable[[ReadRows, Any], Message]]] = {
    ListWfMetricsRequest: _list_runs, ListTaskMetricsRequest: _list_tasks, MetricWindowId: _get_window,
    SearchWfMetricWindowRequest: _search_windows, WfSpecMetricsQueryRequest: _spec_window,
    TaskDefMetricsQueryRequest: _task_window,
}  # fmt: skip
"""The function of each request for metrics."""
