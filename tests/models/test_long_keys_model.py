"""Keys that are longer than LMDB's: a space gives the rows of a sorted dict, whatever the keys share or clash in."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from millpond.errors import Corrupt
from millpond.kernel.keys import EVERYTHING, KeyRange
from millpond.kernel.space import KEY_BYTES_MAX
from millpond.stores.lmdb import long_keys
from millpond.stores.lmdb.long_keys import GROUP_BYTES, PLAIN_KEY_BYTES_MAX, rows_in, with_row, without_row
from millpond.stores.lmdb.space import LmdbSpace
from tests.rings.sampling import examples

if TYPE_CHECKING:
    from millpond.kernel.space import Transaction

# Groups that are neighbours, one whose bytes have no successor, and keys just beside all of them.
GROUPS = tuple(byte * GROUP_BYTES for byte in (b"\x01", b"\x02", b"\xff"))
GROUPED = st.builds(
    lambda group, tail, filled: group + filled * b"\x07" + tail,
    st.sampled_from((*GROUPS, GROUPS[0][:-1] + b"\x02")),
    st.lists(st.sampled_from([0, 1, 254, 255]), max_size=3).map(bytes),
    st.sampled_from((0, 12, 14, 15, 16, 40, KEY_BYTES_MAX - GROUP_BYTES - 3)),
)
SHORTER = st.builds(lambda group, size: group[:size], st.sampled_from(GROUPS), st.sampled_from((1, 2, 493, 494, 495)))
KEYS = st.one_of(GROUPED, GROUPED, SHORTER, st.binary(min_size=1, max_size=2))
BOUNDS = st.one_of(KEYS, KEYS.map(lambda key: key + b"\x00"), KEYS.map(lambda key: key[:-1]), st.just(b""))
ROWS = st.dictionaries(KEYS, st.binary(max_size=3), max_size=30)


@pytest.mark.usefixtures("processor")
@pytest.mark.parametrize("hash_bits", [0, 1, 128])
@settings(max_examples=examples(15, 60), deadline=None)
@given(
    rows=ROWS,
    edits=st.lists(st.tuples(KEYS, st.one_of(st.none(), st.binary(max_size=3))), max_size=10),
    start=BOUNDS,
    stop=st.one_of(st.none(), BOUNDS),
    scanned=st.dictionaries(KEYS, KEYS, max_size=4),
)
@example(
    rows={GROUPS[2] + bytes(20): b"a", GROUPS[2] + bytes(16): b"b", GROUPS[2] + b"\xff": b"c", GROUPS[2]: b""},
    edits=[], start=GROUPS[2] + bytes(17), stop=None, scanned={},
)  # fmt: skip
def test_rows_are_those_of_a_sorted_dict(
    rows: dict[bytes, bytes], edits: list[tuple[bytes, bytes | None]], start: bytes, stop: bytes | None,
    scanned: dict[bytes, bytes], hash_bits: int, tmp_path_factory: pytest.TempPathFactory,
) -> None:  # fmt: skip
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(long_keys, "HASH_BITS", hash_bits)
        space = LmdbSpace(tmp_path_factory.mktemp("space"), durable=False)
        model = dict(rows)

        def change(tx: Transaction) -> None:
            for key, value in rows.items():
                tx.put(key, value)
            for key, value in edits:
                if value is None:
                    assert tx.delete(key) == (model.pop(key, None) is not None)
                else:
                    tx.put(key, value)
                    model[key] = value
                assert tx.get(key) == value

        space.write(change)
        for keys in (EVERYTHING, KeyRange(start, stop)):
            expected = sorted((key, value) for key, value in model.items() if keys.holds(key))
            with space.read() as tx:
                assert list(tx.scan(keys)) == expected
                assert list(tx.scan(keys, reverse=True)) == expected[::-1]
                assert [tx.get(key) for key in rows] == [model.get(key) for key in rows]
        for reverse in (False, True):
            delete_while_scanning(space, model, scanned, reverse=reverse)
        space.close()


def delete_while_scanning(
    space: LmdbSpace, model: dict[bytes, bytes], scanned: dict[bytes, bytes], *, reverse: bool
) -> None:
    """Delete another key wherever a key of `scanned` is met: the keys met from then on are those left."""
    left = dict(model)

    def change(tx: Transaction) -> None:
        seen = []
        for key, value in tx.scan(EVERYTHING, reverse=reverse):
            assert left[key] == value
            seen.append(key)
            if key in scanned:
                tx.delete(scanned[key])
                left.pop(scanned[key], None)
        assert seen == sorted(set(seen), reverse=reverse)
        assert left.keys() <= set(seen)
        raise ZeroDivisionError  # for the next turn everything stays

    with pytest.raises(ZeroDivisionError):
        space.write(change)


def test_a_place_without_rows_is_removed(tmp_path_factory: pytest.TempPathFactory) -> None:
    space = LmdbSpace(tmp_path_factory.mktemp("space"), durable=False)
    key = GROUPS[0] + bytes(100)
    space.write(lambda tx: tx.put(key, b"v"))
    assert space.write(lambda tx: tx.delete(key))
    assert space._environment is not None
    assert space._environment.handle.stat()["entries"] == 0
    space.close()


def test_a_place_is_read_as_it_is_drawn() -> None:
    """As `docs/format/space.md` says it, by hand."""
    one, two = bytes(511), b"\x01" * 600
    content = with_row(with_row(None, two, b"2"), one, b"11")
    assert content == b"\x01\xff\x00\x00\x00\x02" + one + b"11" + b"\x02\x58\x00\x00\x00\x01" + two + b"2"
    assert without_row(content, one) == with_row(None, two, b"2")
    assert without_row(with_row(None, one, b""), one) is None


@pytest.mark.parametrize("content", [b"\x00", b"\x00\x01\x00\x00\x00\x00a", b"\x02\x00\x00\x00\x00\x00" + bytes(511)])
def test_a_damaged_place_is_corrupt(content: bytes) -> None:
    with pytest.raises(Corrupt):
        list(rows_in(content))


def test_the_longest_plain_key_and_the_shortest_long_one_are_neighbours() -> None:
    assert PLAIN_KEY_BYTES_MAX + 1 == len(long_keys.bucket_key(bytes(PLAIN_KEY_BYTES_MAX + 1))) == 511
