"""The content digest: the same for the same rows wherever they lie, another for any other rows."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from struct import pack
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from millpond.errors import Corrupt
from millpond.maps.model.columns import canonical_schema
from millpond.maps.model.definition import PLAIN_KINDS, Kind, MapDefinition, Scheme, parse_value_type
from millpond.maps.shard.digest import Digest, DigestCache, digest_of_rows, digest_of_view
from millpond.maps.shard.shard import Shard, ShardView
from tests.harness import strategies
from tests.harness.models import MapModel
from tests.harness.rows import canonical_of, encode_mixed
from tests.harness.scratch import scratch_folder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.harness.models import Row

MODULUS = 1 << 64
SCHEMES = (
    (Scheme.AUTO, 8), (Scheme.DIRECT, 8), (Scheme.HASH, 8), (Scheme.HASH, 4), (Scheme.LOOKUP, 8),
)  # fmt: skip


def stored(definition: MapDefinition, parts: Sequence[Sequence[Row]], gone: Sequence[Row] = ()) -> Digest:
    """The digest of a shard that took these parts, one after the other, and lost some rows again."""
    with scratch_folder() as folder, closing(Shard(folder, definition)) as shard:
        for part in parts:
            unique = MapModel(definition.kind)
            unique.put(list(part))
            rows = canonical_of(definition, unique.scan())
            shard.change(lambda tx, rows=rows: shard.put_rows(tx, rows, 0, overwrite=True), None)
        if gone:
            batch = canonical_of(definition, [(address, None) for address, _ in gone])
            batch = batch.select(list(definition.kind.address))
            shard.change(lambda tx: shard.delete_rows(tx, batch), None)
        with shard.view() as view:
            return digest_of_view(view)


def settled(definition: MapDefinition, parts: Sequence[Sequence[Row]]) -> list[Row]:
    model = MapModel(definition.kind)
    for part in parts:
        model.put(list(part))
    return model.scan()


@pytest.mark.usefixtures("processor")
@pytest.mark.sample(2)
@pytest.mark.parametrize("kind", PLAIN_KINDS)
@given(data=st.data())
def test_equal_rows_have_equal_digests(kind: Kind, data: st.DataObject) -> None:
    definition = data.draw(strategies.definitions(kind=kind))
    pools = data.draw(strategies.pools(definition))
    parts = data.draw(st.lists(strategies.rows(definition, pools), min_size=1, max_size=3))
    rows = settled(definition, parts)
    wanted = digest_of_rows(definition, canonical_of(definition, rows))
    scheme, hash_bytes = data.draw(st.sampled_from(SCHEMES))
    other = replace(definition, scheme=scheme, hash_bytes=hash_bytes, hash_bits=data.draw(st.sampled_from((64, 2))))
    shuffled = data.draw(st.permutations(rows))
    cut = data.draw(st.integers(0, len(rows)))
    assert stored(definition, parts) == wanted
    assert stored(other, [part for part in (shuffled[:cut], shuffled[cut:]) if part]) == wanted


@pytest.mark.usefixtures("processor")
@pytest.mark.sample(2)
@pytest.mark.parametrize("kind", PLAIN_KINDS)
@given(data=st.data())
def test_one_row_more_or_less_is_noticed(kind: Kind, data: st.DataObject) -> None:
    definition = data.draw(strategies.definitions(kind=kind))
    pools = data.draw(strategies.pools(definition))
    rows = settled(definition, [data.draw(strategies.rows(definition, pools))])
    lost = data.draw(st.sampled_from(rows))
    left = [row for row in rows if row[0] != lost[0]]
    assert stored(definition, [rows], gone=[lost]) == digest_of_rows(definition, canonical_of(definition, left))
    assert stored(definition, [rows], gone=[lost]) != stored(definition, [rows])


@pytest.mark.usefixtures("processor")
@pytest.mark.sample(2)
@pytest.mark.parametrize("kind", [kind for kind in PLAIN_KINDS if kind.valued])
@given(data=st.data())
def test_another_value_is_noticed(kind: Kind, data: st.DataObject) -> None:
    definition = data.draw(strategies.definitions(kind=kind))
    pools = data.draw(strategies.pools(definition))
    rows = settled(definition, [data.draw(strategies.rows(definition, pools))])
    at = data.draw(st.integers(0, len(rows) - 1))
    value = data.draw(st.sampled_from([value for pool in pools.values for value in pool]))
    assume(encoded(definition, value) != encoded(definition, rows[at][1]))
    other = [*rows[:at], (rows[at][0], value), *rows[at + 1 :]]
    assert stored(definition, [rows]) != stored(definition, [other])


def encoded(definition: MapDefinition, value: object) -> object:
    """A value's encoding, which distinguishes 0.0 from -0.0 and 1 from True, but not one NaN from another."""
    plain = MapDefinition(name="m", kind=Kind.STATE, incarnation="0", value=definition.value)
    cell = canonical_of(plain, [(("k",), value)]).column("value")[0].as_py()
    return repr(cell)


@pytest.mark.parametrize(
    "column", ["key", "effective_time", "key_start", "key_end", "start", "end", "value"], ids=lambda name: str(name)
)
def test_every_column_counts(column: str) -> None:
    kind = next(kind for kind in PLAIN_KINDS if column in canonical_schema(_plain(kind)).names)
    definition = _plain(kind)
    row = {"key": b"k", "effective_time": 1, "key_start": 2, "key_end": 3, "start": 4, "end": 5, "value": 6}
    batches = [
        pa.RecordBatch.from_pylist([{name: variant[name] for name in canonical_schema(definition).names}],
                                   schema=canonical_schema(definition))
        for variant in (row, row | {column: b"l" if column == "key" else 7})
    ]  # fmt: skip
    one, other = (digest_of_rows(definition, batch) for batch in batches)
    assert one != other
    assert one + other == other + one


