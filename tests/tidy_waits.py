"""Taste of waiting: a change is waited for, and not looked for again and again. A rule of `tidy.py`."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from tests.tidy_sources import walked

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.tidy import Source

_NODE = "a node that has no long poll for it"
_BUCKET = "a bucket cannot tell; and the pause after one that was lost"
_CLUSTER = "processes of a cluster, and their files: they cannot tell"
# `room/module.py:function` that waits for a fixed time in a loop -> what it waits for that cannot ring
PERIODS = {
    "airflow/waits.py:_listen": "the pause before a node that failed is asked again",
    "airflow/waits.py:_wakes": "rings of a moment are one",
    "airflow/waits.py:loads": "the pause before a node that failed is asked again",
    "cli/members.py:add": _NODE,
    "cli/nodes.py:drain": _NODE,
    "cli/workflows/backfills.py:_until_done": _NODE,
    "cli/workflows/on_node.py:_until": _NODE,
    "client/versions/branch.py:_run": "the interface is lakeFS' own, which has no long poll",
    "clock.py:wait_for": "a manual clock that nobody woke",
    "events/redis/servers.py:_run_flight": "servers of Redis that disagree, or fail over",
    "events/turned_claims.py:_taken": "a drawn pause: two that take some of the same do not meet for ever",
    "nodes/replication/log_agreement.py:_ask": "the pause before a node that refused is asked again",
    "nodes/replication/log_agreement.py:_compare_one": "a map that changes between the answers of two nodes",
    "pipelines/clusters.py:submit": _CLUSTER,
    "pipelines/driver_lines.py:end": _CLUSTER,
    "pipelines/driver_lines.py:in_cluster": _CLUSTER,
    "pipelines/driver_process.py:go_on_alone": _CLUSTER,
    "pipelines/driver_process.py:tell": _CLUSTER,
    "pipelines/embedded.py:_until": "timers end runs, too, and the end of a run is a row",
    "reports/reporter.py:_run": "at most so many appends a second",
    "server/readers.py:start": "the start of a process",
    "server/workflows/looking.py:_repeat": "beats that do not come; data that schedules wait for, of any process",
    "server/workflows/service.py:_where": "the other process that is about to own the partition",
    "stores/bucket_space/batch_log.py:later": _BUCKET,
    "stores/bucket_space/batch_log.py:put": _BUCKET,
    "stores/bucket_space/space.py:_write_batch": _BUCKET,
    "stores/postgres/space.py:_run_often": "the pause after a transaction that others overtook",
    "stores/lmdb/write_queue.py:_await_turn": "writers of a moment are one",
    "workflows/logs/kafka.py:_watermarks": "a leader that moves among brokers",
    "workflows/logs/kafka_topic.py:_seen": "a topic that brokers are making",
    "workflows/processor/processor.py:_turn_on": "workers that come just before they report",
}
_FIXED = re.compile(r"[A-Z_]*SECONDS[A-Z_]*|(self\._)?never|(threading\.)?Event\(\)")
_WAITS = frozenset(("wait", "sleep", "timeout"))


def changes_are_waited_for(sources: list[Source]) -> Iterator[str]:
    """A wait for a fixed time in a loop stands in `PERIODS`, with what it waits for that cannot ring.

    The time is fixed when a constant says it, or when the event is one that nobody sets. In one process a `Signal`
    rings, and a `WorkerThread` is woken; a node answers with `wait=` when there is something.
    """
    left = set(PERIODS)
    for source in sources:
        folder, _, inside = source.path.partition("src/millpond/")
        if folder or not source.python or inside.startswith("testing/"):
            continue
        for function in source.of(ast.FunctionDef, ast.AsyncFunctionDef):
            if any(map(_is_fixed, _looped(function))):
                place = f"{inside}:{function.name}"
                left.discard(place)
                if place not in PERIODS:
                    yield f"{source.path}: {function.name} waits for a fixed time again and again; let it be rung"
    if any(source.path.endswith("millpond/clock.py") for source in sources):  # all are there
        yield from (f"{place} waits for no fixed time: take it from PERIODS" for place in sorted(left))


def _looped(function: ast.AST) -> Iterator[ast.Call]:
    for loop in walked(function):
        if isinstance(loop, ast.While | ast.For):
            yield from (node for node in walked(loop) if isinstance(node, ast.Call))


def _is_fixed(call: ast.Call) -> bool:
    if not isinstance(call.func, ast.Attribute) or call.func.attr not in _WAITS:
        return False
    if ast.unparse(call.func) == "asyncio.sleep":
        return True
    return any(_FIXED.fullmatch(ast.unparse(node)) for node in walked(call) if isinstance(node, ast.expr))
