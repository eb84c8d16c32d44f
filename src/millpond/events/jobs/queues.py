"""Queues: rows that say which queues jobs may be submitted to.

A queue's definition is bytes in the words of the API that created it; here only its name and its size matter. A stream
may exist without its queue: Millpond's own events, and those of a queue that was deleted, can still be watched.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from millpond.error_values import shown
from millpond.errors import AlreadyExists, Invalid, NotFound
from millpond.events.names import StreamName
from millpond.events.shared_jobs import QueueRows
from millpond.json_forms import JsonForm

__all__ = ("DEFINITION_BYTES_MAX", "Queue", "Queues")

DEFINITION_BYTES_MAX = 64 * 1024


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue and its definition."""

    name: str
    definition: bytes = b""


_QUEUE = JsonForm(Queue)


class Queues:
    """The queues of a pond."""

    def __init__(self, rows: QueueRows) -> None:
        self._rows = rows

    def create(self, queue: Queue) -> None:
        """Create a queue.

        Raises:
            AlreadyExists: there is one of this name.
            Invalid: its name or its definition is not acceptable.
            Unavailable: there are as many as may be.
        """
        if not self._rows.swap(_checked(queue).name, None, _QUEUE.encode(queue)):
            raise AlreadyExists(
                "there is a queue of this name", kind="queue_exists", queue=shown(queue.name),
                hint="update it, or name another",
            )  # fmt: skip

    def update(self, name: str, changed: Callable[[Queue], Queue]) -> None:
        """Change the definition of a queue, by a function that may be called again.

        Raises:
            NotFound: there is no such queue.
            Invalid: the definition is not acceptable.
        """
        row = self._row(name)
        while not self._rows.swap(name, row, _QUEUE.encode(_checked(changed(_QUEUE.decode(row))))):
            row = self._row(name)

    def delete(self, name: str) -> None:
        """Delete a queue, if it is there. Its streams stay until they expire."""
        self._rows.delete(StreamName(name, "").check().queue)

    def get(self, name: str) -> Queue:
        """The queue of that name.

        Raises:
            NotFound: there is none.
        """
        return _QUEUE.decode(self._row(name))

    def list(self, after: str | None = None, *, limit: int) -> list[Queue]:
        """Some queues in the order of their place, from behind one that was listed."""
        return [_QUEUE.decode(row) for row in self._rows.list(after, limit)]

    def _row(self, name: str) -> bytes:
        row = self._rows.get(StreamName(name, "").check().queue)
        if row is None:
            raise NotFound("there is no such queue", kind="queue_not_found", queue=shown(name), hint="create it first")
        return row


def _checked(queue: Queue) -> Queue:
    if not queue.name:
        raise Invalid("a queue has a name", kind="queue_name", hint="name it")
    StreamName(queue.name, "").check()
    if len(queue.definition) > DEFINITION_BYTES_MAX:
        raise Invalid(
            "the definition of a queue is too large", kind="queue_definition", queue=shown(queue.name),
            bytes=len(queue.definition), bytes_max=DEFINITION_BYTES_MAX,
        )  # fmt: skip
    return queue
