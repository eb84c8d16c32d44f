"""Every backend of streams keeps the one contract."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from millpond.clock import ManualClock
from millpond.events.embedded.rows import keys_of
from millpond.events.embedded.store import EmbeddedStore
from millpond.stores.lmdb.space import LmdbSpace
from millpond.stores.memory import MemorySpace
from tests.harness.contracts.stream_site import NOON, RULES
from tests.harness.contracts.streams import StreamContract

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from millpond.events.names import StreamName
    from millpond.events.protocol import StreamStore
    from millpond.kernel.space import Space, Transaction


@dataclass
class EmbeddedSite:
    """Stores over one space; each of them over a space of its own would find what others wrote, as processes do."""

    space: Space
    clock: ManualClock = field(default_factory=lambda: ManualClock(now=NOON))
    stores: list[EmbeddedStore] = field(default_factory=list)

    def open(self) -> StreamStore:
        self.stores.append(EmbeddedStore(self.space, self.clock, RULES))
        return self.stores[-1]

    def damage(self, stream: StreamName) -> None:
        def change(tx: Transaction) -> None:
            for key, row in list(tx.scan(keys_of(stream).batches.range())):
                tx.put(key, row[:-1] + bytes([row[-1] ^ 1]))

        self.space.write(change)

    def close(self) -> None:
        for store in self.stores:
            store.close()
        self.space.close()


class TestLmdbStreams(StreamContract):
    @pytest.fixture
    def site(self, tmp_path: Path) -> Iterator[EmbeddedSite]:
        site = EmbeddedSite(LmdbSpace(tmp_path / "space", durable=False))
        yield site
        site.close()


class TestMemoryStreams(StreamContract):
    @pytest.fixture
    def site(self) -> Iterator[EmbeddedSite]:
        site = EmbeddedSite(MemorySpace())
        yield site
        site.close()
