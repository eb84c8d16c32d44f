"""`millpond external-event`: what runs wait for is listed, and sent to a run, or to all that wait for a key."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from millpond.cli.terminal import console
from millpond.cli.verbs import verb
from millpond.cli.workflows.server import RUNS, TENANT, every, plain_message, show_messages
from millpond.errors import Invalid
from millpond.workflows.deferred import conversions, engine, protocol, start_inputs
from millpond.workflows.named import fetch

__all__ = ("list_events", "post")


@verb("external-event list", "millpond external-event list --json", on=RUNS)
def list_events(call: Any) -> console.Shown:
    """List the external events that are defined: the type of their content, and if keys find the runs that wait."""
    return show_messages(
        every(call, "ExternalEventDef"),
        ["event", "content", "by key"],
        lambda row: [row.id.name, _type(row), row.HasField("correlated_event_config")]
    )  # fmt: skip


def _type(row: Any) -> str:
    returned = row.type_information.return_type
    return conversions.type_name(returned).lower() if returned.WhichOneof("defined_type") else ""


@verb(
    "external-event post",
    "millpond external-event post approved --run n-1 --content true",
    "millpond external-event post payment --key order-7",
    on=TENANT,
)
def post(
    call: Any,
    name: Annotated[str, typer.Argument(metavar="EVENT", help="The name of the external event.")],
    run: Annotated[
        str | None, typer.Option("--run", metavar="RUN", help="The run that it is for.", show_default=False)
    ] = None,
    key: Annotated[
        str | None, typer.Option("--key", metavar="KEY", help="All that wait for this key.", show_default=False)
    ] = None,
    content: Annotated[
        str | None, typer.Option("--content", metavar="VALUE", help="JSON, or text as it stands.", show_default="none")
    ] = None,
    id: Annotated[
        str | None, typer.Option("--id", metavar="ID", help="With --run: the same again sends nothing.",
                                 show_default="made by the server")
    ] = None,
) -> console.Shown:  # fmt: skip
    """Send an external event to a run, or by a key to every node that waits for it. The run need not be there yet."""
    if (run is None) == (key is None) or (run is None and id is not None):
        raise Invalid("an external event is for a run or for a key", kind="external_event_for", event=name,
                      hint="--run RUN, perhaps with --id ID; or --key KEY")  # fmt: skip
    event = protocol.ExternalEventDefId(name=name)
    defined = fetch(call, "GetExternalEventDef", event, "external-event", name)
    kind = defined.type_information.return_type.primitive_type
    value = None if content is None else start_inputs.value_in(content, kind if _type(defined) else None)
    if run is None:
        request: Any = protocol.PutCorrelatedEventRequest(key=key or "", external_event_def_id=event, content=value)
    else:
        name_of_run = engine.run_id(run)
        request = protocol.PutExternalEventRequest(
            wf_run_id=name_of_run, external_event_def_id=event, guid=id, content=value
        )
    sent = call("PutCorrelatedEvent" if run is None else "PutExternalEvent", request)
    return console.said(plain_message(sent), f"sent {name} to {run if run is not None else f'all that wait for {key}'}")
