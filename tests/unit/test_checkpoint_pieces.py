"""The pieces of checkpoints: all rows, cut where their keys say, whatever was taken over from an earlier one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.kernel.keys import EVERYTHING
from millpond.stores import memory
from millpond.stores.bucket_space import checkpoints
from millpond.stores.bucket_space.checkpoints import Piece, pieces_of
from millpond.stores.bucket_space.forms import encode_rows
from millpond.stores.memory import Rows

if TYPE_CHECKING:
    from collections.abc import Iterator

KEYS = st.integers(0, 400).map(lambda number: b"%04d" % number)
VALUES = st.one_of(st.none(), st.binary(max_size=9))


@pytest.fixture(autouse=True, scope="module")
def small() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory, "BLOCK_ROWS_MAX", 8)
        patch.setattr(checkpoints, "PIECE_BYTES_MIN", 100)
        patch.setattr(checkpoints, "PIECE_BYTES_MAX", 400)
        patch.setattr(checkpoints, "_CUT_MASK", 0x7)
        yield


def by_first(pieces: list[Piece]) -> dict[bytes, Piece]:
    return {piece.first: piece for piece in pieces}


@pytest.mark.usefixtures("processor")
@given(st.lists(st.dictionaries(KEYS, VALUES, max_size=60), min_size=1, max_size=6))
def test_pieces_that_are_taken_over_are_those_that_would_be_made(steps: list[dict[bytes, bytes | None]]) -> None:
    rows, last = Rows(), dict[bytes, Piece]()
    for changes in steps:
        rows = rows.changed(sorted(changes.items()))
        pieces = list(pieces_of(rows, last))
        assert [piece.id for piece in pieces] == [piece.id for piece in pieces_of(rows, {})]
        assert b"".join(piece.content() for piece in pieces) == encode_rows(rows.scan(EVERYTHING))
        last = by_first(pieces)


def test_a_change_costs_the_pieces_that_it_meets() -> None:
    rows = Rows.of((b"%04d" % number, b"value") for number in range(400))
    before = list(pieces_of(rows, {}))
    assert len(before) > 10
    after = list(pieces_of(rows.changed([(b"0200", b"other")]), by_first(before)))
    assert len(after) == len(before)
    assert 1 <= sum(piece not in before for piece in after) <= 3
