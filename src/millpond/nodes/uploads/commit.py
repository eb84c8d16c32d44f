"""The commit of parts as loads, at the primary: of parts that were uploaded, or that come with the load.

Loads are committed at the same time, but for those with a part, an id or a stream in common, which follow one another.

Invariants:
* a stream is known by its query and the maps of its loads: a token without the right to write to a map changes no epoch
  of a stream that brings rows to it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

from millpond.errors import Conflict, NotFound
from millpond.maps.loads.load import LoadResult, commit_reported
from millpond.maps.log.deduplication import maps_of_load, maps_of_stream, remembered, scoped_query
from millpond.maps.log.log import entry_at
from millpond.maps.parts.part import PartFile, read_manifest
from millpond.maps.parts.stream import Head
from millpond.nodes.tokens import Caller
from millpond.nodes.uploads.branch_parts import OnBranch, enter_parts
from millpond.nodes.uploads.receiver import Receiver
from millpond.nodes.uploads.session import UploadOffer
from millpond.pond import Pond
from millpond.refs.loads import BranchLoad
from millpond.stores.locks import Names

__all__ = ("LoadCommit",)


def _names(load: str, parts: Sequence[str], stream: tuple[str, int] | None) -> set[str]:
    """The names that loads hold while they are entered: those with one in common follow one another."""
    return {*parts, f"load {load}", *(() if stream is None else (f"stream {stream[0]}",))}


class LoadCommit:
    """Enters loads of parts that are here."""

    def __init__(self, pond: Pond, receiver: Receiver) -> None:
        self._pond, self._receiver = pond, receiver
        # Two loads of the same data bring the same parts: the first takes them, the second finds them known.
        self._names = Names()

    def enter(
        self, load: str, parts: Sequence[str], *, source: str, rejected: int, stream: tuple[str, int] | None,
        may: Callable[[str], bool], void: bool = False, on: OnBranch | None = None,
    ) -> LoadResult:  # fmt: skip
        """Enter a load, `on` a branch if that is given, or take its id when it is `void`; `may` is true for the maps
        that the caller may write to. The result of an earlier entry is returned again.

        Raises:
            NotFound: kind `part_not_uploaded`, a part is neither here nor known, or is for a map of others.
            Conflict: kind `load_taken`, the id belongs to a load of maps of others.
        """
        with self._names.hold(_names(load, parts, stream)):
            if on is not None and not void:
                return self._enter_on(on, load, parts, {}, source, rejected, stream, may)
            return self._enter(load, parts, {}, source, rejected, stream, may, void)

    def bring(
        self, load: str, streams: Sequence[tuple[Head, memoryview]], *, source: str, rejected: int,
        stream: tuple[str, int] | None, caller: Caller, on: OnBranch | None = None,
    ) -> LoadResult:  # fmt: skip
        """Enter a load with the streams of all its parts; a repetition returns the first result again.

        The parts become durable together, in `parts/`, before the load is entered: what came of them before is of no
        use. Another writer of one of the parts is not waited for.

        Raises: `Denied` for a map that the caller may not write to; as `enter`, and as `Receiver.begin`.
        """
        parts = [head.manifest.id for head, _ in streams]
        with self._names.hold(_names(load, parts, stream)), ExitStack() as held:
            for name in {head.manifest.map: None for head, _ in streams}:
                caller.need("write", name)
            brought = {}
            for head, data in streams:
                branch = None if on is None else on.pond.ref
                offer = UploadOffer(head.manifest.id, head.manifest.map, head.total, head.checksum, branch=branch)
                part = held.enter_context(self._receiver.bring(offer, [data]))
                if part is not None:
                    brought[part.manifest.id] = part
            may = partial(caller.may, "write")
            if on is not None:
                return self._enter_on(on, load, parts, brought, source, rejected, stream, may)
            return self._enter(load, parts, brought, source, rejected, stream, may)

    def _enter(
        self, load: str, parts: Sequence[str], brought: Mapping[str, PartFile], source: str, rejected: int,
        stream: tuple[str, int] | None, may: Callable[[str], bool], void: bool = False,
    ) -> LoadResult:  # fmt: skip
        here, positions, maps = self._find(parts, self._files(parts, brought), may)
        self._check_owned(load, may)
        stream = None if stream is None else self._scoped(stream, maps, may)
        with self._pond.space.read() as tx:
            entered = remembered(tx, load, stream, maps) is not None
        result = commit_reported(
            self._pond.loading, here, source=source, rejected=rejected, load_id=load, stream=stream, wait=False,
            unsynced=brought.keys(), void=void,
        )  # fmt: skip
        self._receiver.forget(part for part in parts if part not in brought)
        return result if entered else replace(result, duplicate_parts=result.duplicate_parts + positions)

    def _enter_on(
        self, on: OnBranch, load: str, parts: Sequence[str], brought: Mapping[str, PartFile], source: str,
        rejected: int, stream: tuple[str, int] | None, may: Callable[[str], bool],
    ) -> LoadResult:  # fmt: skip
        self._check_owned(load, may)
        files = self._files(parts, brought, on.pond.ref)  # those of a load that was entered are gone
        maps = {file.manifest.map for file in files if file is not None and may(file.manifest.map)}
        branch_load = BranchLoad(
            states=on.pond.refs.states, branch=on.pond.ref, source=source, rejected=rejected, again=on.again,
            commit=on.commit, load_id=load if on.commit else None, stream=stream,
            drawn=on.drawn,
        )  # fmt: skip
        if (earlier := branch_load.earlier(maps)) is not None:
            return earlier
        here, _, _ = self._find(parts, files, may, on.pond.ref)
        result = replace(enter_parts(on.pond, here, branch_load, self._pond.loading), load=load)
        if on.commit:  # what is staged has no id by which its sender would be answered again
            self._receiver.forget(part for part in parts if part not in brought)
            for part in here:
                self._receiver.discard(part.manifest.id)
        return result

    def chain_at(self, position: int) -> str:
        """The chain of the log at a position, which other nodes must have there; empty when it is not retained."""
        with self._pond.space.read() as tx:
            entry = entry_at(tx, position)
        return "" if entry is None else entry.chain

    def _check_owned(self, load: str, may: Callable[[str], bool]) -> None:
        """Refuse the id of a load that belongs to others: its result is for them.

        No other load of this id can come between the check and the entry: they follow one another.
        """
        with self._pond.space.read() as tx:
            maps_entered = maps_of_load(tx, load)
        if not all(map(may, maps_entered)):
            raise Conflict("another load has this id", kind="load_taken", load=load, hint="draw another load id")

    def _scoped(self, stream: tuple[str, int], maps: AbstractSet[str], may: Callable[[str], bool]) -> tuple[str, int]:
        """The stream of these maps: so the writers of others can neither take an epoch of it nor learn of it.

        A pond may remember the stream without its maps: from an earlier release, or from before it was served. An
        epoch that was entered then is answered from there.
        """
        query, epoch = stream
        with self._pond.space.read() as tx:
            reached = maps_of_stream(tx, query) if remembered(tx, None, stream) is not None else ()
        if maps <= set(reached) and all(map(may, reached)):
            return stream
        return scoped_query(query, maps), epoch

    def _files(
        self, parts: Sequence[str], brought: Mapping[str, PartFile], branch: str | None = None
    ) -> list[PartFile | None]:
        """Each part, where it was brought, or uploaded."""

        def here(part: str) -> PartFile | None:
            file = None if part in brought else self._receiver.uploaded(part, anywhere=True, branch=branch)
            return brought.get(part) or (None if file is None else PartFile(file, read_manifest(file)))

        return [here(part) for part in parts]

    def _find(
        self,
        parts: Sequence[str],
        files: Sequence[PartFile | None],
        may: Callable[[str], bool],
        branch: str | None = None,
    ) -> tuple[list[PartFile], int, set[str]]:
        """Those that are here, or brought, in their order, how many are known, and the maps of all."""
        here: dict[str, PartFile] = {}
        maps: set[str] = set()
        positions = 0
        for part, file in zip(parts, files, strict=True):
            name = self._receiver.map_of(part) if file is None and branch is None else None
            if file is not None and may(file.manifest.map):
                here[part] = file
                maps.add(file.manifest.map)
            elif file is None and name is not None and may(name):
                positions += 1
                maps.add(name)
            else:
                raise NotFound(
                    "a part of the load was not uploaded", kind="part_not_uploaded", part=part,
                    hint="upload it first; uploads that no load enters expire",
                )  # fmt: skip
        return [here[part] for part in parts if part in here], positions, maps
