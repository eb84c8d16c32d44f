"""Loads on a branch: layers that were written, of one map or several, put on what the branch has by then.

A load with an id has an entry in the log of the pond, in the write that moves the branch: it brings nothing to `main`,
and says what was loaded where. So a load that comes again is answered as then, and an id that was voided takes nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial

from millpond.errors import Conflict, Invalid
from millpond.kernel.space import Transaction
from millpond.maps.layered.maintenance import has_many
from millpond.maps.layered.writer import WrittenLayer
from millpond.maps.loads.load import LoadResult
from millpond.maps.log.apply import load_body, record
from millpond.maps.log.deduplication import check_load_id, remembered
from millpond.maps.log.log import entry_at
from millpond.maps.snapshots.layers import bytes_after_load, fold, on_top
from millpond.maps.snapshots.manifest import SnapshotManifest, absorbing
from millpond.maps.snapshots.stretches import Writes, write_here
from millpond.refs.changes import StateChange, head_moved
from millpond.refs.epochs import StreamEpoch, epoch_entered
from millpond.refs.layers import manifest_of
from millpond.refs.map_entries import MapEntry
from millpond.refs.shared import shared_layers
from millpond.refs.states import RefStates
from millpond.versions.commits import Message
from millpond.versions.graph.commits import Commit

__all__ = ("BranchLoad", "check_staged")

_ENTERED = "load_entered"


def check_staged(load_id: str | None, *, commit: bool) -> None:
    """Refuse to stage a load under an id, which its commit would tell.

    Raises: `Invalid`.
    """
    if load_id is not None and not commit:
        raise Invalid("a load with an id is committed", kind="stage_load_id", load=load_id,
                      hint="leave out its id, or do not stage it")  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchLoad:
    """A load on a branch, besides its layers.

    `again`: also layers that are the newest already come on top. Without `commit` they are staged. What was entered
    under a `load_id`, or for an epoch of a `stream`, is not entered again, and comes on top, unless the id was `drawn`
    for one load of a client. `writes` has the ranges of folds written.
    """

    states: RefStates
    branch: str
    source: str = ""
    rejected: int = 0
    again: bool = False
    commit: bool = True
    load_id: str | None = None
    stream: tuple[str, int] | None = None
    drawn: bool = False
    writes: Writes = write_here
    _position: list[int] = field(default_factory=list)

    def earlier(self, maps: Collection[str] = ()) -> LoadResult | None:
        """The result of the load that was entered under the id, or for the epoch; None when there is none. `maps` as in
        `remembered`.

        Raises: `Invalid` for an id that is none, and for what is staged under an id or as an epoch; as `remembered` and
        `epoch_entered`.
        """
        return self._of_id(maps) or self._of_epoch(maps)

    def _of_id(self, maps: Collection[str]) -> LoadResult | None:
        if self.load_id is None:
            return None
        check_load_id(self.load_id)
        check_staged(self.load_id, commit=self.commit)
        with self.states.loading.space.read() as tx:
            load = remembered(tx, self.load_id, None, maps, self.branch)
            entry = None if load is None else entry_at(tx, load.position)
        if load is None:
            return None
        commit = "" if entry is None else str(entry.body.get("commit", ""))
        return LoadResult(
            load=load.load, rows=sum(load.rows.values()), rejected=load.rejected, parts=0,
            duplicate_parts=len(load.rows), maps=load.rows, seconds=0, position=load.position, commit=commit,
        )  # fmt: skip

    def _of_epoch(self, maps: Collection[str]) -> LoadResult | None:
        if self.stream is None or not maps:
            return None
        check_staged(self.stream[0], commit=self.commit)
        head, graph, epoch = self._head(), self.states.repository.context.graph, StreamEpoch.of(self.stream, maps)
        with self.states.loading.space.read() as tx:
            commit = epoch_entered(tx, graph, head, epoch)
        if commit is None:
            return None
        # What brought the epoch along with others does not say what was of it.
        rows = int(commit.metadata.get("rows", "0")) if StreamEpoch.of_commit(commit) == epoch else 0
        return LoadResult(
            load=self.load_id or "", rows=rows, rejected=0, parts=0, duplicate_parts=len(maps),
            maps=dict.fromkeys(maps, rows) if len(maps) == 1 else {}, seconds=0, commit=commit.id,
        )  # fmt: skip

    def _head(self) -> str:
        with self.states.loading.space.read() as tx:
            return self.states.repository.context.graph.commit(tx, self.branch).id

    def enter(self, layers: Sequence[WrittenLayer]) -> LoadResult:
        """Put layers on their maps, staged or as one commit with what is staged.

        Raises: `NotFound` when the branch, or a map on it, is gone; as `earlier`.
        """
        while True:
            head = self._head()
            earlier = self.earlier({layer.map for layer in layers})
            if earlier is not None or not layers:
                return earlier or self._result(layers, 0, None)
            changes = list[StateChange]()
            try:
                with ExitStack() as stack:
                    changes += [change for layer in layers if (change := self._change(layer, stack)) is not None]
                    commit = self.states.change(
                        self.branch, changes, self._words(layers), commit=self.commit,
                        besides=partial(self._note, layers, head),
                    )  # fmt: skip
            except Conflict as error:
                if error.kind not in ("head_moved", _ENTERED):
                    raise
                continue
            except Invalid as error:
                if changes or error.kind != "no_changes":
                    raise
                commit = None
            return self._result(layers, len(changes), commit)

    def _change(self, layer: WrittenLayer, stack: ExitStack) -> StateChange | None:
        """The map with the layer on top; None when that is what it is."""
        state = self.states.map_at(self.branch, layer.map)
        head = manifest_of(layer.layers, state, self.branch)
        again = self.again or (self.load_id is not None and not self.drawn)
        if not again and head is not None and _is_there(head, layer):
            return None
        return StateChange(state, state.with_manifest(self._stored(layer, head, state, stack)))

    def _stored(
        self, layer: WrittenLayer, head: SnapshotManifest | None, state: MapEntry, stack: ExitStack
    ) -> SnapshotManifest:
        """The manifest of a layer on a state; what that made due is folded, as far as that follows what it brought."""
        layers, now = layer.layers, layer.layers.clock.now_ms()
        manifest = on_top(
            layers.objects, head, layers.definition, layer.layer, version=state.version + 1, created_ms=now,
            spill=layers.spill(),
        )  # fmt: skip
        manifest = absorbing(manifest, (layer.id,))
        adds = manifest.aggregation is not None
        if has_many(layers, manifest, branch=not adds):
            stack.enter_context(layers.writing(rewrites=True))
            if self.states.map_at(self.branch, layer.map) != state:
                raise head_moved(layer.map)
            shared = shared_layers(self.states, manifest, self.branch) if adds else 0
            manifest = fold(
                layers.objects, manifest, created_ms=now, bytes_max=bytes_after_load(manifest), shared=shared,
                spill=layers.spill(), writes=self.writes,
            )  # fmt: skip
        return layers.stored(manifest)

    def _note(self, layers: Sequence[WrittenLayer], head: str, tx: Transaction, commit: Commit) -> None:
        """Enter the load in the log, in the write that moves the branch: from `head`, or another driver may have
        entered the epoch.
        """
        before, graph = commit.parents[0], self.states.repository.context.graph
        if self.stream is not None and before != head:
            epoch = StreamEpoch.of(self.stream, _rows(layers))
            if epoch_entered(tx, graph, before, epoch) is not None:
                raise Conflict("the epoch was entered meanwhile", kind=_ENTERED, branch=self.branch)
        if self.load_id is None:
            return
        if remembered(tx, self.load_id, None) is not None:
            raise Conflict("the load was entered meanwhile", kind=_ENTERED, load=self.load_id)
        body = load_body(tx, self.load_id, (), source=self.source, rejected=self.rejected, stream=None)
        about = {"rows": _rows(layers), "branch": self.branch, "commit": commit.id}
        self._position[:] = [record(tx, "load", (), body | about, self.states.clock.now_ms()).position]

    def _words(self, layers: Sequence[WrittenLayer]) -> Message:
        maps = {layer.map for layer in layers}
        names = ", ".join(sorted(maps))
        about = {"rows": str(sum(layer.rows for layer in layers))} | ({"source": self.source} if self.source else {})
        if self.stream is not None:
            about |= StreamEpoch.of(self.stream, maps).words
        return Message(f"Load {names}" + (f" from {self.source}" if self.source else ""), metadata=about)

    def _result(self, layers: Sequence[WrittenLayer], fresh: int, commit: Commit | None) -> LoadResult:
        rows = _rows(layers)
        return LoadResult(
            load=self.load_id or "", rows=sum(rows.values()), rejected=self.rejected, parts=fresh,
            duplicate_parts=len(layers) - fresh, maps=rows, seconds=0, position=sum(self._position),
            commit="" if commit is None else commit.id,
        )  # fmt: skip


def _is_there(head: SnapshotManifest, layer: WrittenLayer) -> bool:
    """True when a layer is the newest; of an aggregate, which would count it twice, when it was absorbed."""
    if head.aggregation is not None:
        return layer.id in head.tickets
    return bool(head.layers) and head.layers[0].index == layer.layer.index


def _rows(layers: Sequence[WrittenLayer]) -> dict[str, int]:
    return {layer.map: layer.rows for layer in layers}