def _plain(kind: Kind) -> MapDefinition:
    value = parse_value_type("long") if kind.valued else None
    return MapDefinition(name="m", kind=kind, incarnation="0" * 16, value=value)


@pytest.mark.parametrize("scheme", [Scheme.AUTO, Scheme.LOOKUP])
def test_the_type_of_a_value_counts(scheme: Scheme) -> None:
    definition = MapDefinition(name="m", kind=Kind.STATE, incarnation="0" * 16, scheme=scheme)
    samples = [1, 1.0, "1", True, b"1", None, "", 0.0, -0.0, math.nan, datetime(1970, 1, 1, 0, 0, 0, 1000, UTC)]
    values = [encode_mixed(pa.array([sample])) for sample in samples]
    digests = set()
    for value in values:
        rows = pa.RecordBatch.from_arrays([pa.array([b"k"]), value], schema=canonical_schema(definition))
        with scratch_folder() as folder, closing(Shard(folder, definition)) as shard:
            shard.change(lambda tx, rows=rows: shard.put_rows(tx, rows, 0, overwrite=True), None)
            with shard.view() as view:
                digests.add(digest_of_view(view))
    assert len(digests) == len(samples)


def test_values_that_change_places_are_noticed() -> None:
    definition = _plain(Kind.TEMPORAL_STATE)
    rows = [(("a", 1), 10), (("b", 2), 20)]
    for other in ([(("a", 1), 20), (("b", 2), 10)], [(("a", 2), 10), (("b", 1), 20)], [(("b", 1), 10), (("a", 2), 20)]):
        batches = [canonical_of(definition, some) for some in (rows, other)]
        assert digest_of_rows(definition, batches[0]) != digest_of_rows(definition, batches[1])


def test_nothing_comes_to_nothing() -> None:
    definition = _plain(Kind.STATE)
    with scratch_folder() as folder, closing(Shard(folder, definition)) as shard:
        with shard.view() as view:
            assert digest_of_view(view) == Digest()
        shard.change(lambda _: None, None)
        with shard.view() as view:
            assert DigestCache().digest(shard, view) == Digest()


@pytest.mark.parametrize("scheme", [Scheme.AUTO, Scheme.LOOKUP])
def test_a_state_is_read_once(scheme: Scheme) -> None:
    definition = replace(_plain(Kind.STATE), scheme=scheme)
    cache = DigestCache()
    with scratch_folder() as folder, closing(Shard(folder, definition)) as shard:
        put(shard, [(("a",), 1)])
        with shard.view() as view:
            first = cache.digest(shard, view)
            assert cache.digest(shard, view) is first
        put(shard, [(("b",), 2)])
        with shard.view() as view:
            second = cache.digest(shard, view)
        assert second.rows == 2
        assert second != first


def put(shard: Shard, rows: list[Row]) -> None:
    batch = canonical_of(shard.definition, rows)
    shard.change(lambda tx: shard.put_rows(tx, batch, 0, overwrite=True), None)


def test_an_id_without_its_text_is_an_error() -> None:
    definition = replace(_plain(Kind.STATE), scheme=Scheme.LOOKUP)
    with scratch_folder() as folder, closing(Shard(folder, definition)) as shard:
        put(shard, [(("a",), 1)])
        shard.change(lambda tx: tx.delete((1).to_bytes(8, "big"), db=shard.store.dbs["keys"]), None)
        with shard.view() as view, pytest.raises(Corrupt, match="keys"):
            digest_of_view(view)


def test_the_format_page_is_enough_to_compute_it() -> None:
    """In plain Python, from docs/format/clone.md alone."""

    def sums(words: list[int]) -> tuple[int, int]:
        low, high = 0x9E3779B97F4A7C15, 0xD1B54A32D192ED03
        for word in words:
            a = (low ^ word) * 0xBF58476D1CE4E5B9 % MODULUS
            low = (a ^ (a >> 33)) * 0xFF51AFD7ED558CCD % MODULUS
            low ^= low >> 29
            rotated = (word << 32 | word >> 32) % MODULUS
            b = (high ^ rotated) * 0x94D049BB133111EB % MODULUS
            high = (b ^ (b >> 31)) * 0xC4CEB9FE1A85EC53 % MODULUS
            high ^= high >> 32
        return low, high

    definition = _plain(Kind.TEMPORAL_STATE)
    rows = [(("a", -5), 1), (("bb" * 200, 7), -2)]
    halves = [
        sums([xxh3_64_intdigest(key.encode()), time % MODULUS, xxh3_64_intdigest(b"\x05" + pack(">q", value))])
        for (key, time), value in rows
    ]
    wanted = f"{sum(high for _, high in halves) % MODULUS:016x}{sum(low for low, _ in halves) % MODULUS:016x}"
    assert str(digest_of_rows(definition, canonical_of(definition, rows))) == wanted


def test_who_asks_at_once_is_answered_by_one_count(monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[ShardView] = []

    def count(view: ShardView) -> Digest:
        counted.append(view)
        return digest_of_view(view)

    monkeypatch.setattr("millpond.maps.shard.digest.digest_of_view", count)
    cache = DigestCache()
    with scratch_folder() as folder, closing(Shard(folder, _plain(Kind.STATE))) as shard:
        put(shard, [(("a",), 1)])

        def ask(_: int) -> Digest:
            with shard.view() as view:
                return cache.digest(shard, view)

        with ThreadPoolExecutor(8) as pool:
            answers = set(pool.map(ask, range(8)))
    assert len(answers) == len(counted) == 1
