"""The trace of a run of a workflow: that of the request that started it, or one of its own.

    the request's span ─▶ the run's span ─▶ the span of each of its tasks

Nobody stores where the span of a run is: its id, and without a request its trace, follow from the name of the run. So a
task finds it before it has ended, whatever process it is in, and it is told when the run ends.
"""

from __future__ import annotations

import hashlib

from millpond.tracing.doors import Value, spans

__all__ = ("end_run", "run_parent")


def run_parent(run: str, caller: str) -> str:
    """The span of a run, as its tasks have it for their parent; empty in a process without traces.

    `caller`: the `traceparent` with which the run was started, if there was one.
    """
    own = spans()
    if own is None:
        return ""
    trace, span = _ids(run, caller)
    flags = caller[-2:] if caller else f"{own.is_sampled(trace):02x}"
    return f"00-{trace:032x}-{span:016x}-{flags}"


def end_run(run: str, caller: str, began_ms: int, ended_ms: int, error: str, **facts: Value) -> None:
    """Make the span of a run that has ended; `error` is its kind where it failed."""
    own = spans()
    if own is not None:
        ids, facts = _ids(run, caller), {"run": run, **facts}
        own.past("run", (began_ms, ended_ms), facts, ids=ids, parent=caller, error=error)


def _ids(run: str, caller: str) -> tuple[int, int]:
    digest = hashlib.sha256(run.encode()).digest()
    trace = int(caller[3:35], 16) if caller else int.from_bytes(digest[:16], "big")
    return trace, int.from_bytes(digest[16:24], "big") or 1
