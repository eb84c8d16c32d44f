"""Names in words, for commands and pages: a status of runs, a workflow."""

from __future__ import annotations

from typing import Any

from millpond.error_values import some_of
from millpond.errors import Invalid, NotFound

__all__ = ("run_of", "spec_of", "status_of")


def status_of(text: str) -> Any:
    """A status of runs.

    Raises: `Invalid`, which names those that there are.
    """
    from littlehorse.model import LHStatus

    if text.upper() not in LHStatus.keys():  # noqa: SIM118, it is no dictionary
        raise Invalid("no run has this status", kind="run_status", status=text,
                      hint=f"one of {', '.join(LHStatus.keys())}")  # fmt: skip
    return LHStatus.Value(text.upper())


def spec_of(call: Any, workflow: str) -> Any:
    """The newest specification of a workflow.

    Raises: `NotFound`, which names the workflows that there are.
    """
    from littlehorse.model import GetLatestWfSpecRequest, SearchWfSpecRequest

    from millpond.workflows.engine.pipeline_starts import spec_name

    try:
        return call("GetLatestWfSpec", GetLatestWfSpecRequest(name=spec_name(workflow)))
    except NotFound:
        names = some_of({spec_id.name for spec_id in call("SearchWfSpec", SearchWfSpecRequest()).results})
        raise NotFound("no workflow has this name", kind="workflow_spec", workflow=workflow,
                       hint=f"one of: {names}" if names else "register one first") from None  # fmt: skip


def run_of(call: Any, run: str) -> Any:
    """The row of a run.

    Raises: `NotFound`.
    """
    from millpond.workflows.engine import run_id

    try:
        return call("GetWfRun", run_id(run))
    except NotFound:
        raise NotFound("no run has this id", kind="workflow_run", run=run, hint="list them: millpond runs") from None
