"""`millpond parts` and `parts retry`: what was loaded and is not merged yet, and what was quarantined."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from millpond.cli.options import Json, PondLocation, existing_pond
from millpond.cli.terminal import console
from millpond.cli.verbs import verb
from millpond.errors import Invalid, NotFound
from millpond.json_forms import plain

if TYPE_CHECKING:
    from millpond.maps.log.queue import PartStatus
    from millpond.maps.protocols import PondLike

__all__ = ("State", "parts", "retry")

_ID_LETTERS = 8


class State(StrEnum):
    """The states in the life of a part."""

    queued = "queued"
    merging = "merging"
    quarantined = "quarantined"
    retained = "retained"


PartIds = Annotated[
    list[str] | None, typer.Argument(metavar="[ID]...", help="Which parts: their ids, or how these begin.")
]


@verb(
    "parts",
    "millpond parts",
    "millpond parts --map weather --state quarantined",
    "millpond parts --pond http://localhost:7433 --json",
)
def parts(
    context: typer.Context,
    name: Annotated[str | None, typer.Option("--map", metavar="MAP", help="Only parts of this map.")] = None,
    state: Annotated[
        State | None, typer.Option("--state", help="Only parts in this state.", show_default="all that are not kept")
    ] = None,
    pond: PondLocation = "pond",
    json: Json = False,
) -> None:
    """Show parts that wait, are merged, or were quarantined, and why. Merged parts are kept for a while."""
    if context.invoked_subcommand is not None:
        return
    with existing_pond(pond) as opened:
        now_ms = opened.clock.now_ms()
        only_map = None if name is None else opened.map(name).name
        listed = opened.parts.by_node()
    listed_parts = [(node, part) for node, part in listed.parts if only_map in (None, part.map)]
    shown = [
        (node, part)
        for node, part in listed_parts
        if part.state == state or (state is None and part.state != "retained")
    ]
    if json:
        console.print_json_list(({"node": node} if node else {}) | plain(part) for node, part in shown)
    else:
        _show(shown, now_ms)
        if state is None:
            _print_retained([part for _, part in listed_parts if part.state == "retained"])
    if listed.error is not None:
        raise listed.error


@verb("parts retry", "millpond parts retry", "millpond parts retry 3fa9c01b --json")
def retry(ids: PartIds = None, pond: PondLocation = "pond", json: Json = False) -> None:
    """Merge parts once more that were quarantined: those named, or all of them."""
    with existing_pond(pond) as opened:
        shown, error = _retry(opened, ids)
    if json:
        console.print_json_list(({"node": node} if node else {}) | plain(part) for node, part in shown)
    elif not shown:
        console.say("no part was quarantined")
    for node, part in () if json else shown:
        console.say(f"{_called(node, part)}: {_became(part)}")
    if error is not None:
        raise error


# -- retrying -----------------------------------------------------------------------------------------


def _retry(opened: PondLike, ids: Sequence[str] | None) -> tuple[list[tuple[str, PartStatus]], Exception | None]:
    """Take parts again, each on the nodes that quarantine it; how they stand, and why a node could not be asked."""
    listed = opened.parts.by_node()
    quarantined = [(node, part) for node, part in listed.parts if part.state == "quarantined"]
    quarantined_ids = sorted({part.part for _, part in quarantined})
    if listed.error is not None and not quarantined_ids:
        raise listed.error
    selected = {_full_id(quarantined_ids, prefix) for prefix in ids} if ids else set(quarantined_ids)
    states: list[tuple[str, PartStatus]] = []
    for node in dict.fromkeys(node for node, _ in quarantined):
        here = [part for where, part in quarantined if where == node and part.part in selected]
        if here:
            after = opened.parts.retry(sorted({part.part for part in here}) if ids else None, node=node)
            states += [(node, part) for part in _stand(here, after)]
    return states, listed.error


def _stand(before: Sequence[PartStatus], after: Sequence[PartStatus]) -> list[PartStatus]:
    """The states of parts that are being retried: those no longer listed are merged, and not retained."""
    statuses = {part.part: part for part in after}
    return [statuses.get(part.part, replace(part, state="merged", reason="")) for part in before]


def _full_id(ids: Sequence[str], prefix: str) -> str:
    meant = [part for part in ids if part.startswith(prefix.lower())]
    if len(meant) == 1:
        return meant[0]
    if meant:
        raise Invalid(
            "several parts begin so", kind="part_ambiguous", part=prefix, found=", ".join(meant),
            hint="write more of the id",
        )  # fmt: skip
    raise NotFound(
        "no part of that id was quarantined", kind="part_not_quarantined", part=prefix,
        hint="'millpond parts --state quarantined' lists those that were",
    )  # fmt: skip


# -- telling ------------------------------------------------------------------------------------------


def _show(shown: Sequence[tuple[str, PartStatus]], now_ms: int) -> None:
    if not shown:
        console.say("no part waits, and none was quarantined")
        return
    for node in dict.fromkeys(node for node, _ in shown):
        if node:
            console.say(node)
        console.print_table(
            ["part", "state", "map", "rows", "size", "age", "source"],
            [_row(part, now_ms) for where, part in shown if where == node],
            whole=("part", "state", "rows", "size", "age"),
        )
    queue = {(node, part.map): part.reason for node, part in shown if part.state in ("queued", "merging")}
    for (node, name), reason in queue.items():
        if reason:
            where = f" on {_short(node)}" if node else ""
            console.say(f"{name} cannot be merged{where}, and is tried again: {reason}")
    for node, part in shown:
        if part.state == "quarantined":
            console.say(f"{_called(node, part)} was quarantined: {part.reason}")
    if any(part.state == "quarantined" for _, part in shown):
        console.say("when the cause is gone: millpond parts retry")


def _row(part: PartStatus, now_ms: int) -> list[str]:
    return [
        part.part[:_ID_LETTERS], part.state, part.map, f"{part.rows:,}", console.human_bytes(part.bytes),
        console.human_span(now_ms - part.since_ms), part.source,
    ]  # fmt: skip


def _called(node: str, part: PartStatus) -> str:
    return f"{part.part[:_ID_LETTERS]} of {part.map}" + (f" on {_short(node)}" if node else "")


def _short(node: str) -> str:
    return node.partition("://")[2]


def _print_retained(retained: Sequence[PartStatus]) -> None:
    if retained:
        size = console.human_bytes(sum(part.bytes for part in retained))
        parts = "part is" if len(retained) == 1 else "parts are"
        console.say(f"{len(retained):,} merged {parts} kept, {size}: --state retained lists them")


def _became(part: PartStatus) -> str:
    if part.state == "quarantined":
        return f"quarantined again: {part.reason}"
    return "merged" if part.state == "retained" else part.state
