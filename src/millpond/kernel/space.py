"""A space: ordered bytes with transactions, where all small truths of a pond live.

Every public write of every part takes a `Transaction` first, so "finish this step, move the cursor, append the
event" is one atomic write. What a driver must keep is written as tests in `millpond.testing.contracts.spaces`.

Invariants every driver keeps:
* A read transaction sees one moment: what was committed before it began, all of it, and nothing later.
* Writes are *serializable*: the space is always as if they had been made one after another, each wholly or not at all.
  They need not run one after another. A committed write survives a crash, if the driver is durable.
* Of three outcomes a write has one: it returns, and was made; it raises, and was not; it raises `Uncertain`, and was
  made or not, as the space will tell whoever looks.
* A write is a *function* of its transaction, and a driver may run it again: when the map must grow, when another
  server's transaction got in between. Another thread may run it, for several writes share one commit. So it acts on
  nothing but the transaction, and takes no lock.
* To put and delete while scanning is safe: rows that stay are met once, rows that were deleted ahead of the scan are
  not met. Whether a scan meets rows that are put ahead of it is not promised.
* Keys have 1 to `KEY_BYTES_MAX` bytes: as many as the longest S3 key, escaped, with its prefix, needs. A driver whose
  storage takes less finds another place for long ones.

Storage without transactions over several rows (DynamoDB, Cosmos, Redis Cluster) cannot keep this, and gets no driver.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Protocol, TypeVar

from millpond.errors import Closed, Internal, Invalid, Unavailable
from millpond.kernel.keys import KeyRange

__all__ = (
    "KEY_BYTES_MAX",
    "VALUE_BYTES_MAX",
    "CountedSpace",
    "ReadTransaction",
    "RemoteSpace",
    "Space",
    "Transaction",
    "WouldBlock",
    "already_writing",
    "check_row",
    "moment_of",
    "transaction_over",
)

KEY_BYTES_MAX = 2_560
"""One limit for every driver, so that a pond can move from one to another."""

VALUE_BYTES_MAX = 64 * 1024 * 1024
"""Small truths are small; what is larger belongs into a segment's file."""

T = TypeVar("T")


class WouldBlock(Unavailable):
    """A read that would have to wait, begun by a caller that must not. Nothing was done: read where waiting is allowed.

    It stays between a space and its caller; a read that may wait never raises it.
    """

    kind = "would_block"


class ReadTransaction(Protocol):
    """One moment of a space. It is over at the end of its `with`; using it later raises `Closed`."""

    def get(self, key: bytes) -> bytes | None:
        """The value at `key`; None when there is none. An empty value is not None."""

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The values at several keys, in their order; None where there is none."""

    def scan(self, keys: KeyRange, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        """The keys of the range and their values, in the order of the keys, or from the last to the first."""

    def keys(self, keys: KeyRange, *, reverse: bool = False) -> Iterator[bytes]:
        """The keys of the range without their values, ordered as `scan` orders them."""


class Transaction(ReadTransaction, Protocol):
    """A read transaction that also writes, and sees what it wrote itself."""

    def put(self, key: bytes, value: bytes) -> None:
        """Write `value` at `key`, over what is there.

        Raises:
            Invalid: the key is empty or longer than `KEY_BYTES_MAX`, the value longer than `VALUE_BYTES_MAX`.
        """

    def delete(self, key: bytes) -> bool:
        """Remove `key`; whether it was there."""

    def delete_range(self, keys: KeyRange, limit: int | None = None) -> int:
        """Remove the keys of the range, or the first `limit` of them; how many there were.

        With a limit a large range is removed in several writes: the one that removes fewer was the last.
        """


class Space(Protocol):
    """Ordered bytes with transactions. Safe to share between threads."""

    def read(self, *, wait: bool = True) -> AbstractContextManager[ReadTransaction]:
        """A transaction that reads. It waits for no write to end, and no write waits for it.

        But a driver whose storage must move keeps both waiting meanwhile, up to a limit; without `wait` it never does.

        Raises:
            WouldBlock: without `wait`, and it would have to.
            Closed: the space was closed.
            Unavailable: there are too many readers, or the storage is being moved for long.
            Corrupt: the file is damaged.
        """

    def write(self, change: Callable[[Transaction], T]) -> T:
        """Run `change` in a transaction, commit it, and return what it returned; nothing of it stays if it raises.

        `change` may be run more than once, each time on a fresh transaction. A second writer waits for the first.

        Raises:
            Closed: the space was closed.
            Internal: `change` itself called `write`.
            Uncertain: whether it was committed is not known.
            Unavailable: the disk is full, or the space was opened for reading only. Nothing was changed.
            Corrupt: the file is damaged.
        """

    def close(self) -> None:
        """Let go of the space; closing twice is harmless."""


def moment_of(tx: ReadTransaction) -> int | None:
    """The number of the last change that a read transaction sees; None in writes, and where changes have no numbers.

    Two transactions of one space with the same number see the same rows.
    """
    # A write has no number that could be remembered: one that fails gives its number to the next, which may make other
    # rows.
    return getattr(tx, "moment", None)


class CountedSpace(Space, Protocol):
    """A space that also tells, for less than a transaction costs, whether anything was written at all."""

    def last_change(self) -> int:
        """A number that every write changes, of any process; as long as it is the same, so is all else.

        It may be that of a write whose commit is not over, which readers do not see yet. So what was read is remembered
        by the moment of its own transaction, `moment_of`, and never by a number that was taken before.

        Raises: as `read`.
        """


class RemoteSpace(Space, Protocol):
    """A space behind a network, where every read of a transaction is a journey, that also reads at one go."""

    def read_together(
        self, keys: Sequence[bytes], ranges: Sequence[KeyRange]
    ) -> tuple[dict[bytes, bytes], list[bytes | None]]:
        """The rows at some keys, and the last key of each range, if there is one: all of one moment.

        Raises: as `read`.
        """


def check_row(key: bytes, value: bytes) -> None:
    """Refuse what no driver would store; drivers call it before each put.

    Raises:
        Invalid: the key is empty or longer than `KEY_BYTES_MAX`, the value longer than `VALUE_BYTES_MAX`.
    """
    # LMDB has no empty key, so nobody has one: a pond may move to any other driver.
    if not 0 < len(key) <= KEY_BYTES_MAX:
        raise Invalid(
            "a key of a space has 1 to 2,560 bytes", kind="space_key_length", bytes=len(key), key=key[:32].hex() + "…"
        )
    if len(value) > VALUE_BYTES_MAX:
        raise Invalid(
            "the value is too large for a space",
            kind="space_value_length",
            hint="put large data into a segment and keep its id here",
            bytes=len(value),
            bytes_max=VALUE_BYTES_MAX,
        )


def transaction_over() -> Closed:
    """The error of a transaction, or a scan of one, that is used after its end."""
    return Closed("the transaction is over", kind="transaction_over", hint="use it inside its `with` or its function")


def already_writing() -> Internal:
    """The error of a write inside a write: it would wait for itself for ever."""
    return Internal(
        "a write was called inside a write", kind="nested_write", hint="pass the transaction down and use that"
    )
