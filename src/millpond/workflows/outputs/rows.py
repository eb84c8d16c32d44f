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

__all__ = ("OutputPlace", "WaitingOutput", "delete_outputs", "note_outputs", "output_sizes", "outputs_after")

OutputPlace = tuple[int, int]
PAGE_BYTES = 8 << 20


class WaitingOutput(NamedTuple):
    """A record that waits, and its place."""

    place: OutputPlace
    output: Output


def note_outputs(tx: Transaction, outputs: Sequence[Output], place: OutputPlace) -> None:
    """Note records in the write of the rows that they tell of; `place` is that of the first."""
    for number, output in enumerate(outputs, place[1]):
        tx.put(OUTPUT.pack(place[0], number), encode(output))


def outputs_after(tx: ReadTransaction, after: OutputPlace, count: int, size: int = PAGE_BYTES) -> list[WaitingOutput]:
    """The records behind a place: `count`, or as many as have `size` bytes together and one."""
    page: list[WaitingOutput] = []
    for key, row in tx.scan(_behind(after)):
        page.append(WaitingOutput(_place(key), Output(*cast("tuple[str, str, str, bytes]", decode(row)))))
        size -= len(row)
        if size <= 0 or len(page) == count:
            break
    return page


def output_sizes(tx: ReadTransaction, after: OutputPlace) -> Iterator[tuple[OutputPlace, int]]:
    """The places behind a place, and the bytes that each row takes."""
    return ((_place(key), len(row)) for key, row in tx.scan(_behind(after)))


def delete_outputs(tx: Transaction, place: OutputPlace) -> None:
    """Delete the records up to a place."""
    delete_rows(tx, list(tx.keys(OUTPUT.range((), (place[0], place[1] + 1)))))


def _behind(after: OutputPlace) -> KeyRange:
    return OUTPUT.range((after[0], after[1] + 1), None)


def _place(key: bytes) -> OutputPlace:
    return cast("OutputPlace", OUTPUT.unpack(key))
