"""Keyspaces: the kinds of rows a space holds, registered once by the part they belong to.

Every key begins with `(part, name)` of its keyspace, so two parts may both have a `log` or a `queue`. What must look
at the rows of all parts reads the registry: a clone copies the shared keyspaces, `verify` finds rows that are nobody's,
the page of the format lists them all. So the rows of a part that is added later cannot be forgotten there.

Invariants:
* a keyspace is registered once, and no key belongs to two: the pair `(part, name)` is unique, and complete parts of a
  key are compared, never their beginnings;
* each keyspace says whose its rows are, so a clone knows about every row: copied, cleared, or left as it is;
* rows outside every registered keyspace are found (`unregistered`), and nobody copies such a space as if it were whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from millpond.errors import Corrupt, Internal
from millpond.kernel.keys import EVERYTHING, KeyRange, Part, Prefix, decode
from millpond.kernel.space import ReadTransaction

__all__ = ("REGISTRY", "Keyspace", "Registry", "Scope")


class Scope(StrEnum):
    """The place a row is valid in, and so its fate when a node becomes a copy of another."""

    SHARED = "shared"
    """The same on all nodes at the same position of the log: a clone takes the rows of the other node."""
    LOCAL = "local"
    """The progress of one node: a clone begins without such rows."""
    FOLDER = "folder"
    """A setting of one folder: a clone leaves it as it is."""


@dataclass(frozen=True, slots=True, init=False)
class Keyspace(Prefix):
    """A prefix that is registered. `rest` names the parts of a key after `(part, name)`; `value` says what a row is."""

    part: str
    name: str
    rest: tuple[str, ...]
    scope: Scope
    value: str
    doc: str

    def __init__(self, part: str, name: str, rest: tuple[str, ...], scope: Scope, value: str, doc: str) -> None:
        assert part and name and value and doc, "a keyspace is described"
        # The registry finds a key by its first two parts, so these two make the prefix and no others.
        Prefix.__init__(self, part, name)
        # A frozen class refuses that its fields are set, its own constructor too.
        for field_name, said in (
            ("part", part), ("name", name), ("rest", rest), ("scope", scope), ("value", value), ("doc", doc),
        ):  # fmt: skip
            object.__setattr__(self, field_name, said)

    def __str__(self) -> str:
        return "/".join((self.part, self.name, *(f"<{word}>" for word in self.rest)))


@dataclass(slots=True)
class Registry:
    """The keyspaces of a space.

    >>> registry = Registry()
    >>> runs = registry.register("workflows", "run", ("run id",), Scope.LOCAL, "JSON", "a run that is not over")
    >>> str(runs), [str(keyspace) for keyspace in registry.of(Scope.SHARED)]
    ('workflows/run/<run id>', [])
    """

    _keyspaces: dict[tuple[Part, ...], Keyspace] = field(default_factory=dict)

    def register(self, part: str, name: str, rest: tuple[str, ...], scope: Scope, value: str, doc: str) -> Keyspace:
        """The new keyspace of all keys that begin with `(part, name)`.

        Raises:
            Internal: there is one already.
        """
        # Of two scopes for the same rows, a clone would follow the one that it meets.
        if (part, name) in self._keyspaces:
            raise Internal("a keyspace is registered twice", kind="keyspace_twice", part=part, name=name)
        keyspace = Keyspace(part, name, rest, scope, value, doc)
        self._keyspaces[part, name] = keyspace
        return keyspace

    def of(self, *scopes: Scope) -> tuple[Keyspace, ...]:
        """The keyspaces of these scopes, of all when none is named, in the order of their keys."""
        selected = scopes or tuple(Scope)
        # Not in the order in which they were registered: that is the order of imports, and other processes import
        # otherwise. Files of the same rows are to be the same.
        keyspaces = [keyspace for keyspace in self._keyspaces.values() if keyspace.scope in selected]
        return tuple(sorted(keyspaces, key=lambda keyspace: keyspace.packed))

    def find(self, key: bytes) -> Keyspace | None:
        """The keyspace a key belongs to; None when it is registered nowhere."""
        try:
            return self._keyspaces.get(decode(key)[:2])
        # No key of ours, so of no keyspace. Whoever asks reports it, and goes on to the rows behind it.
        except Corrupt:
            return None

    def unregistered(self, tx: ReadTransaction) -> Iterator[bytes]:
        """The keys of a space that belong to no keyspace: one look per keyspace, not one per row."""
        keys = EVERYTHING
        while (key := next(tx.keys(keys), None)) is not None:
            keyspace = self.find(key)
            if keyspace is None:
                yield key
                # The next of all keys: what is nobody's has no end that could be skipped to.
                keys = KeyRange(key + b"\x00", None)
            else:
                start = keyspace.range().stop
                assert start is not None and start > key, "a scan that skips goes on"
                keys = KeyRange(start, None)


REGISTRY = Registry()
"""The keyspaces of a pond's space. A part registers its own in one module, when that is imported."""
