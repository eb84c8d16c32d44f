"""A batch answers as its transaction would, whatever is remembered, and leaves what a transaction would have."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("littlehorse")

from millpond.kernel.keys import KeyRange, encode
from millpond.kernel.space import Transaction
from millpond.stores.memory import MemorySpace
from millpond.workflows.keyspaces import DEFINITION, GROUP, QUEUED
from millpond.workflows.processor import batch as module
from millpond.workflows.processor.batch import Batch, RecentRows
from tests.rings.sampling import examples

RUNS = [GROUP["acme"][run][encode(children)] for run in ("a", "b") for children in ((), ("kid",))]
PLACES = [*RUNS, DEFINITION["acme"][0], QUEUED["acme"]["greet"]]
KEYS = [place.pack(number) for place in PLACES for number in range(4)]
RANGES = [KeyRange(GROUP.packed, GROUP.range().stop), KeyRange(b"", None), *(place.range() for place in PLACES),
          *(place.range((1,), (3,)) for place in PLACES), GROUP["acme"]["a"].range()]  # fmt: skip


@dataclass(frozen=True)
class Put:
    key: bytes
    value: bytes


@dataclass(frozen=True)
class Delete:
    key: bytes


@dataclass(frozen=True)
class DeleteRange:
    keys: KeyRange
    limit: int | None


@dataclass(frozen=True)
class Look:
    keys: KeyRange
    reverse: bool


@dataclass(frozen=True)
class TakenBack:
    """A command that fails midway."""

    steps: list[Put | Delete | DeleteRange | Look]


Step = Put | Delete | DeleteRange | Look | TakenBack
SIMPLE: st.SearchStrategy[Put | Delete | DeleteRange | Look] = st.one_of(
    st.builds(Put, st.sampled_from(KEYS), st.binary(max_size=3)),
    st.builds(Delete, st.sampled_from(KEYS)),
    st.builds(DeleteRange, st.sampled_from(RANGES), st.none() | st.integers(1, 3)),
    st.builds(Look, st.sampled_from(RANGES), st.booleans()),
)
STEPS: st.SearchStrategy[Step] = SIMPLE | st.builds(TakenBack, st.lists(SIMPLE, max_size=5))
WRITES = st.lists(st.tuples(st.lists(STEPS, max_size=12), st.sampled_from(("made", "not made"))), max_size=6)


class Failed(Exception):
    """The end of a write that is not made."""


@pytest.mark.usefixtures("processor")
@settings(max_examples=examples(40, 150))
@given(WRITES, st.booleans())
def test_a_batch_is_its_transaction(writes: list[tuple[list[Step], str]], small: bool) -> None:
    patch = pytest.MonkeyPatch()
    if small:
        patch.setattr(module, "RUNS_MAX", 1)
        patch.setattr(module, "RUN_ROWS_MAX", 2)
    try:
        _run(writes)
    finally:
        patch.undo()


def _run(writes: list[tuple[list[Step], str]]) -> None:
    space, model, recent = MemorySpace(), dict[bytes, bytes](), RecentRows()
    for steps, end in writes:
        rows = dict(model)

        def write(tx: Transaction, steps: list[Step] = steps, rows: dict[bytes, bytes] = rows, end: str = end) -> None:
            batch = Batch(tx, recent)
            for step in steps:
                _do(batch, rows, step)
            batch.end()
            if end == "not made":
                raise Failed

        try:
            space.write(write)
        except Failed:
            recent.forget()
        else:
            model = rows
    with space.read() as tx:
        assert dict(tx.scan(KeyRange(b"", None))) == model


def _do(batch: Batch, rows: dict[bytes, bytes], step: Step) -> None:
    match step:
        case Put(key, value):
            batch.put(key, value)
            rows[key] = value
        case Delete(key):
            assert batch.delete(key) is (rows.pop(key, None) is not None)
        case DeleteRange(keys, limit):
            gone = sorted(filter(keys.holds, rows))[:limit]
            assert batch.delete_range(keys, limit) == len(gone)
            for key in gone:
                del rows[key]
        case TakenBack(steps):
            failed = dict(rows)
            with suppress(RuntimeError), batch.command():
                for inner in steps:
                    _do(batch, failed, inner)
                raise RuntimeError
        case Look(keys, reverse):
            found = sorted(((key, value) for key, value in rows.items() if keys.holds(key)), reverse=reverse)
            assert list(batch.scan(keys, reverse=reverse)) == found
            assert list(batch.keys(keys, reverse=reverse)) == [key for key, _ in found]
            assert batch.get_many(KEYS) == [rows.get(key) for key in KEYS]
