"""The doors of a pond to its refs. A pond that has no branches imports none of what they need."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from millpond.deferred import opened_once
from millpond.errors import Invalid

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    import pyarrow as pa

    from millpond.maps.loads.garbage import MapGarbage
    from millpond.maps.loads.loading import LetGo
    from millpond.maps.model.definition import MapDefinition
    from millpond.maps.snapshots.manifest import SnapshotManifest
    from millpond.refs.diffs import Differences
    from millpond.refs.pond import BranchPond, RefPond
    from millpond.refs.refs import Refs
    from millpond.refs.states import OpenPond, RefStates
    from millpond.versions.graph.commits import Commit
    from millpond.versions.merges import Resolutions, Strategy
    from millpond.versions.repository import Repository
    from millpond.versions.repository_context import RepositoryContext, RepositoryRecord

__all__ = (
    "MAIN", "POND", "BranchFace", "RefsFace", "check_no_main", "differences_here", "is_instant", "names_main",
    "ref_twice", "sharded_map",
)  # fmt: skip

POND = "pond"
"""The name of the repository that the maps of a pond are in."""
MAIN = "main"
"""The branch whose maps are those of the pond itself."""
_INSTANT = re.compile(r"\d{4}-\d{2}-\d{2}(T|$)")


def check_no_main(name: str) -> None:
    """Refuse `main` as a branch of its own.

    Raises: `Invalid`.
    """
    if name == MAIN:
        raise Invalid("main is the pond itself", kind="branch_main", hint="leave out the branch, or name another")


def ref_twice(branch: str, ref: str) -> Invalid:
    """The error for a branch beside a ref."""
    return Invalid("a branch and a ref are given", kind="ref_twice", ref=ref, branch=branch, hint="name one")


def is_instant(ref: object) -> bool:
    """True for a ref that is a time: it begins with a date, as no branch that people make does."""
    return isinstance(ref, str) and _INSTANT.match(ref) is not None


def names_main(ref: object) -> bool:
    """True for a ref that is `main`, or counts from it: what it means moves with loads."""
    return isinstance(ref, str) and (ref + "~").startswith(tuple(MAIN + mark for mark in "~^@$"))


def sharded_map(name: str) -> Invalid:
    """The error for a branch, or a ref, of a map in a shard."""
    return Invalid("a map with branches is in layers", kind="refs_store", map=name,
                   hint=f"millpond alter {name} --store layers")  # fmt: skip


def differences_here(states: Callable[[], RefStates]) -> Callable[..., Differences]:
    """The differences between refs as `diffs.differences` reads them, which needs compiled kernels: most do not ask."""

    def read(*sides: str, **about: Any) -> Differences:
        from millpond.refs.diffs import differences

        return differences(states(), *sides, **about)

    return read


class BranchFace:
    """The acts of a pond of a branch that its refs and its catalogue do, here and on nodes."""

    def drop_map(self: Any, name: str, *, commit: bool = True) -> None:
        """Drop a map on the branch, and by a merge elsewhere; without `commit` that is staged.

        Raises: `NotFound`.
        """
        self.catalogue.drop(name, commit=commit)

    def commit(self: Any, message: str = "", *, allow_empty: bool = False) -> Commit:
        """Commit what is staged, of all maps, as one commit.

        Raises: `Invalid`, kind `no_changes`.
        """
        return self.refs.commit(self.ref, message, allow_empty=allow_empty)

    def merge(
        self: Any, into: str = MAIN, *, message: str = "", strategy: str | Strategy = "",
        resolutions: Resolutions = (),
    ) -> Commit:  # fmt: skip
        """Merge the branch into another one, each map by key; the merge commit.

        Raises: as `Refs.merge`.
        """
        return self.refs.merge(self.ref, into, message=message, strategy=strategy, resolutions=resolutions)


class RefsFace:
    """The doors of a pond to its refs."""

    _is_interface = True

    @opened_once
    def refs(self: OpenPond) -> Refs:
        """Branches, commits and tags of layered maps."""
        from millpond.refs.refs import Refs

        return Refs(self)

    def _let_go(self: OpenPond, definition: MapDefinition, manifests: Collection[str], where: str) -> LetGo:
        from millpond.refs.purges import let_go
        from millpond.refs.states import RefStates

        return let_go(RefStates(self), definition, manifests, where)

    def _shared_layers(self: OpenPond, manifest: SnapshotManifest) -> int:
        from millpond.refs.shared import shared_layers
        from millpond.refs.states import RefStates

        return shared_layers(RefStates(self), manifest)

    def _open_repository(self, context: RepositoryContext, record: RepositoryRecord) -> Repository:
        """The object of a repository: of `pond` the one that knows maps."""
        from millpond.versions.repository import Repository

        if record.name != POND or context.space is not self.space:  # type: ignore[attr-defined]
            return Repository(context, record)
        from millpond.refs.repository import MapsRepository

        return MapsRepository(context, record, lambda: self.refs)

    def branch(self, name: str, *, source: str | None = None) -> BranchPond:
        """A pond of a branch, to read and to load; with a `source`, a ref, the branch is made there.

        Raises: `NotFound`; `AlreadyExists` for a branch that is to be made; `Invalid` for a name, and for `main`, which
        is the pond itself.
        """
        from millpond.refs.pond import BranchPond

        check_no_main(name)
        if source is None:
            self.refs.states.repository.branch(name).staging.record()
        else:
            self.refs.create_branch(name, source)
        return BranchPond(self.refs, name)

    def history(self, map: str, ref: str = MAIN) -> pa.Table:
        """The commits that changed a map, newest first: time, commit, message, version, rows, removed, source.

        Raises: `NotFound` for the ref.
        """
        return self.refs.history(map, ref)

    def at(self, ref: str) -> RefPond:
        """A pond as it was at a ref, to read: `main~3`, a tag, a commit, or a time such as `2026-11-01T00:00Z`.

        Raises: `NotFound`; `Invalid` for text that is no ref.
        """
        from millpond.refs.pond import RefPond

        return RefPond(self.refs, self.refs.states.resolve(ref))

    def collect_garbage(self: OpenPond, *, grace: str | int = "1d", dry_run: bool = False) -> MapGarbage:
        """Remove files of layered maps, and of events, that nothing needs: of a bucket those older than `grace`.

        Who reads a state that has been replaced may go on for `grace`. In a folder, locks say who reads and who writes,
        and nothing waits. `dry_run` counts what a bucket would lose.

        Raises: `Invalid`, kind `grace_short`, below a minute; `Corrupt`, `NotFound`, naming the file, when it cannot be
        told what a map needs; `Conflict` when a node serves the pond.
        """
        from millpond.maps.loads.garbage import MapGarbage, collect_garbage
        from millpond.maps.model.keyspaces import NAMED
        from millpond.maps.pond_catalogue import copy_begun
        from millpond.times.durations import parse_duration

        grace_ms = grace if isinstance(grace, int) else parse_duration(grace)
        with self.loading.writing():
            with self.loading.space.read() as tx:
                branched = next(tx.keys(NAMED.range()), None) is not None
                if copy_begun(tx):
                    return MapGarbage(dry_run, busy=["copy"])
            if branched and not dry_run:  # what commits let go of is garbage, too
                self.refs.states.repository.collect(grace_ms=grace_ms)  # type: ignore[attr-defined]
            garbage = collect_garbage(self.loading, self.location, grace_ms=grace_ms, dry_run=dry_run)
        beside = self.location.beside("events")
        if beside is not None:
            from millpond.events.embedded.garbage import collect_objects
            from millpond.events.embedded.large_rows import LargeRows

            large = LargeRows(self.space, beside.objects, self.clock)
            events = collect_objects(large, self.clock, beside.now_ms, grace_ms=grace_ms, dry_run=dry_run)
            garbage.files, garbage.bytes = garbage.files + events.files, garbage.bytes + events.bytes
            garbage.retained += events.retained
            garbage.busy += ["events"] if events.busy else []
        return garbage
