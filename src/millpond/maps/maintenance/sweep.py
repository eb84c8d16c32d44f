"""Forgetting interned keys and values that no row uses any more, after rows were deleted.

Ids count up, so a byte for each of them says whether there is such an id, and whether a row uses it. The bytes lie in a
scratch file, and what goes in one change is bounded: memory does not grow with the ids.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial

import lmdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millpond.arrays.byte_columns import Bytes
from millpond.errors import Corrupt
from millpond.kernel.steps import step
from millpond.maps.shard.interned_tables import ROWS, InternedStore, TokenTable
from millpond.maps.shard.row_batches import table_columns
from millpond.maps.shard.shard import Shard
from millpond.stores.lmdb.environment import Environment
from millpond.stores.scratch import scratch_array

__all__ = ("sweep",)

ROWS_PER_READ = 65_536
TOKENS_PER_CHANGE, BYTES_PER_CHANGE = 8_192, 8 << 20
"""The strings that one change forgets: each may dirty a page of the hashes, which lie in no order."""

U8 = npt.NDArray[np.uint8]
U64 = npt.NDArray[np.uint64]
THERE, USED = np.uint8(1), np.uint8(2)


def sweep(shard: Shard) -> None:
    """Forget interned keys and values that no row uses. Call it while `shard.exclusive()`.

    Raises: `Corrupt` when a row names an id that is not there; `Unavailable` when the disk is full.
    """
    with ExitStack() as files:
        with shard.view() as view:
            if view.tx is None or not isinstance(view.store, InternedStore):
                return
            assert view.generation.env is not None
            states = _states(files, shard, view.store, view.tx, view.generation.env)
        for table, state, per_change in states:
            for tokens in _unused(state, per_change):
                shard.change(partial(table.forget, tokens=tokens), pa.array([], pa.binary()))
                step("maintenance.swept")


def _states(
    files: ExitStack, shard: Shard, store: InternedStore, tx: lmdb.Transaction, env: Environment
) -> list[tuple[TokenTable, U8, int]]:
    """Each table of strings with the state of each id, and how many strings go in one change."""
    kind = store.definition.kind
    states: list[tuple[TokenTable, U8, int]] = []
    for table, there in ((store.keys, kind.keyed), (store.values, kind.valued)):
        if there:
            state = scratch_array(files, shard.folder, table.last_id(tx) + 1, np.uint8)
            states.append((table, state, _per_change(tx, table)))
    for rows, stored in table_columns(tx, env, ROWS, store.dbs[ROWS], ROWS_PER_READ):
        for table, state, _ in states:
            _use(state, _heads(rows if table is store.keys else stored), table)
    for table, state, _ in states:
        for tokens, _ in table_columns(tx, env, table.texts_name, table.texts, ROWS_PER_READ):
            state[_heads(tokens)] |= THERE
    return states


def _per_change(tx: lmdb.Transaction, table: TokenTable) -> int:
    stat = tx.stat(table.texts)
    size = stat["psize"] * (stat["leaf_pages"] + stat["overflow_pages"])
    return min(TOKENS_PER_CHANGE, max(1, BYTES_PER_CHANGE * stat["entries"] // max(size, 1)))


def _unused(state: U8, per_change: int) -> Iterator[list[bytes]]:
    """The ids that are there and that no row uses, in pieces."""
    for low in range(0, len(state), ROWS_PER_READ):
        ids = low + np.flatnonzero(state[low : low + ROWS_PER_READ] == THERE)
        for start in range(0, len(ids), per_change):
            yield [number.to_bytes(8, "big") for number in ids[start : start + per_change].tolist()]


def _use(state: U8, ids: U64, table: TokenTable) -> None:
    if len(ids) and int(ids.max()) >= len(state):
        raise Corrupt("an interned id has no text", kind="interned_id", table=table.texts_name, id=f"{ids.max():016x}")
    state[ids] |= USED


def _heads(column: Bytes) -> U64:
    """The ids that the rows of a column begin with."""
    if len(column) and int(column.lengths.min()) < 8:
        raise Corrupt("an interned row is cut short", kind="row_key", wanted=8, found=int(column.lengths.min()))
    heads = column.data[column.offsets[:-1, None] + np.arange(8)]
    return heads.reshape(-1).view(">u8").astype(np.uint64)
