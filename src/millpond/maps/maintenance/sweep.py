"""Forgetting interned keys and values that no row uses any more, after rows were deleted.

Ids count up, so a flag for each of them says whether a row uses it: a byte an id, however many rows there are.
"""

from __future__ import annotations

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

__all__ = ("sweep",)

ROWS_PER_READ = 65_536

U64 = npt.NDArray[np.uint64]
Flags = npt.NDArray[np.bool_]
Unused = tuple[TokenTable, list[bytes]]


def sweep(shard: Shard, tokens_per_change: int) -> None:
    """Forget interned keys and values that no row uses. Call it while `shard.exclusive()`."""
    with shard.view() as view:
        if view.tx is None or not isinstance(view.store, InternedStore):
            return
        assert view.generation.env is not None
        unused = _unused(view.store, view.tx, view.generation.env)
    for table, tokens in unused:
        for first in range(0, len(tokens), tokens_per_change):
            forget = partial(table.forget, tokens=tokens[first : first + tokens_per_change])
            shard.change(forget, pa.array([], pa.binary()))
            step("maintenance.swept")


def _unused(store: InternedStore, tx: lmdb.Transaction, env: Environment) -> list[Unused]:
    kind = store.definition.kind
    keys = np.zeros(store.keys.last_id(tx) + 1, np.bool_) if kind.keyed else None
    values = np.zeros(store.values.last_id(tx) + 1, np.bool_) if kind.valued else None
    for rows, stored in table_columns(tx, env, ROWS, store.dbs[ROWS], ROWS_PER_READ):
        if keys is not None:
            _use(keys, _heads(rows), store.keys)
        if values is not None:
            _use(values, _heads(stored), store.values)
    found = ((store.keys, keys), (store.values, values))
    return [(table, _tokens_without(table, tx, env, used)) for table, used in found if used is not None]


def _use(used: Flags, ids: U64, table: TokenTable) -> None:
    if len(ids) and int(ids.max()) >= len(used):
        raise Corrupt("an interned id has no text", kind="interned_id", table=table.texts_name, id=f"{ids.max():016x}")
    used[ids] = True


def _heads(column: Bytes) -> U64:
    """The ids that the rows of a column begin with."""
    if len(column) and int(column.lengths.min()) < 8:
        raise Corrupt("an interned row is cut short", kind="row_key", wanted=8, found=int(column.lengths.min()))
    heads = column.data[column.offsets[:-1, None] + np.arange(8)]
    return heads.reshape(-1).view(">u8").astype(np.uint64)


def _tokens_without(table: TokenTable, tx: lmdb.Transaction, env: Environment, used: Flags) -> list[bytes]:
    found: list[bytes] = []
    for tokens, _ in table_columns(tx, env, table.texts_name, table.texts, ROWS_PER_READ):
        ids = _heads(tokens)
        packed = ids[~used[ids]].astype(">u8").tobytes()
        found += [packed[at : at + 8] for at in range(0, len(packed), 8)]
    return found
