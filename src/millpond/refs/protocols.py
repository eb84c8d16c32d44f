"""The interface of refs of maps, the same for those of a pond in this process and for those of nodes.

`Refs`, `RefPond`, `BranchPond` and `RefMap` keep these promises in this process, the classes of `client/refs.py` and
`client/ref_ponds.py` over the network.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from millpond.kernel.operations import declared, operation
from millpond.maps.protocols import DefinitionsLike, MapLike

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa

    from millpond.clock import Clock
    from millpond.maps.inputs.mapping import ColumnMapping
    from millpond.maps.loads.load import LoadResult
    from millpond.maps.loads.load_files import Advance, ReadPiece
    from millpond.maps.model.definition import Kind, ValueType
    from millpond.versions.graph.commits import Commit
    from millpond.versions.merges import Resolutions, Strategy

__all__ = ("BranchMapsOperations", "BranchPondLike", "RefMapLike", "RefPondLike", "RefsLike")


class RefMapLike(MapLike, Protocol):
    """A map at a ref: see `refs.map.RefMap` for what each does."""

    def load(
        self, data: Any, *, columns: ColumnMapping | Mapping[str, Any] | None = None, max_rejects: int = 0,
        rejects: str | Path | None = None, zone: str | None = None, time_unit: str | None = None, source: str = "",
        again: bool = False, extra: str | None = None, commit: bool = True, load_id: str | None = None,
    ) -> LoadResult: ...  # fmt: skip


class RefPondLike(Protocol):
    """A pond at a ref, to read: see `refs.pond.RefPond` for what each does."""

    @property
    def clock(self) -> Clock: ...
    @property
    def ref(self) -> str: ...

    def map(self, name: str) -> RefMapLike: ...
    def maps(self) -> Sequence[RefMapLike]: ...
    def sql(self, text: str, *, known_at: object = None) -> pa.Table: ...
    def close(self) -> None: ...


class BranchMapsOperations(Protocol):
    """The maps of a pond of a branch, as requests."""

    @operation("POST", "/v1/maps", sent={"as_": "query"})
    def create_map(
        self, name: str, *, kind: str | Kind | None = None, value: str | ValueType | None = None,
        overwrite: bool = True, condense: str | int | None = None, retain: str | int | None = None,
        retain_by: str = "effective_time", exist_ok: bool = False, commit: bool = True, resolution: str | None = None,
        time_zone: str | None = None, key: str | None = None, roll_up: str | None = None, as_: str | None = None,
        condense_by: str = "effective_time",
    ) -> RefMapLike:  # fmt: skip
        """Create a layered map on the branch; it comes to other branches by a merge. Settings as in `Pond.create_map`.

        Raises: `AlreadyExists`; `Invalid` for a setting that is not understood.
        """
        declared()


class BranchPondLike(RefPondLike, BranchMapsOperations, Protocol):
    """A pond of a branch: see `refs.pond.BranchPond` for what each does."""

    def load_files(
        self, files: str | Path | Sequence[str | Path], map: str | None = None, *, commit: bool = True,
        max_rejects: int = 0, rejects: str | Path | None = None, source: str = "", again: bool = False,
        written: str | None = None, advance: Advance | None = None, load_id: str | None = None,
        read: ReadPiece = ..., **options: Any,
    ) -> LoadResult: ...  # fmt: skip

    @property
    def catalogue(self) -> DefinitionsLike: ...
    def alter_map(self, name: str, /, *, commit: bool = True, **settings: Any) -> RefMapLike: ...
    def drop_map(self, name: str, *, commit: bool = True) -> None: ...
    def commit(self, message: str = "", *, allow_empty: bool = False) -> Commit: ...

    def merge(
        self, into: str = ..., *, message: str = "", strategy: str | Strategy = "",
        resolutions: Resolutions = (),
    ) -> Commit: ...  # fmt: skip


class RefsLike(Protocol):
    """The refs of a pond's maps: see `refs.refs.Refs` for what each does."""

    def resolve(self, ref: str) -> str: ...
    def log(self, ref: str = ..., *, first_parent: bool = False) -> Iterator[Commit]: ...
    def create_branch(self, name: str, source: str = ...) -> None: ...
    def delete_branch(self, name: str) -> None: ...
    def commit(self, branch: str, message: str = "", *, allow_empty: bool = False) -> Commit: ...

    def merge(
        self, source: str, into: str = ..., *, message: str = "", strategy: str | Strategy = ...,
        resolutions: Resolutions = (), metadata: Mapping[str, str] | None = None,
        committer: str = "", squash: bool = False, allow_empty: bool = False,
    ) -> Commit: ...  # fmt: skip

    def revert(
        self, ref: str, branch: str = ..., *, message: str = "", parent_number: int | None = None,
        metadata: Mapping[str, str] | None = None, committer: str = "",
    ) -> Commit: ...  # fmt: skip

    def cherry_pick(
        self, ref: str, branch: str = ..., *, message: str | None = None, parent_number: int | None = None,
        metadata: Mapping[str, str] | None = None, committer: str = "",
    ) -> Commit: ...  # fmt: skip

    def restore(self, ref: str, branch: str = ..., *, maps: Sequence[str] = (), message: str = "") -> Commit: ...
    def reset(self, branch: str, ref: str | None = None) -> None: ...

    def diff(
        self, left: str, right: str | None = None, *, map: str | None = None, three_dots: bool = False,
        limit: int | None = None,
    ) -> pa.Table: ...  # fmt: skip

    def history(self, map: str, ref: str = ..., *, limit: int | None = None) -> pa.Table: ...
