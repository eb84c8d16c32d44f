"""Records of output that wait: a row for each, until it is in its topic.

    OUTPUT: (position, number) ─▶ tenant, topic, key, record

Invariant: a row is written with the rows of its command, and deleted after its record is committed, or dropped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, cast

from millpond.kernel.keys import KeyRange, decode, encode
from millpond.kernel.scans import delete_rows
from millpond.kernel.space import ReadTransaction, Transaction
from millpond.workflows.keyspaces import OUTPUT
from millpond.workflows.outputs.records import Output

__all__ = ("OutputPosition", "WaitingOutput", "delete_outputs", "note_outputs", "output_sizes", "outputs_after")

OutputPosition = tuple[int, int]
PAGE_BYTES = 8 << 20


class WaitingOutput(NamedTuple):
    """A record that waits, and its place."""

    position: OutputPosition
    output: Output


def note_outputs(tx: Transaction, outputs: Sequence[Output], position: OutputPosition) -> None:
    """Note records in the write of the rows that they tell of; `position` is that of the first."""
    for number, output in enumerate(outputs, position[1]):
        tx.put(OUTPUT.pack(position[0], number), encode(output))


def outputs_after(
    tx: ReadTransaction, after: OutputPosition, count: int, size: int = PAGE_BYTES
) -> list[WaitingOutput]:
    """The records behind a place: `count`, or as many as have `size` bytes together and one."""
    page: list[WaitingOutput] = []
    for key, row in tx.scan(_behind(after)):
        page.append(WaitingOutput(_position(key), Output(*cast("tuple[str, str, str, bytes]", decode(row)))))
        size -= len(row)
        if size <= 0 or len(page) == count:
            break
    return page


def output_sizes(tx: ReadTransaction, after: OutputPosition) -> Iterator[tuple[OutputPosition, int]]:
    """The places behind a place, and the bytes that each row takes."""
    return ((_position(key), len(row)) for key, row in tx.scan(_behind(after)))


def delete_outputs(tx: Transaction, position: OutputPosition) -> None:
    """Delete the records up to a place."""
    delete_rows(tx, list(tx.keys(OUTPUT.range((), (position[0], position[1] + 1)))))


def _behind(after: OutputPosition) -> KeyRange:
    return OUTPUT.range((after[0], after[1] + 1), None)


def _position(key: bytes) -> OutputPosition:
    return cast("OutputPosition", OUTPUT.unpack(key))
