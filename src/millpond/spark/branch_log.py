"""The changes of a map on a branch: its state at a commit, and at the next, back along first parents.

    head     a ◀─ b ◀─ c ◀─ d            after b, up to d: the differences b → c and c → d
             └──── e                     after e, which d does not come from: the difference e → d, as one change

Commits never change, so neither does what comes between two of them, whatever became of the branch. What a merge
brought is the difference that its commit makes. Of states of two maps of one name, the rows of the first are gone, and
those of the second are new.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from millpond.clock import Clock
from millpond.errors import Conflict, NotFound
from millpond.kernel.keys import EVERYTHING, KeyRange
from millpond.maps.layered.differences import Difference, changed_keys, difference_of
from millpond.maps.model.definition import MapDefinition, folder_name
from millpond.maps.model.field_merges import with_wider_types
from millpond.maps.snapshots.manifest import SnapshotManifest, known_as
from millpond.maps.snapshots.rows_of_groups import GroupSpan, spans
from millpond.refs.map_entries import MapEntry, map_path
from millpond.refs.unrecorded import rows_of
from millpond.spark.locations import Location
from millpond.spark.planned_snapshot import PlannedSnapshots
from millpond.versions.graph.history import Window

if TYPE_CHECKING:
    from millpond.stores.objects import Objects
    from millpond.versions.graph.commits import Commit

__all__ = ("NOTHING", "BranchChange", "FollowedBranch", "StatesDifference")

NOTHING = ""
"""The position before every commit."""
POLL_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class BranchChange:
    """A map that is another at a commit, the `position`, than `before`; `rows` is what the commit says of them."""

    position: str
    before: str
    old: MapEntry | None
    new: MapEntry | None
    rows: int | None = None


@dataclass(frozen=True, slots=True)
class _State:
    """A state that is read: where its files are found, and its manifest with the fields that are shown."""

    shelf: PlannedSnapshots
    manifest: SnapshotManifest


@dataclass(frozen=True, slots=True)
class StatesDifference:
    """Two states of a map, None where it has no rows, whose order keys in a range are compared; the second is that of
    a commit, the `position`. `rows`: about how many there are.
    """

    position: str
    old: _State | None
    new: _State | None
    rows: int = 0
    within: KeyRange = EVERYTHING

    def differences(self) -> Iterator[Difference]:
        """The addresses that differ, some keys at a time.

        Raises: `NotFound` when a state is kept no more; `Corrupt`.
        """
        old, new = (None if side is None else side.manifest for side in (self.old, self.new))
        for changed in changed_keys(self._files(), old, new, within=self.within):
            yield difference_of(changed)

    def _files(self) -> Objects:
        return [side.shelf.files(side.manifest) for side in (self.old, self.new) if side is not None][-1]

    def counted(self) -> StatesDifference:
        """The same, with the number of rows of what only one of both has, as far as it shows without reading."""
        return replace(self, rows=sum(layer.groups for _, layer in self._apart()))

    def pieces(self, rows_max: int) -> list[StatesDifference]:
        """The same in pieces of about `rows_max` rows."""
        if self.rows <= rows_max:
            return [self]
        state, widest = max(self._apart(), key=lambda pair: pair[1].size)
        bytes_max = widest.size * rows_max // self.rows
        cut = spans(
            state.shelf.files(state.manifest), replace(state.manifest, layers=(widest,)), GroupSpan(), bytes_max
        )
        return [
            replace(self, rows=self.rows // len(cut), within=KeyRange(span.lower or b"", span.upper)) for span in cut
        ]

    def _apart(self) -> list[tuple[_State, Any]]:
        """The layers that only one of both has."""
        sides = [side for side in (self.old, self.new) if side is not None]
        layers = [{*side.manifest.layers} for side in sides]
        shared = layers[0] & layers[-1] if len(sides) == 2 else set()
        return [(side, layer) for side in sides for layer in side.manifest.layers if layer not in shared]


class FollowedBranch:
    """A map on a branch of an open pond."""

    def __init__(self, location: Location, definition: MapDefinition, clock: Clock) -> None:
        self.definition, self._location, self._clock = definition, location, clock
        self._pond = location.open()
        self.pond_id = self._pond.log.pond_id
        self._repository = self._pond.refs.repository
        self._head, self._polled_at = NOTHING, 0.0
        self._line: dict[str, int | None] = {}

    def close(self) -> None:
        """Let go of the pond."""
        self._pond.close()

    def newest(self) -> str:
        """The head of the branch.

        Raises: `NotFound`, kind `branch_not_found`; `Conflict`, kind `fields_changed`, when the map has other fields
        than when the query began.
        """
        now = self._clock.monotonic()
        if not self._head or now - self._polled_at >= POLL_SECONDS:
            head, self._polled_at = self._repository.branch(self._location.branch).staging.state().commit_id, now
            if head != self._head:
                self._check_fields(self._entry(head))
            self._head = head
        return self._head

    def commit(self, ref: str) -> str:
        """The commit of a ref."""
        return self._pond.refs.resolve(ref)

    def changes(self, after: str, end: str) -> Iterator[BranchChange]:
        """The changes of the map after a commit, up to another; after `NOTHING` the first is all that it was at the
        oldest commit that is kept.

        Raises: `NotFound` for a commit that is not there.
        """
        if after == end:
            return
        before, old = after, None if after == NOTHING else self._entry(after)
        for commit, rows in self._between(after, end):
            new = self._entry(commit)
            if not _alike(old, new):
                yield BranchChange(commit, before, old, new, rows)
            before, old = commit, new

    def comes_from(self, newer: str, older: str) -> bool:
        """True when a commit is another one, or comes from it along first parents."""
        return self._since(older, newer) is not None

    def planned(self, change: BranchChange) -> list[StatesDifference]:
        """The states to compare.

        Raises: `NotFound` when one is kept no more; `Conflict`, kind `map_made_anew`, when one has other columns.
        """
        old, new = self._state(change.before, change.old), self._state(change.position, change.new)
        apart = old is not None and new is not None and old.manifest.incarnation != new.manifest.incarnation
        pairs = [(old, None), (None, new)] if apart else [(old, new)]
        return [StatesDifference(change.position, *pair).counted() for pair in pairs if pair != (None, None)]

    def _entry(self, commit: str) -> MapEntry | None:
        try:
            return MapEntry.of(self._repository.ref(commit).stat(map_path(self.definition.name)))
        except NotFound as error:
            if error.kind != "entry_not_found":
                raise
            return None

    def _between(self, after: str, end: str) -> Sequence[tuple[str, int | None]]:
        """The commits after one up to another, the oldest first, with what each says of rows."""
        positions = {commit: number for number, commit in enumerate(self._line)}
        if not (after in positions and end in positions and positions[after] <= positions[end]):
            self._line = {after: None, **dict(reversed(self._back(after, end)))}
            positions = {commit: number for number, commit in enumerate(self._line)}
        return list(self._line.items())[positions[after] + 1 : positions[end] + 1]

    def _back(self, after: str, end: str) -> list[tuple[str, int | None]]:
        """The commits before one, and it, back to another, the newest first."""
        commits = self._back_to_oldest(end) if after == NOTHING else self._since(after, end)
        return [(end, None)] if commits is None else commits

    def _since(self, after: str, end: str) -> list[tuple[str, int | None]] | None:
        """The commits up to one, the newest first, that come after another; None where it does not come from there."""
        commits, floor = list[tuple[str, int | None]](), self._repository.ref(after).head().generation
        for commit in self._log(end):
            if commit.id == after:
                return commits
            if commit.generation <= floor:
                break
            commits.append((commit.id, self._rows_said(commit)))
        return None

    def _back_to_oldest(self, end: str) -> list[tuple[str, int | None]] | None:
        commits, newer = list[tuple[str, int | None]](), None
        for commit in self._log(end):
            entry = self._entry(commit.id)
            if entry is None or entry.folder != folder_name(self.definition):
                break
            if not _alike(entry, newer) and not self._is_readable(commit.id, entry):
                break
            commits.append((commit.id, self._rows_said(commit)))
            newer = entry
        return [*commits[:-1], (commits[-1][0], None)] if commits else None

    def _log(self, end: str) -> Iterator[Commit]:
        log: Iterator[Commit] = self._repository.ref(end).log(Window(first_parent=True))
        return log

    def _rows_said(self, commit: Commit) -> int | None:
        rows, removed = rows_of(commit, self.definition.name), commit.metadata.get("rows_removed")
        return None if rows is None and removed is None else (rows or 0) + int(removed or 0)

    def _is_readable(self, commit: str, entry: MapEntry) -> bool:
        try:
            self._state(commit, entry)
        except NotFound:
            return False
        return True

    def _state(self, commit: str, entry: MapEntry | None) -> _State | None:
        """The state at a commit; None where it has no rows."""
        if entry is None or not entry.manifest:
            return None
        shelf, manifest = self._location.at(None, commit).pin(self._pond, self.definition.name)
        return _State(shelf, self._shown(commit, manifest)) if manifest.layers else None

    def _shown(self, commit: str, manifest: SnapshotManifest) -> SnapshotManifest:
        definition, written = self.definition, manifest.definition
        if manifest.incarnation == definition.incarnation and with_wider_types(definition, written) == definition:
            return known_as(manifest, definition)
        if (written.kind, written.value) != (definition.kind, definition.value):
            raise Conflict(
                "the map was made anew, with other columns", kind="map_made_anew", map=definition.name, commit=commit,
                found=f"{written.kind} of {written.value}",
                hint="begin again: a new query, with a new checkpointLocation",
            )  # fmt: skip
        return manifest

    def _check_fields(self, head: MapEntry | None) -> None:
        definition = self.definition
        if head is None or head.folder != folder_name(definition):
            return
        if (head.definition.value, head.definition.field_ids) != (definition.value, definition.field_ids):
            raise Conflict(
                "the fields of the map changed meanwhile", kind="fields_changed", map=definition.name,
                hint="start the query again: it goes on with the columns of now",
            )  # fmt: skip


def _alike(old: MapEntry | None, new: MapEntry | None) -> bool:
    if old is None or new is None:
        return old is new
    return (old.folder, old.manifest) == (new.folder, new.manifest)
