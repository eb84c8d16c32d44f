"""The log of an open pond, `pond.log`: what others follow, and how a replica follows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from numbers import Integral, Real
from pathlib import Path

from millpond.argument_types import need_count, need_list, need_type
from millpond.errors import Conflict
from millpond.kernel.space import Transaction
from millpond.maps.layered.head import Layers
from millpond.maps.layered.maintenance import carry_out
from millpond.maps.loads.load import AppliedWait, wait_applied, wait_for
from millpond.maps.loads.loading import Loading
from millpond.maps.loads.maintenance_orders import ORDERS, order_maintenance
from millpond.maps.log.log import Entry, entries_after, head_of, newest_first
from millpond.maps.log.queue import applied_position
from millpond.maps.model.catalogue import find_map
from millpond.maps.model.keyspaces import POND_ID

__all__ = ("PondLog",)


class PondLog:
    """The log of a pond: its entries, and the ways to append one.

    `followed` is called with an entry of the primary after it was entered here: for its effects on what is open.
    """

    def __init__(self, loading: Loading, followed: Callable[[Entry], None]) -> None:
        self._loading, self._followed = loading, followed

    def __repr__(self) -> str:
        return f"PondLog({str(self._loading.folder)!r})"

    @property
    def pond_id(self) -> str:
        """The id of the pond: the same on all nodes that hold it."""
        with self._loading.space.read() as tx:
            return (tx.get(POND_ID.pack()) or b"").decode()

    def join(self, pond_id: str) -> None:
        """Take over the id of the pond to follow.

        Raises: `Conflict`, kind `pond_other`, when this pond has entries of its own.
        """

        def act(tx: Transaction) -> None:
            if tx.get(POND_ID.pack()) == pond_id.encode():
                return
            if head_of(tx).position:
                raise Conflict(
                    "the node holds another pond", kind="pond_other", found=(tx.get(POND_ID.pack()) or b"").decode(),
                    wanted=pond_id, hint="name the nodes of its own pond in `nodes.urls`; or, to give up all it holds, "
                    "make it a copy: millpond repair URL --from URL",
                )  # fmt: skip
            tx.put(POND_ID.pack(), pond_id.encode())

        self._loading.space.write(act)

    def position(self) -> tuple[int, str]:
        """The last position of the log and its chain; `(0, "")` for a new pond."""
        with self._loading.space.read() as tx:
            head = head_of(tx)
        return head.position, head.chain

    def entries(self, after: int, limit: int = 1000) -> list[Entry]:
        """The entries that follow a position, at most `limit`.

        Raises: `NotFound`, kind `log_trimmed`, when the next one is no longer retained.
        """
        need_type("after", after, Integral)
        need_count("limit", limit)
        with self._loading.space.read() as tx:
            return entries_after(tx, after, limit)

    def newest(self, limit: int) -> list[Entry]:
        """The last entries that are retained, the newest first."""
        need_count("limit", limit)
        with self._loading.space.read() as tx:
            return list(islice(newest_first(tx), limit))

    def enter(self, entry: Entry, parts: Mapping[str, Path]) -> None:
        """Follow the primary: append its next entry; the folders of its parts are checked and moved.

        An entry that the log has already changes nothing.

        Raises: `Conflict`, kind `log_gap` or `log_forked`; `Invalid` when a part is missing or is another one;
        `Unavailable` when the disk is full, or the part is still queued.
        """
        with self._loading.writing():
            if self._loading.loads.follow(entry, parts):
                self._followed(entry)

    def order_maintenance(self, name: str, what: str, before_ms: int) -> Entry:
        """Append the order to `condense` or `retain` a map; it is carried out after the entries before it, of a layered
        map at once.

        Raises: `NotFound`; `Invalid` for another kind of maintenance.
        """
        layers = None if what not in ORDERS else self._layers(name)
        if layers is not None:
            return carry_out(self._loading, layers, what, before_ms)
        return order_maintenance(self._loading, name, what, before_ms)

    def _layers(self, name: str) -> Layers | None:
        with self._loading.space.read() as tx:
            return self._loading.layers_of(find_map(tx, name).name)

    def applied(self, name: str) -> int:
        """Every entry about this map up to this position has been applied, or its part was quarantined.

        Raises: `NotFound`.
        """
        with self._loading.space.read() as tx:
            return applied_position(tx, find_map(tx, name).name)

    def wait_applied(self, position: int, maps: Sequence[str] | None = None, timeout: float = 600.0) -> None:
        """Wait until the entries up to a position are applied, about these maps or all; `timeout` in seconds.

        Raises: `Unavailable`, kind `merge_slow`; `Corrupt`, kind `part_quarantined`, when a part of the entry at this
        position was quarantined.
        """
        _check_wait(position, maps, timeout)
        wait_applied(self._loading, position, maps, timeout)

    def begin_wait(self, position: int, maps: Sequence[str] | None = None) -> AppliedWait:
        """The same, for those who hold no thread meanwhile; in a served pond."""
        _check_wait(position, maps)
        return AppliedWait(self._loading, position, maps)

    def wait_position(self, position: int, timeout: float) -> bool:
        """Wait until the log has come to a position, at most so many seconds; True when it has."""
        _check_wait(position, None, timeout)
        return wait_for(self._loading.loads, lambda: self.position()[0] >= position, timeout)

    def announce(self) -> None:
        """Wake those who wait for an entry, or for one to be applied: the space was changed past this log."""
        self._loading.loads.announce()


def _check_wait(position: object, maps: object, timeout: object = 0) -> None:
    need_type("position", position, Integral)
    need_type("timeout", timeout, Real)
    if maps is not None:
        need_list("maps", maps, str)
