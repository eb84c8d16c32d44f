"""Pages of the keys of maps that differ between two refs.

    steps of some thousand keys ─▶ their rows, in the order of addresses ─▶ so many, behind a place ─▶ the next place

A place is the step behind which a page begins, and the rows of the next one that were shown already: each page compares
one step, and few more where they are small.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import pyarrow as pa

from millpond.kernel.keys import decode, encode
from millpond.nodes.node import Node
from millpond.nodes.tokens import Caller
from millpond.refs.diffs import ADDRESS_TYPES, Position, compared, difference_page, map_differences
from millpond.refs.refs import Refs
from millpond.server.console.runs import bookmark_in
from millpond.server.console.tables import shown_rows

__all__ = ("ROWS_MAX", "keys_that_differ")

ROWS_MAX: Final = 200
"""The rows of a page of differences."""


def keys_that_differ(
    node: Node, caller: Caller, left: str, right: str | None, *, map: str = "", three_dots: bool = False,
    after: str = "",
) -> tuple[dict[str, Any], dict[str, str]]:  # fmt: skip
    """A page of the addresses that differ, of the maps that the caller may read; and what leads to the next one: its
    refs, which stay what they are, and its place. Without `right`, what is staged on the branch `left`.

    Raises: `Denied` for a map that the caller may not read; `Invalid` for a place in other differences; as `Refs.diff`.
    """
    if map:
        caller.need("read", map)
    states = Refs(node.at_refs.refs, caller.need).states
    sides = compared(
        states, left, right, map=map or None, three_dots=three_dots, only_of=partial(caller.may, "read")
    )  # fmt: skip
    bookmarks, position, skipped = sides.bookmarks(), b"", 0
    if after:
        position, skipped = decode(bookmarks.position(bookmark_in(after)))  # type: ignore[assignment]
    parts: list[tuple[bytes, int, pa.Table]] = []
    for step in map_differences(sides.old, sides.new, states.layers_for, Position.of(position) if position else None):
        rows = difference_page(iter([step]), sides)[0]
        parts.append((position, skipped, rows.slice(skipped)))
        position, skipped = step.position.packed(), 0
        if sum(part.num_rows for _, _, part in parts) > ROWS_MAX:
            break
    table = _joined([part for _, _, part in parts], sides.schema)
    shown = shown_rows(table, ROWS_MAX)
    following = _behind(parts, len(shown["rows"]))
    pins = {"left": sides.pins[0], "right": sides.pins[1] or ""}
    return shown, {} if following is None else {**pins, "after": bookmarks.of(encode(following)).hex()}


def _joined(parts: list[pa.Table], schema: pa.Schema | None) -> pa.Table:
    """Rows of several steps, in their order."""
    if not parts:
        return (schema or pa.schema([("map", pa.string()), ("change", pa.string())])).empty_table()
    table = pa.concat_tables(parts, promote_options="default")
    names = ("map", "change", *ADDRESS_TYPES, "old", "new")
    return table.select([name for name in names if name in table.column_names])


def _behind(parts: list[tuple[bytes, int, pa.Table]], shown: int) -> tuple[bytes, int] | None:
    """The place behind so many rows; None behind the last."""
    for position, skipped, part in parts:
        if shown < part.num_rows:
            return position, skipped + shown
        shown -= part.num_rows
    return None
