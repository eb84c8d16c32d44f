"""Writes whose answer may be lost: how their caller learns whether they were made.

A space says `Uncertain` when a commit was sent and its answer never came. Only the space itself knows more: a write
that was made left its rows there, all of them. So a caller looks for a row that only this very write can have put:

* one that its change puts anyway, such as the row of a load by the load's id: `write_certainly(space, change, made)`;
* else a **token**: a row of its own, named by whoever wants the write, put in the same transaction. `write_once` runs a
  change once for each token, however often it is called, in whichever process.

Tokens stay until they are forgotten: put a time or a position into their keys, and drop old ones by `delete_range`.

Invariants:
* A change is committed once for each token, with the answer that it gave.
* What is raised is `Unavailable` when the write was not made, and `Uncertain` only when the space does not say.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from millpond.errors import MillpondError, Unavailable, Uncertain

if TYPE_CHECKING:
    from collections.abc import Callable

    from millpond.kernel.space import ReadTransaction, Space, Transaction

__all__ = ("write_certainly", "write_once")

T = TypeVar("T")


def write_certainly(space: Space, change: Callable[[Transaction], T], made: Callable[[ReadTransaction], T | None]) -> T:
    """Write; when the answer is lost, what the space says was `made` of it: None when it was not.

    Raises:
        Uncertain: the space does not answer that either; its `__cause__` is the write's.
        Unavailable: the answer was lost, and the write was not made. Write again.
        MillpondError: what `Space.write` raises.
    """
    try:
        return space.write(change)
    except Uncertain as lost:
        try:
            with space.read() as tx:
                found = made(tx)
        except MillpondError as error:
            raise Uncertain(
                "the space does not say whether the write was made", kind="write_uncertain", reason=error.message,
                hint="look again, or repeat it with the same token",
            ) from lost  # fmt: skip
        if found is None:
            raise Unavailable("the write was not made", kind="write_not_made", hint="try again") from lost
        return found


def write_once(space: Space, token: bytes, change: Callable[[Transaction], bytes]) -> bytes:
    """Run a change if no write with this token was made, and return what it returned, now or then.

    `token` is the key of the row that says so; its value is the answer.

    Raises: as `write_certainly`.
    """

    def once(tx: Transaction) -> bytes:
        known = tx.get(token)
        if known is not None:
            return known
        answer = change(tx)
        tx.put(token, answer)
        return answer

    return write_certainly(space, once, lambda tx: tx.get(token))
