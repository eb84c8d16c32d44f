"""`millpond migration`: open runs go on with another version of their workflow, as a plan says, or try it first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from millpond.cli.terminal import console
from millpond.cli.verbs import verb
from millpond.cli.workflows.server import TENANT, every, every_result, plain_message, show_messages
from millpond.errors import Invalid, MillpondError
from millpond.sizes import human_count
from millpond.workflows.deferred import protocol
from millpond.workflows.named import fetch, run_of, version_of

__all__ = ("apply_plan", "delete_plan", "list_plans", "put_plan")

_PAGE = 1_000
Name = Annotated[str, typer.Argument(metavar="PLAN", help="The name of the plan.")]


@verb(
    "migration put",
    "millpond migration put fix --workflow nightly --from 0.0 --to 0.1 --node entrypoint/1-a=2-b",
    on=TENANT,
)
def put_plan(
    call: Any,
    name: Name,
    workflow: Annotated[str, typer.Option("--workflow", metavar="NAME", help="The workflow.")],
    old: Annotated[str, typer.Option("--from", metavar="MAJOR.REVISION", help="The version of the runs.")],
    new: Annotated[str, typer.Option("--to", metavar="MAJOR.REVISION", help="The version that they go on with.")],
    thread: Annotated[
        list[str] | None,
        typer.Option("--thread", metavar="OLD=NEW", help="The new name of a thread. Again for more.",
                     show_default="the same names"),
    ] = None,
    node: Annotated[
        list[str] | None,
        typer.Option("--node", metavar="THREAD/OLD=NEW", help="The new name of a node of a thread. Again for more.",
                     show_default="the same names"),
    ] = None,
) -> console.Shown:  # fmt: skip
    """Store a plan: where threads and nodes of one version go on in another. What it does not name keeps its name."""
    (major, revision), (new_major, new_revision) = version_of(old), version_of(new)
    request = protocol.PutWorkflowMigrationPlanRequest(
        name=name, old_wfSpec=protocol.WfSpecId(name=workflow, major_version=major, revision=revision),
        major_version=new_major, revision=new_revision,
    )  # fmt: skip
    for text in thread or ():
        before, after = _pair(text)
        request.thread_migrations[before].new_thread_name = after
    for text in node or ():
        place, after = _pair(text)
        before, _, old_node = place.partition("/")
        migration = request.thread_migrations[before]
        migration.new_thread_name = migration.new_thread_name or before
        migration.node_migrations[old_node].new_node_name = after
    plan = call("PutWorkflowMigrationPlan", request)
    return console.said(plain_message(plan), f"plan {name} is there; try it: millpond migration apply {name} --dry-run")


@verb("migration list", "millpond migration list --json", on=TENANT)
def list_plans(call: Any) -> console.Shown:
    """List the plans."""
    return show_messages(
        every(call, "WorkflowMigrationPlan"),
        ["plan", "workflow", "from", "to"],
        lambda plan: [
            plan.workflow_migration_plan_id.name, plan.old_wfSpec.name,
            f"{plan.old_wfSpec.major_version}.{plan.old_wfSpec.revision}", f"{plan.major_version}.{plan.revision}",
        ]
    )  # fmt: skip


@verb("migration apply", "millpond migration apply fix --dry-run", "millpond migration apply fix --run a", on=TENANT)
def apply_plan(
    call: Any,
    name: Name,
    run: Annotated[
        str | None, typer.Option("--run", metavar="RUN", help="Only this run.", show_default="all of the old version")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Try it on a copy of each run, and change none.")] = False,
) -> console.Shown:
    """Let the runs of a plan's old version that have not completed go on with the new one; those that cannot, stay."""
    plan, reasons, moved = protocol.WorkflowMigrationPlanId(name=name), Counter[str](), 0
    trial = [("dry-run", "1")] if dry_run else []
    stored = fetch(call, "GetWorkflowMigrationPlan", plan, "migration", name)
    for candidate in [run_of(call, run).id] if run is not None else list(_open_runs(call, stored)):
        try:
            call(
                "ApplyWorkflowMigrationPlan",
                protocol.ApplyWorkflowMigrationPlanRequest(id=plan, wfRun_id=candidate),
                *trial,
            )
            moved += 1
        except MillpondError as error:
            if run is not None:
                raise
            reasons[str(error.without("run", "plan"))] += 1
    goes = "would go" if dry_run else "goes" if moved == 1 else "go"
    stay = [f"{number:,} {'stays' if number == 1 else 'stay'}: {reason}" for reason, number in reasons.most_common()]
    return console.said(
        {"plan": name, "dry_run": dry_run, "moved": moved, "stayed": dict(reasons)},
        "\n".join([f"{human_count(moved, 'run')} {goes} on with the new version", *stay]),
    )


@verb("migration delete", "millpond migration delete fix", on=TENANT)
def delete_plan(call: Any, name: Name) -> console.Shown:
    """Delete a plan; runs that followed it stay where they are."""
    plan = protocol.WorkflowMigrationPlanId(name=name)
    fetch(call, "GetWorkflowMigrationPlan", plan, "migration", name)
    call("DeleteWorkflowMigrationPlan", protocol.DeleteWorkflowMigrationPlanRequest(id=plan))
    return console.said({"plan": name}, f"plan {name} is deleted")


def _open_runs(call: Any, plan: Any) -> Iterator[Any]:
    old = plan.old_wfSpec
    for status in sorted(set(protocol.LHStatus.values()) - {protocol.LHStatus.COMPLETED}):
        yield from every_result(call, "SearchWfRun", protocol.SearchWfRunRequest(
            wf_spec_name=old.name, wf_spec_major_version=old.major_version, wf_spec_revision=old.revision,
            status=protocol.LHStatus.Name(status), limit=_PAGE,
        ))  # fmt: skip


def _pair(text: str) -> tuple[str, str]:
    before, equals, after = text.partition("=")
    if not (before and equals and after):
        raise Invalid("not a pair of names", kind="migration_plan", value=text, hint="write OLD=NEW")
    return before, after
