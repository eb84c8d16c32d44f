"""Values made of the rows of one moment, remembered for as long as nothing is written.

    views = Moments()
    with space.read() as tx:
        view = views.get(tx, "main", lambda: read_view(tx, "main"))

Invariants:
* A value is given to transactions of the very moment at which it was made, so it is what they would have made.
* Values of one moment at a time are held, at most `VALUES_MAX` of them.
* Several threads may use one: each sees the values of one moment, which is replaced as a whole.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from millpond.kernel.space import ReadTransaction, moment_of

__all__ = ("Moments",)

T = TypeVar("T")
VALUES_MAX = 1_000
NAME_LETTERS_MAX = 256
"""A longer name is not worth its place."""


class Moments(Generic[T]):
    """The values of the last moment that was read, by their names."""

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held: tuple[int | None, dict[str, T]] = (None, {})

    def get(self, tx: ReadTransaction, name: str, make: Callable[[], T]) -> T:
        """The value of a name at the moment of a transaction; `make` reads it when it is not known.

        Raises: what `make` raises; that is not remembered.
        """
        moment = moment_of(tx)
        # The attribute is read once and replaced as a pair, so that no thread sees the values of one moment under the
        # number of another. That takes the place of a lock.
        held = self._held
        if moment is None or not isinstance(name, str):  # what is no name has no value, and `make` says so
            return make()
        if held[0] != moment:
            # Threads at two moments may take each other's place here. Then values are read again, and none is wrong.
            held = self._held = (moment, {})
        values = held[1]
        value = values.get(name)
        if value is None:
            value = make()
            # Threads may together put a few more than the limit. It bounds memory, which a few do not matter to.
            if len(values) < VALUES_MAX and len(name) <= NAME_LETTERS_MAX:
                values[name] = value
        return value
