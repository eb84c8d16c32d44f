"""Writes whose answer may be lost: how their caller learns whether they were made.

A space says `Uncertain` when a commit was sent and its answer never came. Only the space itself knows more: a write
that was made left its rows there, all of them. So a caller looks for a row that only this very write can have put,
such as the row of a load by the load's id. A load does so for each of its writes: it is done once, or not at all.

Invariant: it raises `Unavailable` when the write was not made, and `Uncertain` only when the space does not say.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from millpond.errors import MillpondError, Unavailable, Uncertain
from millpond.kernel.space import ReadTransaction, Space, Transaction

__all__ = ("enter_load", "of_load", "write_certainly")

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
                outcome = made(tx)
        except MillpondError as error:
            raise Uncertain(
                "the space does not say whether the write was made", kind="write_uncertain", reason=error.message,
                hint="look again, or repeat it with the same token",
            ) from lost  # fmt: skip
        if outcome is None:
            raise Unavailable("the write was not made", kind="write_not_made", hint="try again") from lost
        return outcome


def enter_load(
    space: Space, load: str, enter: Callable[[Transaction], T], entered: Callable[[ReadTransaction], T | None]
) -> T:
    """Enter a load; when the answer is lost, what the space has `entered` of it.

    Raises: `Uncertain` when the space does not answer that either; what `enter` raises.
    """
    try:
        return write_certainly(space, enter, entered)
    except Unavailable as error:
        clearer = of_load(error, load)
        if clearer is None:
            raise
        raise clearer from error


def of_load(error: Unavailable, load: str) -> Unavailable | None:
    """The error of a write that enters a load, as one about the load; None for those that say enough."""
    if isinstance(error, Uncertain):
        return Uncertain(
            "the space does not say whether the load is entered", kind="load_uncertain", load=load,
            reason=error.values.get("reason", error.message),
            hint="load the same parts again under this load id: what is entered is not entered twice",
        )  # fmt: skip
    if error.kind == "write_not_made":
        return Unavailable("the load was not entered", kind="load_not_entered", load=load, hint="load it again")
    return None
