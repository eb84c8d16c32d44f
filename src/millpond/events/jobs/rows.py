"""The rows of jobs in a pond's space, or with streams that machines share: see `shared_jobs.py`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from millpond.events import shared_jobs
from millpond.events.keyspaces import CLIENT, CLIENT_DAY, QUEUE
from millpond.events.names import queue_part
from millpond.events.shared_jobs import CLAIM, CLIENT_DAYS, HoldsJobs, queues_full
from millpond.kernel.keys import KeyRange
from millpond.kernel.scans import put_rows

if TYPE_CHECKING:
    from millpond.events.protocol import StreamStore
    from millpond.events.shared_jobs import Claim, Claims, QueueRows
    from millpond.kernel.space import Space, Transaction

__all__ = ("SpaceClaims", "SpaceQueues", "job_rows")

_FORGOTTEN_AT_ONCE = 2


def job_rows(space: Space, store: StreamStore) -> tuple[QueueRows, Claims]:
    """The rows of jobs of a pond: where its streams are, if machines share those; else in its space."""
    if isinstance(store, HoldsJobs):
        return store.job_rows
    return SpaceQueues(space), SpaceClaims(space)


class SpaceQueues:
    """Queues in a space."""

    def __init__(self, space: Space) -> None:
        self._space = space

    def get(self, name: str) -> bytes | None:
        """See `QueueRows.get`."""
        with self._space.read() as tx:
            return tx.get(_queue_key(name))

    def swap(self, name: str, before: bytes | None, row: bytes) -> bool:
        """See `QueueRows.swap`."""
        key = _queue_key(name)

        def change(tx: Transaction) -> bool:
            if tx.get(key) != before:
                return False
            if (
                before is None
                and sum(1 for _ in islice(tx.keys(QUEUE.range()), shared_jobs.QUEUES_MAX)) == shared_jobs.QUEUES_MAX
            ):
                raise queues_full()
            tx.put(key, row)
            return True

        return self._space.write(change)

    def delete(self, name: str) -> None:
        """See `QueueRows.delete`."""
        self._space.write(lambda tx: tx.delete(_queue_key(name)))

    def list(self, after: str | None, limit: int) -> list[bytes]:
        """See `QueueRows.list`."""
        keys = QUEUE.range()
        if after is not None:
            keys = KeyRange(_queue_key(after) + b"\x00", keys.stop)
        with self._space.read() as tx:
            return [row for _, row in islice(tx.scan(keys), limit)]


class SpaceClaims:
    """Claims in a space, whose one process settles them in turns of its own."""

    def __init__(self, space: Space) -> None:
        self._space = space

    def claim(self, queue: str, drawn: Mapping[str, Claim]) -> dict[str, Claim]:
        """See `Claims.claim`."""
        return self._space.write(lambda tx: _claim(tx, queue, drawn))

    def take(self, queue: str, jobs: Iterable[str], holder: str) -> set[str]:
        """See `Claims.take`."""
        return set(jobs)

    def give_back(self, queue: str, jobs: Iterable[str]) -> None:
        """See `Claims.give_back`."""

    def confirm(self, queue: str, claims: Mapping[str, Claim]) -> None:
        """See `Claims.confirm`."""
        rows: Sequence[tuple[bytes, bytes]] = [
            (_client_key(queue, client), CLAIM.encode(claim)) for client, claim in claims.items()
        ]
        self._space.write(lambda tx: put_rows(tx, rows))


def _claim(tx: Transaction, queue: str, drawn: Mapping[str, Claim]) -> dict[str, Claim]:
    """The claims that hold: those that were there, or else new ones; as many old ones, and more, are forgotten."""
    claims: dict[str, Claim] = {}
    for client, new in drawn.items():
        row = tx.get(_client_key(queue, client))
        claim = new if row is None else CLAIM.decode(row)
        if row is not None and claim.day < new.day - CLIENT_DAYS:
            tx.delete(CLIENT_DAY.pack(claim.day, queue_part(queue), queue_part(client)))
            claim = new
        if claim is new:
            tx.put(_client_key(queue, client), CLAIM.encode(new))
            tx.put(CLIENT_DAY.pack(new.day, queue_part(queue), queue_part(client)), b"")
        claims[client] = claim
    today = max((claim.day for claim in drawn.values()), default=0)
    _forget(tx, today - CLIENT_DAYS, _FORGOTTEN_AT_ONCE * len(drawn))
    return claims


def _forget(tx: Transaction, before: int, limit: int) -> None:
    if before <= 0:
        return
    for key in list(islice(tx.keys(CLIENT_DAY.range((0,), (before,))), limit)):
        _, *client = CLIENT_DAY.unpack(key)
        tx.delete(CLIENT.pack(*client))
        tx.delete(key)


def _queue_key(name: str) -> bytes:
    return QUEUE.pack(queue_part(name))


def _client_key(queue: str, client: str) -> bytes:
    return CLIENT.pack(queue_part(queue), queue_part(client))
