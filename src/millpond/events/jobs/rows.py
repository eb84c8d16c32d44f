"""The rows of jobs in a pond's space, or with streams that machines share: see `shared_jobs.py`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

from millpond.events import shared_jobs
from millpond.events.embedded.read import read_page
from millpond.events.embedded.store import EmbeddedStore
from millpond.events.jobs.stored_jobs import stored_clients
from millpond.events.jobs.turns import TurnedClaims
from millpond.events.keyspaces import CLIENT, CLIENT_DAY, QUEUE
from millpond.events.names import queue_part
from millpond.events.protocol import PAGE_BYTES
from millpond.events.shared_jobs import CLAIM, CLIENT_DAYS, HoldsJobs, Settled, queues_full
from millpond.kernel.keys import KeyRange
from millpond.kernel.scans import put_rows

if TYPE_CHECKING:
    from millpond.clock import Clock
    from millpond.events.event import Appended, EventBatch
    from millpond.events.names import StreamName
    from millpond.events.protocol import StreamStore
    from millpond.events.shared_jobs import Claim, Claims, QueueRows
    from millpond.kernel.space import Space, Transaction

__all__ = ("SpaceClaims", "SpaceQueues", "job_rows")

_FORGOTTEN_AT_ONCE = 2


def job_rows(space: Space, store: StreamStore, clock: Clock) -> tuple[QueueRows, Claims]:
    """The rows of jobs of a pond: in its space, or where its streams are, if that is elsewhere."""
    if isinstance(store, EmbeddedStore):
        return SpaceQueues(space), SpaceClaims(store)
    assert isinstance(store, HoldsJobs)
    queues, claims = store.job_rows
    return queues, TurnedClaims(claims, store, clock)


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
    """Claims in the space of the streams: a claim and its events are put in one transaction, so one settles it."""

    def __init__(self, store: EmbeddedStore) -> None:
        self._store = store

    def settle(
        self, stream: StreamName, drawn: Mapping[str, Claim], batch_of: Callable[[Mapping[str, Claim]], EventBatch]
    ) -> Settled:
        """See `Claims.settle`."""
        expected = batch_of(drawn).check()  # as far as none is there: then nobody waits until it is made

        def change(tx: Transaction, append: Callable[[EventBatch], Appended]) -> Settled:
            claims = _claimed(tx, stream.queue, drawn)
            settled = {client: replace(claim, stored=True) for client, claim in claims.items()}
            put_rows(
                tx, [
                    (_client_key(stream.queue, client), CLAIM.encode(claim)) for client, claim in settled.items()
                    if not claims[client].stored
                ]
            )  # fmt: skip
            # Rows that were claimed before their events were appended, as they once were.
            old = {client: claim for client, claim in claims.items() if not claim.stored and claim != drawn[client]}
            for client in stored_clients(
                lambda stream, after: read_page(tx, stream, after, PAGE_BYTES), stream.queue, old
            ):
                claims[client] = settled[client]
            batch = expected if claims == drawn else batch_of(claims).check()
            batches = [batch] if batch.events else []
            return Settled(settled, batches, [append(batch) for batch in batches])

        return self._store.append_within(change)


def _claimed(tx: Transaction, queue: str, drawn: Mapping[str, Claim]) -> dict[str, Claim]:
    """The claims that hold: those that were there, or else new ones; as many old ones, and more, are forgotten."""
    claims: dict[str, Claim] = {}
    for client, new in drawn.items():
        row = tx.get(_client_key(queue, client))
        claim = new if row is None else CLAIM.decode(row)
        if row is not None and claim.day < new.day - CLIENT_DAYS:
            tx.delete(CLIENT_DAY.pack(claim.day, queue_part(queue), queue_part(client)))
            claim = new
        if claim is new:
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
