"""`millpond demo --workflow`: the demo's maps and flights by the steps of a workflow."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from millpond.cli.terminal import console
from millpond.errors import Unavailable
from millpond.workflows.deferred import protocol

if TYPE_CHECKING:
    from collections.abc import Iterator

    from millpond.clock import Clock
    from millpond.demo.processes import WorkflowServer
    from millpond.demo.sources import Sources
    from millpond.events.event import Event

__all__ = ("run_workflow",)

_RUN = "flights"
_LOOK_SECONDS = 1.0


def run_workflow(folder: Path, sources: Sources, master: str | None, clock: Clock, *, quiet: bool) -> None:
    """Serve, work, and run the pipeline to its end, saying what each step did.

    Raises: `Unavailable` when a process does not start, or the run fails.
    """
    from littlehorse.workflow import Workflow

    from millpond.demo.processes import PipelineWorker, WorkflowServer
    from millpond.demo.workflow import FlightsPipeline

    began = clock.monotonic()
    pipeline = FlightsPipeline(sources, folder / "flights")
    pond = folder / "pond"
    with (
        WorkflowServer(folder / "server.log", pond) as server,
        PipelineWorker(folder / "worker.log", served=server, master=master or "local[*]") as worker,
    ):
        with console.working("starting a server and a worker", quiet=quiet):
            server.start()
            worker.start()
        specification = Workflow(_RUN, pipeline.body()).compile()
        steps = [_shown(event, quiet=quiet) for event in _steps(server, specification, clock)]
    seconds = round(clock.monotonic() - began, 1)
    if quiet:
        console.print_json({"run": _RUN, "steps": steps, "folder": str(folder), "seconds": seconds})
        return
    console.say(
        f"""
Done in {seconds:.0f} s. The enriched flights are in {folder}/flights/. See what happened:

  millpond serve --data {pond} &
  millpond run show {_RUN}
  millpond watch default {_RUN} --pond http://localhost:7433"""
    )


def _steps(server: WorkflowServer, specification: Any, clock: Clock) -> Iterator[Event]:
    """The ends of the steps of a new run, one after another.

    Raises: `Unavailable` when the run ends without the last of them.
    """
    import millpond
    from millpond.cli.workflows.server import connected

    with connected(server.server, "default") as call, millpond.open(server.url) as pond:
        call("PutWfSpec", specification)
        call("RunWf", protocol.RunWfRequest(wf_spec_name=_RUN, id=_RUN))
        with pond.events.watch("default", _RUN) as watch:
            running = True
            while running:
                # Events that came before the run had ended are read after it.
                run = call("GetWfRun", protocol.WfRunId(id=_RUN))
                running = run.status in (protocol.LHStatus.RUNNING, protocol.LHStatus.STARTING)
                batch = watch.next_batch(clock.monotonic() + _LOOK_SECONDS)
                yield from (event for event in batch if event.kind == "succeeded" and "step" in event.headers)
        if run.status != protocol.LHStatus.COMPLETED:
            status = protocol.LHStatus.Name(run.status)
            raise Unavailable("the run did not complete", kind="demo_run", run=_RUN, status=status,
                              hint="worker.log in the folder of the demo says why")  # fmt: skip


def _shown(event: Event, *, quiet: bool) -> dict[str, str]:
    facts = {name: text for name, text in event.headers.items() if name not in ("job_id", "attempt", "load")}
    if not quiet:
        shown = ", ".join(f"{name} {text}" for name, text in facts.items() if name != "step")
        console.say(f"{facts['step']:<8}  {shown}")
    return facts
