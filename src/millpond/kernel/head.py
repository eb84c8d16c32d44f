"""Heads: rows that say what counts now, each with a number that only grows, its fencing token.

    read: value, token ─▶ build what is to come ─▶ swap: is the token still that one? ─▶ a value with a greater token

The token is part of the row, and its own word: the revision of a branch, the epoch of a promise. A change that was
decided within the transaction that makes it is `put`; one that was decided before is a `swap`, and late if somebody
else was there in between.

Some pointers are no heads, for more than a token decides: a commit may find rows that were staged meanwhile, so it
compares the layers that it was built from; the switch of a day compares the segments of that day, while others change;
a list of nodes is an entry of the log; and the group of Kafka says whose a partition is.

Invariants:
* tokens are at least 1, and grow with each change, also with one that leaves nothing to count: whoever read a row
  before a change cannot swap after it, whatever the row says by then;
* a change that breaks a rule changes nothing, so no path through the code can forget one.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from millpond.errors import Conflict, Corrupt, Internal
from millpond.json_forms import FormError
from millpond.kernel.space import ReadTransaction, Transaction

__all__ = ("Heads", "Rule", "again_when_moved")

V = TypeVar("V")
T = TypeVar("T")
Rule = Callable[["V | None", "V"], "str | None"]
"""The reason why the second value may not replace the first; None when it may."""


@dataclass(frozen=True, slots=True)
class Heads(Generic[V]):
    """Heads of one kind, by their keys; `decode` raises `FormError`. `damaged` makes the error for a row that cannot be
    read, given the name of its head and the reason.
    """

    decode: Callable[[bytes], V]
    encode: Callable[[V], bytes]
    token: Callable[[V], int]
    damaged: Callable[[str, object], Corrupt]
    rules: tuple[Rule[V], ...] = ()

    def read(self, tx: ReadTransaction, key: bytes, name: str = "") -> V | None:
        """The value of a head; None before the first one.

        Raises: what `damaged` makes.
        """
        row = tx.get(key)
        return None if row is None else self.parse(row, name)

    def parse(self, row: bytes, name: str = "") -> V:
        """The value in a row that was read already.

        Raises: what `damaged` makes.
        """
        try:
            value = self.decode(row)
        except FormError as error:
            raise self.damaged(name, error) from error
        # What the disk says is checked, not asserted: it is no mistake of ours.
        if self.token(value) < 1:
            raise self.damaged(name, f"its number is {self.token(value)}")
        return value

    def put(self, tx: Transaction, key: bytes, value: V, before: V | None) -> V:
        """Put a value in place of the one that this transaction found; the transaction keeps everybody else out.

        Raises: `Internal`, kind `head_rule`, when the token does not grow, or the value breaks a rule.
        """
        wrong = next(filter(None, (rule(before, value) for rule in self.rules)), None)
        # Another value under a token that was there already would let a swap pass that was decided before it. The equal
        # value may be put again, for it changes nothing.
        if value != before and self.token(value) <= (0 if before is None else self.token(before)):
            wrong = f"its number {self.token(value)} is not a later one"
        if wrong is not None:
            raise Internal(wrong, kind="head_rule", key=key.hex())
        tx.put(key, self.encode(value))
        return value

    def swap(self, tx: Transaction, key: bytes, value: V, *, expected: int) -> V:
        """Put a value in place of the one with the token `expected`; 0: there was none.

        Raises: `Conflict`, kind `head_moved`, when another one is there; as `put`.
        """
        # In the transaction that puts it, so that nobody comes between this look and that.
        before = self.read(tx, key)
        # No head has the token 0, so "there was none" is a state as any other: of two that begin a head, one is late.
        token = 0 if before is None else self.token(before)
        if token != expected:
            raise Conflict(
                "the head moved", kind="head_moved", expected=expected, found=token, hint="read again, then retry"
            )
        return self.put(tx, key, value, before)


def again_when_moved(act: Callable[[], T], tries: int | None = None) -> T:
    """The outcome of an act that replaces what it read; where somebody else did so meanwhile, of another try.

    Raises: `Conflict`, kind `head_moved`, after so many `tries`; as the act.
    """
    for number in itertools.count(1):
        try:
            return act()
        except Conflict as error:
            # One that comes too late does so because another one was made, so somebody always goes on. Other conflicts
            # would be the same again.
            if error.kind != "head_moved" or number == tries:
                raise
    raise AssertionError("it ends with an outcome")
