"""The keys that changes touched, against a dictionary of sets."""

from __future__ import annotations

import tempfile

import lmdb
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.maps.shard import changed_keys
from millpond.maps.shard.changed_keys import ChangedKeys

KEYS = st.none() | st.sets(st.binary(min_size=1, max_size=3), max_size=7)
CHANGES = st.lists(st.tuples(KEYS, st.integers(0, 12)), max_size=12)


@pytest.mark.usefixtures("processor")
@given(CHANGES)
def test_what_was_touched_since_a_version_is_all_of_it_or_not_known(
    changes: list[tuple[set[bytes] | None, int]],
) -> None:
    model: dict[int, set[bytes] | None] = {}
    forgotten = 0
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setattr(changed_keys, "_PIECE_KEYS", 3)
        patch.setattr(changed_keys, "VERSIONS_MAX", 8)
        with lmdb.open(folder, max_dbs=2, sync=False) as env:
            table = ChangedKeys()
            for version, (keys, forget) in enumerate(changes, 1):
                forget = min(forget, version - 1)
                with env.begin(write=True) as tx:
                    table.open_tables(env, tx, create=True)
                    table.write(
                        tx, version, None if keys is None else pa.array(sorted(keys), pa.binary()), forget=forget
                    )
                model[version] = keys
                forgotten = max(forgotten, forget, version - 8)
            last = len(changes)
            with env.begin() as tx:
                for since in range(last + 1):
                    touched = [model[version] for version in range(since + 1, last + 1)]
                    found = table.since(tx, since, last)
                    if since < forgotten or None in touched:
                        assert found is None
                    else:
                        assert found is not None
                        assert set(found.to_pylist()) == set().union(*(keys for keys in touched if keys is not None))


def test_a_table_that_grew_too_large_lists_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changed_keys, "BYTES_MAX", 20_000)
    with tempfile.TemporaryDirectory() as folder, lmdb.open(folder, max_dbs=2, sync=False) as env:
        table = ChangedKeys()
        for version in range(1, 4):
            with env.begin(write=True) as tx:
                table.open_tables(env, tx, create=True)
                table.write(tx, version, pa.array([b"%020d" % number for number in range(1_000)], pa.binary()))
        with env.begin() as tx:
            assert table.since(tx, 1, 3) is None, "the second found too much there"
            found = table.since(tx, 2, 3)
            assert found is not None, "the third is listed again"
            assert len(found) == 1_000
        with env.begin(write=True) as tx:
            table.write(tx, 4, pa.array([b"k"], pa.binary()), forget=3)
        with env.begin() as tx:
            found = table.since(tx, 3, 4)
            assert found is not None, "what was dropped leaves room"
            assert found.to_pylist() == [b"k"]


def test_a_shard_of_an_earlier_format_lists_nothing() -> None:
    assert ChangedKeys().since(None, 0, 1) is None
    empty = ChangedKeys().since(None, 1, 1)
    assert empty is not None
    assert len(empty) == 0
