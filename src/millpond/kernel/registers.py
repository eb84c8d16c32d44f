"""Registers: single values in a space that change by compare-and-set, with their invariants attached.

A register is read, its value changed, and swapped in; the swap fails when somebody else was there in between.
Every swap is checked against the register's invariants, so that no path through the code can forget one. The row is
JSON: `{"revision": n, "value": …}`, where n counts the swaps from 1; a register that was cleared has no `value` there.

Invariants:
* the revision grows by one with each swap, also across a clear; a value once replaced never counts again: nobody who
  read it before the register was cleared and filled anew can swap as if nothing had happened;
* a swap that breaks an invariant changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from millpond.errors import Conflict, Corrupt, Internal
from millpond.json_forms import ABSENT, FormError, JsonForm

if TYPE_CHECKING:
    from millpond.kernel.space import ReadTransaction, Transaction

__all__ = ("Held", "Register", "Rule", "swap_bytes")

V = TypeVar("V")
Rule = Callable[["V | None", "V"], "str | None"]
"""The reason why the second value may not replace the first; None when it may."""


def swap_bytes(tx: Transaction, key: bytes, expected: bytes | None, value: bytes | None) -> None:
    """Put `value` at `key` in place of `expected`; None stands for no row, on either side.

    For rows whose own bytes say which version they are. Where a value may come back after others, take a `Register`.

    Raises:
        Conflict: something else is there, and stays.
    """
    found = tx.get(key)
    if found != expected:
        raise Conflict(
            "the row moved", kind="row_moved", key=key[:64].hex(), expected=_shown(expected), found=_shown(found),
            hint="read again, then retry",
        )  # fmt: skip
    if value is None:
        tx.delete(key)
    elif value != found:
        tx.put(key, value)


def _shown(value: bytes | None) -> str:
    return "nothing" if value is None else f"{len(value)} bytes, {value[:16].hex()}…"


@dataclass(frozen=True, slots=True)
class _Row:
    revision: int
    value: Any = ABSENT


_ROW = JsonForm(_Row)


@dataclass(frozen=True, slots=True)
class Held(Generic[V]):
    """The value of a register, and the number of its swaps."""

    value: V
    revision: int

    def __post_init__(self) -> None:
        assert self.revision >= 1


@dataclass(frozen=True, slots=True)
class Register(Generic[V]):
    """One value at one key: its form as JSON, and what must hold whenever it changes."""

    key: bytes
    form: JsonForm[V]
    rules: tuple[Rule[V], ...] = field(default=())

    def read(self, tx: ReadTransaction) -> Held[V] | None:
        """The value held; None before the first swap, and after it was cleared.

        Raises:
            Corrupt: the row is not what a register writes.
        """
        return self.held(tx.get(self.key))

    def held(self, stored: bytes | None) -> Held[V] | None:
        """The value in a row that was read already.

        Raises:
            Corrupt: the row is not what a register writes.
        """
        return self._parse(stored)[1]

    def swap(self, tx: Transaction, value: V, *, expected: int) -> Held[V]:
        """Put `value` in place of the one with revision `expected` (0: none now).

        Raises:
            Conflict: it holds another revision.
            Internal: the value breaks a rule.
        """
        revision, current = self._row(tx)
        found = 0 if current is None else current.revision
        if found != expected:
            raise Conflict(
                "the register moved", kind="register_moved", expected=expected, found=found,
                hint="read again, then retry",
            )  # fmt: skip
        return self._put(tx, revision, current, value)

    def update(self, tx: Transaction, change: Callable[[V | None], V]) -> Held[V]:
        """Put what `change` makes of the value it holds; the transaction keeps everybody else out.

        Raises:
            Internal: the value breaks a rule.
        """
        revision, current = self._row(tx)
        return self._put(tx, revision, current, change(None if current is None else current.value))

    def clear(self, tx: Transaction) -> bool:
        """Forget the value, but not its revision; whether there was one."""
        revision, current = self._row(tx)
        if current is not None:
            tx.put(self.key, _ROW.encode(_Row(revision)))
        return current is not None

    def _row(self, tx: ReadTransaction) -> tuple[int, Held[V] | None]:
        """The number of swaps, and the value held."""
        return self._parse(tx.get(self.key))

    def _parse(self, stored: bytes | None) -> tuple[int, Held[V] | None]:
        if stored is None:
            return 0, None
        try:
            row = _ROW.decode(stored)
            value = None if row.value is ABSENT else (self.form.build(row.value),)
        except FormError as error:
            raise self._damaged() from error
        # What the disk says is checked, not asserted: it is no mistake of ours.
        if row.revision < 1:
            raise self._damaged()
        return row.revision, None if value is None else Held(value[0], row.revision)

    def _damaged(self) -> Corrupt:
        return Corrupt("a register cannot be read", kind="register_damaged", key=self.key.hex())

    def _put(self, tx: Transaction, revision: int, current: Held[V] | None, value: V) -> Held[V]:
        for rule in self.rules:
            wrong = rule(None if current is None else current.value, value)
            if wrong is not None:
                raise Internal(wrong, kind="register_rule", key=self.key.hex())
        held = Held(value, revision + 1)
        tx.put(self.key, _ROW.encode(_Row(held.revision, self.form.plain(value))))
        assert self.read(tx) == held, "what was put is what is read"
        return held
