"""The first rows of a pond: its id, and how long it retains merged parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from millpond.maps.model.keyspaces import PART_RETENTION, POND_ID

if TYPE_CHECKING:
    from millpond.kernel.space import Space, Transaction

__all__ = ("begin",)

_ID, _RETENTION = POND_ID.pack(), PART_RETENTION.pack()


def begin(space: Space, draw_id: Callable[[], str], retention_ms: int | None) -> int:
    """Give a pond what it needs before it is used, an id. How long it keeps parts, in ms."""

    def act(tx: Transaction) -> int:
        if tx.get(_ID) is None:
            tx.put(_ID, draw_id().encode())
        if retention_ms is not None:
            tx.put(_RETENTION, str(retention_ms).encode())
        return int(tx.get(_RETENTION) or b"0")

    with space.read() as tx:
        begun = tx.get(_ID) is not None
        retention = int(tx.get(_RETENTION) or b"0")
    if not begun or retention_ms not in (None, retention):
        retention = space.write(act)
    return retention
