"""Queues: rows of a pond's space that say which queues jobs may be submitted to.

A queue's definition is bytes in the words of the API that created it; here only its name and its size matter. A stream
may exist without its queue: Millpond's own events, and those of a queue that was deleted, can still be watched.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from millpond.errors import AlreadyExists, Invalid, NotFound, Unavailable
from millpond.events.keyspaces import QUEUE
from millpond.events.names import StreamName, queue_part
from millpond.json_forms import JsonForm
from millpond.kernel.keys import KeyRange
from millpond.shown import shown

if TYPE_CHECKING:
    from collections.abc import Callable

    from millpond.kernel.space import ReadTransaction, Space, Transaction

__all__ = ("DEFINITION_BYTES_MAX", "QUEUES_MAX", "Queue", "Queues")

QUEUES_MAX = 10_000
DEFINITION_BYTES_MAX = 64 * 1024


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue and its definition."""

    name: str
    definition: bytes = b""


_QUEUE = JsonForm(Queue)


class Queues:
    """The queues of a pond."""

    def __init__(self, space: Space) -> None:
        self._space = space

    def create(self, queue: Queue) -> None:
        """Create a queue.

        Raises:
            AlreadyExists: there is one of this name.
            Invalid: its name or its definition is not acceptable.
            Unavailable: there are as many as may be.
        """
        key = _checked_key(queue)

        def change(tx: Transaction) -> None:
            if tx.get(key) is not None:
                raise AlreadyExists(
                    "there is a queue of this name", kind="queue_exists", queue=shown(queue.name),
                    hint="update it, or name another",
                )  # fmt: skip
            if sum(1 for _ in islice(tx.keys(QUEUE.range()), QUEUES_MAX)) == QUEUES_MAX:
                raise Unavailable(
                    "there are as many queues as there may be", kind="queues_full", queues_max=QUEUES_MAX,
                    hint="delete some; a queue holds any number of job sets",
                )  # fmt: skip
            tx.put(key, _QUEUE.encode(queue))

        self._space.write(change)

    def update(self, name: str, changed: Callable[[Queue], Queue]) -> None:
        """Change the definition of a queue, by a function that may be called again.

        Raises:
            NotFound: there is no such queue.
            Invalid: the definition is not acceptable.
        """

        def change(tx: Transaction) -> None:
            queue = changed(_found(tx, name))
            tx.put(_checked_key(queue), _QUEUE.encode(queue))

        self._space.write(change)

    def delete(self, name: str) -> None:
        """Delete a queue, if it is there. Its streams stay until they expire."""
        self._space.write(lambda tx: tx.delete(_key(name)))

    def get(self, name: str) -> Queue:
        """The queue of that name.

        Raises:
            NotFound: there is none.
        """
        with self._space.read() as tx:
            return _found(tx, name)

    def list(self, after: str | None = None, *, limit: int) -> list[Queue]:
        """Some queues in the order of the space, from behind one that was listed."""
        keys = QUEUE.range()
        if after is not None:
            keys = KeyRange(_key(after) + b"\x00", keys.stop)
        with self._space.read() as tx:
            return [_QUEUE.decode(row) for _, row in islice(tx.scan(keys), limit)]


def _found(tx: ReadTransaction, name: str) -> Queue:
    row = tx.get(_key(name))
    if row is None:
        raise NotFound("there is no such queue", kind="queue_not_found", queue=shown(name), hint="create it first")
    return _QUEUE.decode(row)


def _key(name: str) -> bytes:
    return QUEUE.pack(queue_part(StreamName(name, "").check().queue))


def _checked_key(queue: Queue) -> bytes:
    if not queue.name:
        raise Invalid("a queue has a name", kind="queue_name", hint="name it")
    if len(queue.definition) > DEFINITION_BYTES_MAX:
        raise Invalid(
            "the definition of a queue is too large", kind="queue_definition", queue=shown(queue.name),
            bytes=len(queue.definition), bytes_max=DEFINITION_BYTES_MAX,
        )  # fmt: skip
    return _key(queue.name)
