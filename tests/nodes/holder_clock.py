"""The clock of a machine that waits for a lease of backups whose holder lives."""

from __future__ import annotations

from collections.abc import Callable

from millpond.nodes.backups.lease import LEASE_SECONDS, BackupLease
from tests.harness.interleaving.stores import PassingClock


class HolderLives(PassingClock):
    """The clock of a machine that waits for a lease: its holder goes on meanwhile, on another machine."""

    __slots__ = ("lease",)

    def __init__(self, now: int, lease: BackupLease) -> None:
        super().__init__(now)
        self.lease = lease

    def _pass(self, holds: Callable[[], bool], due: float | None) -> bool:
        if self.monotonic() > LEASE_SECONDS / 2:
            self.lease.confirm()
        return super()._pass(holds, due)
