"""Damage to the rows of streams is found by `verify`."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from millpond.events.days import DAY_MS
from millpond.events.embedded.check import check_streams
from millpond.events.embedded.rows import keys_of
from millpond.events.keyspaces import BATCH, DUE, HEAD, SEGMENT
from millpond.kernel.keys import Prefix
from millpond.kernel.space import Transaction
from millpond.stores.memory import MemorySpace
from tests.contracts.test_streams import EmbeddedSite
from tests.harness.contracts.stream_site import NOON, STREAM, TODAY, append, compress, index_of


def _without_first(prefix: Prefix) -> Callable[[Transaction], object]:
    return lambda tx: tx.delete(next(iter(tx.keys(prefix.range()))))


def _flipped(prefix: Prefix) -> Callable[[Transaction], object]:
    def change(tx: Transaction) -> None:
        key, row = next(iter(tx.scan(prefix.range())))
        tx.put(key, row[:-3] + bytes([row[-3] ^ 4]) + row[-2:])

    return change


@pytest.mark.parametrize(
    "damage",
    [
        _without_first(HEAD), _without_first(SEGMENT), _without_first(BATCH), _without_first(DUE),
        _flipped(HEAD), _flipped(BATCH), lambda tx: tx.put(DUE.pack("compress", 5, "q", "x"), b""),
        lambda tx: tx.put(keys_of(STREAM).batches.pack(1 << 62), b"\x01"),
    ],
    ids=["no head", "no segment", "no batch", "no due row", "other head", "other batch", "stray work", "stray batch"],
)  # fmt: skip
def test_damage_is_found(damage: Callable[[Transaction], object]) -> None:
    site = EmbeddedSite(MemorySpace())
    store = site.open()
    for day in range(3):
        append(store, "a", "b", time_ms=NOON + day * DAY_MS)
        site.clock.now += DAY_MS
    compress(store, STREAM, index_of(store).segments[:1])
    assert store.expire(STREAM, TODAY) == 2
    assert check_streams(site.space).ok
    site.space.write(damage)
    report = check_streams(site.space)
    assert report.problems and "restore" in report.problems[0].remedy
