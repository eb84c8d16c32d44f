"""Registers: single values in a space that change by compare-and-set, with their invariants attached.

A register is read, its value changed, and swapped in; the swap fails when somebody else was there in between.
Every swap is checked against the register's invariants, so that no path through the code can forget one. The row is
JSON: `{"revision": n, "value": …}`, where n counts the swaps from 1.

Invariants:
* the revision grows by one with each swap; a value once replaced never counts again;
* a swap that breaks an invariant changes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from millpond.errors import Conflict, Corrupt, Internal

if TYPE_CHECKING:
    from millpond.kernel.space import ReadTransaction, Transaction

__all__ = ("Held", "Register", "Rule")

V = TypeVar("V")
Rule = Callable[["V | None", "V"], "str | None"]
"""What is wrong with putting the second value in the place of the first; None when nothing is."""


@dataclass(frozen=True, slots=True)
class Held(Generic[V]):
    """What a register holds, and how often it was swapped."""

    value: V
    revision: int

    def __post_init__(self) -> None:
        assert self.revision >= 1


@dataclass(frozen=True, slots=True)
class Register(Generic[V]):
    """One value at one key: how it becomes JSON and back, and what must hold whenever it changes."""

    key: bytes
    to_json: Callable[[V], Any]
    from_json: Callable[[Any], V]
    rules: tuple[Rule[V], ...] = field(default=())

    def read(self, tx: ReadTransaction) -> Held[V] | None:
        """What it holds; None before the first swap.

        Raises:
            Corrupt: the row is not what a register writes.
        """
        told = tx.get(self.key)
        if told is None:
            return None
        try:
            row = json.loads(told)
            return Held(self.from_json(row["value"]), int(row["revision"]))
        except (ValueError, KeyError, TypeError, AssertionError) as error:
            raise Corrupt("a register cannot be read", kind="register_damaged", key=self.key.hex()) from error

    def swap(self, tx: Transaction, value: V, *, expected: int) -> Held[V]:
        """Put `value` in place of the one with revision `expected` (0: none yet).

        Raises:
            Conflict: it holds another revision.
            Internal: the value breaks a rule.
        """
        current = self.read(tx)
        found = 0 if current is None else current.revision
        if found != expected:
            raise Conflict(
                "the register moved", kind="register_moved", expected=expected, found=found,
                hint="read again, then retry",
            )  # fmt: skip
        return self._put(tx, current, value)

    def update(self, tx: Transaction, change: Callable[[V | None], V]) -> Held[V]:
        """Put what `change` makes of the value it holds; the transaction keeps everybody else out.

        Raises:
            Internal: the value breaks a rule.
        """
        current = self.read(tx)
        return self._put(tx, current, change(None if current is None else current.value))

    def clear(self, tx: Transaction) -> bool:
        """Forget the value and its revision; whether there was one."""
        return tx.delete(self.key)

    def _put(self, tx: Transaction, current: Held[V] | None, value: V) -> Held[V]:
        for rule in self.rules:
            wrong = rule(None if current is None else current.value, value)
            if wrong is not None:
                raise Internal(wrong, kind="register_rule", key=self.key.hex())
        held = Held(value, 1 if current is None else current.revision + 1)
        tx.put(self.key, json.dumps({"revision": held.revision, "value": self.to_json(value)}).encode())
        assert self.read(tx) == held, "what was put is what is read"
        return held
