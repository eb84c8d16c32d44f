"""The content digest of a map: equal rows give equal digests, however and wherever they are stored.

Two nodes that hold the same rows agree on it, whatever the scheme, the layout of the file, and the order and the
parts in which the rows came; one row more, less, or other in any column or in the type of its value, and they differ.

A row becomes 64-bit words (the hash of its key, its numbers and times, the hash of `<VALUE_TYPE><VALUE>`), the words
become two numbers of 64 bits, mixed with different constants, and the digest is the sum of each over all rows, modulo
2⁶⁴: a sum does not depend on the order. It finds mistakes and damage. It is no proof against somebody who may choose
the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millpond.arrays.compiled import kernel
from millpond.arrays.xxh3 import hash_keys
from millpond.errors import Corrupt
from millpond.kernel.cache import Cache
from millpond.kernel.turns import Turns
from millpond.maps.model.address import times_of
from millpond.maps.model.aggregation import Aggregation, Rule
from millpond.maps.model.definition import MapDefinition
from millpond.maps.model.values import encode_values
from millpond.maps.shard.interned_tables import ROWS, InternedStore, TokenTable
from millpond.maps.shard.row_batches import table_columns
from millpond.maps.shard.shard import Shard, ShardView
from millpond.stores.lmdb.environment import Environment
from millpond.stores.scratch import scratch_array

__all__ = ("Digest", "DigestCache", "digest_of_rows", "digest_of_view")

U64 = npt.NDArray[np.uint64]
ROWS_PER_BATCH = 65_536
SHARDS_MAX = 10_000
"""Shards whose digest is remembered."""
_MASK = (1 << 64) - 1
_LOW, _HIGH = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD1B54A32D192ED03)
_STEP_LOW, _STEP_HIGH = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_MIX_1, _MIX_2 = np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53)


@dataclass(frozen=True, slots=True)
class Digest:
    """A digest of some rows: their number, and both sums.

    >>> Digest(1, 2, 3) + Digest(2, 2**64 - 1, 0)
    Digest(rows=3, low=1, high=3)
    >>> str(Digest(1, 2, 3))
    '00000000000000030000000000000002'
    """

    rows: int = 0
    low: int = 0
    high: int = 0

    def __add__(self, other: Digest) -> Digest:
        return Digest(self.rows + other.rows, (self.low + other.low) & _MASK, (self.high + other.high) & _MASK)

    def __str__(self) -> str:
        return f"{self.high:016x}{self.low:016x}"


@kernel
def _mix_in(low, high, words):  # type: ignore[no-untyped-def]
    for i in range(len(words)):
        a = (low[i] ^ words[i]) * _STEP_LOW
        a = (a ^ (a >> np.uint64(33))) * _MIX_1
        low[i] = a ^ (a >> np.uint64(29))
        b = (high[i] ^ ((words[i] << np.uint64(32)) | (words[i] >> np.uint64(32)))) * _STEP_HIGH
        b = (b ^ (b >> np.uint64(31))) * _MIX_2
        high[i] = b ^ (b >> np.uint64(32))


def _digest_of_words(count: int, words: Sequence[U64]) -> Digest:
    low, high = np.full(count, _LOW), np.full(count, _HIGH)
    for word in words:
        _mix_in(low, high, word)
    return Digest(count, int(low.sum(dtype=np.uint64)), int(high.sum(dtype=np.uint64)))


def digest_of_rows(definition: MapDefinition, rows: pa.RecordBatch) -> Digest:
    """The digest of canonical rows."""
    words = [hash_keys(rows.column("key"))] if definition.kind.keyed else []
    words += [np.ascontiguousarray(column).view(np.uint64) for column in times_of(definition, rows)]
    if definition.kind.valued:
        values = rows.column("value")
        if definition.aggregation is not None:
            values = _without_chance(definition.aggregation, values)
        words.append(hash_keys(encode_values(values, definition.value).to_arrow()))
    return _digest_of_words(rows.num_rows, words)


def _without_chance(aggregation: Aggregation, values: pa.StructArray) -> pa.StructArray:
    """Values without the bytes of sketches that chance has a hand in: nodes that add the same have others."""
    columns = [
        pc.if_else(column.is_valid(), b"", None) if rule is Rule.QUANTILES else column
        for rule, column in zip(aggregation.rules, values.flatten(), strict=True)
    ]
    return pa.StructArray.from_arrays(columns, fields=list(values.type))


def digest_of_view(view: ShardView) -> Digest:
    """The digest of all rows of a map at one moment.

    Of interned strings, ids and hashes wait in files beside the shard: memory does not grow with the rows.

    Raises: `Corrupt` when the shard is damaged; `Unavailable` when the disk is full.
    """
    if view.tx is not None and isinstance(view.store, InternedStore):
        return _sum(_interned(view, view.store))
    definition = view.definition
    digest = _sum(digest_of_rows(definition, rows) for rows in view.read_rows(batch_rows=ROWS_PER_BATCH))
    return digest + _of_roll_up(definition)


def _of_roll_up(definition: MapDefinition) -> Digest:
    """The share of the bounds to which rows are rolled up: rows that come later are added by them."""
    if definition.aggregation is None or not (parts := definition.aggregation.rolled_up):
        return Digest()
    widths = hash_keys(pa.array([part.resolution.encode() for part in parts]))
    digest = _digest_of_words(len(parts), [np.array([part.before for part in parts]).view(np.uint64), widths])
    return replace(digest, rows=0)


def _sum(digests: Iterator[Digest]) -> Digest:
    total = Digest()
    for digest in digests:
        total += digest
    return total


# -- interned rows: each key and each value is hashed once --------------------------------------------


def _interned(view: ShardView, store: InternedStore) -> Iterator[Digest]:
    if ROWS not in store.dbs:
        return
    kind = store.definition.kind
    env = view.generation.env
    assert env is not None, "there is a table of rows"
    with ExitStack() as files:
        key_word = _token_words(files, view, env, store.keys) if kind.keyed else None
        value_word = _token_words(files, view, env, store.values) if kind.valued else None
        width = len(kind.address)
        for keys, values in table_columns(view.tx, env, ROWS, store.dbs[ROWS], ROWS_PER_BATCH):
            longs = keys.data.view(">u8").reshape(-1, width)
            words = [(longs[:, column] ^ np.uint64(1 << 63)).astype(np.uint64) for column in range(width)]
            if key_word is not None:
                words[0] = key_word(longs[:, 0])
            if value_word is not None:
                words.append(value_word(values.data.view(">u8")))
            yield _digest_of_words(len(longs), words)


def _token_words(
    files: ExitStack, view: ShardView, env: Environment, table: TokenTable
) -> Callable[[npt.NDArray[Any]], U64]:
    """From ids to the hashes of their strings, which are read once."""
    ids, hashes = _hashed_texts(files, view, env, table)

    def words(tokens: npt.NDArray[Any]) -> U64:
        sought = tokens.astype(np.uint64)
        positions = np.minimum(np.searchsorted(ids, sought), max(len(ids) - 1, 0))
        if len(ids) == 0 or not bool(np.all(ids[positions] == sought)):
            raise Corrupt("an interned id has no text", kind="interned_id", table=table.texts_name)
        return hashes[positions]

    return words


def _hashed_texts(files: ExitStack, view: ShardView, env: Environment, table: TokenTable) -> tuple[U64, U64]:
    tx = view.tx
    assert tx is not None, "there is a table of rows"
    count = 0 if table.texts is None else int(tx.stat(table.texts)["entries"])
    ids, hashes = (scratch_array(files, view.shard.folder, count, np.uint64) for _ in range(2))
    done = 0
    for keys, texts in table_columns(tx, env, table.texts_name, table.texts, ROWS_PER_BATCH) if count else ():
        ids[done : done + len(keys)] = keys.data.view(">u8")
        hashes[done : done + len(keys)] = hash_keys(texts.to_arrow())
        done += len(keys)
    return ids, hashes


# -- once for each state of a shard -------------------------------------------------------------------


class DigestCache:
    """The last digest of each shard. Concurrent requests wait for one computation."""

    def __init__(self) -> None:
        self._last: Cache[str, tuple[tuple[object, ...], Digest]] = Cache(SHARDS_MAX)
        self._turns = Turns()

    def digest(self, shard: Shard, view: ShardView) -> Digest:
        """The digest of what the view shows.

        Raises: `Corrupt` when the shard is damaged.
        """
        name, state = str(shard.folder), _state(view)
        with self._turns.of(name):
            last = self._last.get(name)
            if last is not None and last[0] == state:
                return last[1]
            digest = digest_of_view(view)
            self._last.put(name, (state, digest))
        return digest


def _state(view: ShardView) -> tuple[object, ...]:
    env = view.generation.env
    if env is None:
        return ()
    # Another file may have come to the same version in its own way: a version says nothing without its file.
    file = (env.path / "data.mdb").stat()
    return file.st_dev, file.st_ino, view.version
