"""A pond as it is at a ref: `pond.branch("fix")` to read and to load, `pond.at("main~3")` to read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

from millpond.errors import NotFound
from millpond.maps.faces import PondFace
from millpond.maps.model.catalogue import durations
from millpond.maps.model.definition import Kind, MapDefinition, Store, ValueType, check_name, parse_value_type
from millpond.refs.changes import StateChange
from millpond.refs.main import MAIN
from millpond.refs.map import MapAtRef, RefMap
from millpond.refs.map_entries import MapEntry
from millpond.refs.refs import Refs

if TYPE_CHECKING:
    from types import TracebackType

    import pyarrow as pa

    from millpond.maps.map import Map
    from millpond.versions.commits import Message
    from millpond.versions.graph.commits import Commit
    from millpond.versions.merges import Resolution, Strategy

__all__ = ("BranchPond", "RefPond")


class RefPond(PondFace):
    """A pond as it is at a ref, to read: maps, `sql` and `enrich`. It needs no closing."""

    def __init__(self, refs: Refs, ref: str) -> None:
        self.refs, self.ref = refs, ref
        self._maps: dict[str, RefMap] = {}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.refs.folder)!r}, {self.ref!r})"

    @property
    def clock(self) -> Any:
        """The clock of the pond."""
        return self.refs.clock

    def map(self, name: str) -> Map:
        """A map as it is at the ref.

        Raises: `NotFound` when the map, or the ref, is not there.
        """
        return self._opened(self._entry(check_name(name)))

    def maps(self) -> list[Map]:
        """All maps at the ref, by name.

        Raises: `NotFound` when the ref is not there.
        """
        return [self._opened(entry) for _, entry in sorted(self.refs.states.maps(self.ref).items())]

    def _entry(self, name: str) -> MapEntry:
        entry = self.refs.states.map(self.ref, name)
        if entry is None:
            raise NotFound("the map is not there at this ref", kind="map_not_found", map=name, ref=self.ref)
        return entry

    def _opened(self, entry: MapEntry) -> Map:
        opened = self._maps.get(entry.name)
        if opened is None or opened.definition != entry.definition:
            opened = self._open(entry)
            self._maps[entry.name] = opened
        return opened

    def _open(self, entry: MapEntry) -> RefMap:
        folder = self.refs.folder / "snapshots" / entry.folder
        return RefMap(entry.definition, self.refs.states.loading, folder, self._place(entry))

    def _place(self, entry: MapEntry) -> MapAtRef:
        return MapAtRef(self.ref, lambda: entry)  # a commit never changes

    def sql(self, text: str) -> pa.Table:
        """The result of a query in DuckDB's SQL over the maps at the ref, as `Pond.sql`.

        Raises: `Invalid` when the query is not understood.
        """
        from millpond.maps.sql import query

        return query(self, text)

    def close(self) -> None:
        """Let go of the maps that were opened here."""
        for opened in self._maps.values():
            opened.close()
        self._maps.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class BranchPond(RefPond):
    """A pond of a branch: what is loaded here is seen on the branch, until it is merged.

    Every question is answered from the branch as it is by then, with what is staged.
    """

    def _place(self, entry: MapEntry) -> MapAtRef:
        name = entry.name
        return MapAtRef(self.ref, lambda: self._entry(name), self._change)

    def _change(self, change: StateChange, commit: bool, words: Message) -> Commit | None:
        return self.refs.states.change(self.ref, change, commit, words)

    def create_map(
        self, name: str, *, kind: str | Kind, value: str | ValueType | None = None, overwrite: bool = True,
        condense: str | int | None = None, retain: str | int | None = None, commit: bool = True,
    ) -> Map:  # fmt: skip
        """Create a layered map on the branch; it comes to other branches by a merge. Settings as in `Pond.create_map`.

        Raises: `AlreadyExists`; `Invalid` for a setting that is not understood.
        """
        settings = {"condense": condense, "retain": retain, "retain_by": "effective_time", "overwrite": overwrite}
        definition = MapDefinition(
            name=check_name(name), kind=Kind(kind), incarnation=self.refs.clock.random_id(),
            value=parse_value_type(value) if isinstance(value, str) else value, store=Store.LAYERS,
            **durations(settings),
        )  # fmt: skip
        self.refs.states.create_map(self.ref, definition, commit=commit)
        return self.map(definition.name)

    def commit(self, message: str = "", *, allow_empty: bool = False) -> Commit:
        """Commit what is staged, of all maps, as one commit.

        Raises: `Invalid`, kind `no_changes`.
        """
        return self.refs.commit(self.ref, message, allow_empty=allow_empty)

    def merge(
        self, into: str = MAIN, *, message: str = "", strategy: str | Strategy = "",
        resolutions: Sequence[Resolution] = (),
    ) -> Commit:  # fmt: skip
        """Merge the branch into another one, each map by key; the merge commit.

        Raises: as `Refs.merge`.
        """
        return self.refs.merge(self.ref, into, message=message, strategy=strategy, resolutions=resolutions)
