"""A pond that becomes a copy of another one, and a map that becomes a copy of another's.

    clone/state.arrow                what the spaces of both have in common: columns `key`, `value`
    clone/quarantine.arrow                likewise, the parts that the other had quarantined
    clone/<map>.<incarnation>.mdb    a copy of the map's shard, at least as far as the log in the state
    clone/ready.json                 all of it is here, whole: from now on there is no way back

The shards may be ahead of the state. What they know already is entered again when the log is pulled on, and doing it
again changes nothing: the shard says up to which load it is merged, and a maintenance order before that has run.

Invariants:
* until `ready.json` is there the pond is as it was; once it is there, the clone is carried out, if need be by the next
  process that opens the pond;
* a shard that is replaced gets a version that it never had, and no list of touched keys: what was frozen from the old
  one is not taken for the new one, and the next freeze reads everything;
* the space changes in one write.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import lmdb
import pyarrow as pa

from millpond.errors import Corrupt, Invalid, Unavailable
from millpond.json_forms import FormError, JsonForm, OtherFormat
from millpond.kernel.keyspace import REGISTRY, Keyspace, Scope
from millpond.kernel.pieces import pieces
from millpond.kernel.space import ReadTransaction, Space, Transaction
from millpond.kernel.steps import step
from millpond.maps.log.log import ENTRIES
from millpond.maps.log.queue import PartPlaces, Quarantined
from millpond.maps.model.catalogue import list_maps
from millpond.maps.model.definition import MapDefinition, Store, folder_name
from millpond.maps.model.keyspaces import ABSORBED, ALERTS, CATALOGUE, CLONED, POND_ID, QUARANTINE
from millpond.maps.shard.generation import Generation
from millpond.maps.shard.shard import Shard, generation_folder, read_generation
from millpond.stores.files import disk_errors, make_folder, remove_tree, sync, write_file_atomically
from millpond.stores.lmdb.environment import Environment
from millpond.stores.locks import alone

__all__ = (
    "CLONE_FORMAT",
    "Clone",
    "adopt_clone",
    "adopt_copy",
    "quarantine_of",
    "clone_folder",
    "definitions_of",
    "forget_quarantined",
    "resume_clone",
    "shard_file",
    "own_rows",
    "raise_version",
    "read_rows",
    "write_own",
    "write_pieces",
    "write_quarantine",
    "write_rows",
    "write_state",
)

CLONE_FORMAT = 1
"""All files of a clone but the shards, which carry their own number."""
_DONE = CLONED.pack()
_ROWS = pa.schema(
    [pa.field("key", pa.binary()), pa.field("value", pa.binary())], metadata={"format": str(CLONE_FORMAT)}
)
_ROWS_PER_BATCH = 8192
_BATCH_BYTES = 8 << 20
_LOCK_SECONDS = 600.0
_VERSIONS_MAX = 1 << 32


@dataclass(frozen=True, slots=True)
class Clone:
    """A clone under construction: `maps` are the names of the shard files, `<map>.<incarnation>`."""

    id: str
    pond: str
    position: int
    maps: tuple[str, ...]


_READY = JsonForm(Clone, format=CLONE_FORMAT)


def clone_folder(folder: Path) -> Path:
    """The folder in which a clone is assembled."""
    return folder / "clone"


def shard_file(folder: Path, definition: MapDefinition) -> Path:
    """Path of the copy of a shard."""
    return clone_folder(folder) / f"{definition.name}.{definition.incarnation}.mdb"


# -- the files ----------------------------------------------------------------------------------------


def write_state(tx: ReadTransaction, file: Path) -> None:
    """Write what the space has in common with its peers'.

    Raises: `Corrupt` when the space has rows of which nobody knows whether peers have them too.
    """
    stray = next(REGISTRY.unregistered(tx), None)
    if stray is not None:
        raise Corrupt(
            "the space holds rows of no known keyspace", kind="keyspace_unknown", key=stray.hex(),
            hint="open the pond with the version of Millpond that wrote them",
        )  # fmt: skip
    write_rows(file, (row for keyspace in REGISTRY.of(Scope.SHARED) for row in tx.scan(keyspace.range())))


def write_quarantine(tx: ReadTransaction, file: Path) -> None:
    """Write which parts were quarantined."""
    write_rows(file, tx.scan(QUARANTINE.range()))


def write_own(tx: ReadTransaction, file: Path) -> None:
    """Write the rows that the folder alone has, but for those of its node: a backup takes them, and no clone does. And
    the rules of alerts: no entry of the log tells of those that came after the state.
    """
    write_rows(file, (row for keyspace in _own_keyspaces() for row in tx.scan(keyspace.range())))


def _own_keyspaces() -> list[Keyspace]:
    return [ALERTS, *(keyspace for keyspace in REGISTRY.of(Scope.FOLDER) if keyspace.part != "pond")]


def own_rows(file: Path) -> Iterator[tuple[bytes, bytes]]:
    """The rows of a file, each of which only a folder has.

    Raises: `Corrupt` when it cannot be read, or holds others.
    """
    return _rows_of(file, _own_keyspaces().__contains__, "none of a folder alone")


def write_pieces(file: Path, piece: Path) -> Iterator[Path]:
    """Write the rows of a file piece by piece, each under the same path: most pieces are those of an earlier file."""
    for rows in pieces(own_rows(file), lambda row: row[0], lambda row: len(row[0]) + len(row[1])):
        write_rows(piece, rows)
        yield piece


def write_rows(file: Path, rows: Iterable[tuple[bytes, bytes]]) -> None:
    """Write rows as an Arrow stream."""
    with disk_errors(file), pa.OSFile(str(file), "wb") as sink, pa.ipc.new_stream(sink, _ROWS) as writer:
        some: list[tuple[bytes, bytes]] = []
        size = 0
        for row in rows:
            some.append(row)
            size += len(row[1])
            if len(some) == _ROWS_PER_BATCH or size >= _BATCH_BYTES:
                writer.write_batch(_batch(some))
                some, size = [], 0
        writer.write_batch(_batch(some))


def _batch(rows: Sequence[tuple[bytes, bytes]]) -> pa.RecordBatch:
    columns = [pa.array([row[column] for row in rows], pa.binary()) for column in (0, 1)]
    return pa.RecordBatch.from_arrays(columns, schema=_ROWS)


def read_rows(file: Path) -> Iterator[tuple[bytes, bytes]]:
    """The rows of an Arrow stream.

    Raises: `Corrupt` when it cannot be read; `Invalid` for another format.
    """
    with pa.OSFile(str(file), "rb") as source:
        try:
            reader = pa.ipc.open_stream(source)
            version = (reader.schema.metadata or {}).get(b"format", b"none").decode(errors="replace")
            if version != str(CLONE_FORMAT):
                raise _other_format(file, version)
            for batch in reader:
                yield from zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True)
        except pa.ArrowInvalid as error:
            raise _unreadable(file, error) from error


def _other_format(file: Path, version: object) -> Invalid:
    return Invalid(
        "the clone has a format this version does not know", kind="clone_format", file=file, found=version,
        known=CLONE_FORMAT, hint="run the same version of Millpond on both nodes, remove the folder the file lies in, "
        "then make the node a copy again: millpond repair --from URL",
    )  # fmt: skip


def _unreadable(file: Path, reason: object) -> Corrupt:
    return Corrupt(
        "the state of a clone cannot be read", kind="clone_state", file=file, reason=reason,
        hint="remove the folder it lies in, then make the node a copy again: millpond repair --from URL",
    )  # fmt: skip


def definitions_of(file: Path) -> list[MapDefinition]:
    """The maps in a state.

    Raises: `Corrupt` when it cannot be read, or holds what is not shared.
    """
    return [MapDefinition.from_json(value) for key, value in _shared_rows(file) if key in CATALOGUE]


def _shared_rows(file: Path) -> Iterator[tuple[bytes, bytes]]:
    """The rows of a state, each of which is to be copied as it is."""
    return _rows_of(file, lambda keyspace: keyspace.scope is Scope.SHARED, "none that nodes share")


def _rows_of(file: Path, is_one: Callable[[Keyspace], bool], fault: str) -> Iterator[tuple[bytes, bytes]]:
    for key, value in read_rows(file):
        keyspace = REGISTRY.find(key)
        if keyspace is None or not is_one(keyspace):
            raise _unreadable(file, f"the row {key.hex()} is {fault}")
        yield key, value


def quarantine_of(file: Path) -> list[Quarantined]:
    """The parts that the other had quarantined.

    Raises: `Corrupt` when it cannot be read.
    """
    return [Quarantined.from_json(value) for _, value in read_rows(file)]


# -- one shard ----------------------------------------------------------------------------------------


def adopt_copy(shard: Shard, file: Path | None) -> None:
    """Make a copy of another node's shard this one; None: of a map without a row.

    Call it while `shard.exclusive()`; doing it twice is harmless.
    """
    current = read_generation(shard.folder)
    if current is None and file is None:
        return
    if current is not None and file is not None and (shard.folder / current / "data.mdb").samefile(file):
        return
    number = int(current or 0) + 1
    target = generation_folder(shard.folder, number)
    remove_tree(target)
    with disk_errors(target):
        make_folder(target)
        if file is not None:
            # A second name of the same file: a crash leaves the first, to begin again with.
            os.link(file, target / "data.mdb")
    try:
        above = shard.version
    except Corrupt:
        # The shard is replaced because it cannot be read, and had far fewer versions than this.
        above = _VERSIONS_MAX
    raise_version(shard, target, above)
    sync(target)
    sync(target.parent)
    step("clone.shard_linked")
    shard.switch(number)
    for other in shard.folder.iterdir():
        if other.is_dir() and other.name.isdigit() and int(other.name) != number:
            remove_tree(other)


def raise_version(shard: Shard, target: Path, above: int) -> None:
    """Give a generation of a shard, which nobody has open, a version above one, with no list of touched keys."""
    env = Environment.acquire(target)
    try:
        generation = Generation(shard.definition, env)
        env.write(generation.open_tables)
        with env.read() as tx:
            version = max(above, generation.number(tx, "version")) + 1

        def act(tx: lmdb.Transaction) -> None:
            generation.touched.write(tx, version, None)
            generation.put_number(tx, "version", version)

        env.write(act)
    finally:
        env.release()


# -- the whole pond -----------------------------------------------------------------------------------


def adopt_clone(folder: Path, space: Space, clone: Clone) -> None:
    """Become what was gathered in `clone/`.

    Raises: `Unavailable` when a map or the disk stays busy: it is carried out when the pond is opened next.
    """
    write_file_atomically(clone_folder(folder) / "ready.json", _READY.encode(clone))
    step("clone.ready")
    _carry_out(folder, space, clone)


def resume_clone(folder: Path, space: Space) -> bool:
    """Carry out a clone that a crash interrupted; whether there was one. Call it before anything else is done."""
    ready = clone_folder(folder) / "ready.json"
    if not ready.exists():
        return False
    _carry_out(folder, space, _read_ready(ready))
    return True


def _read_ready(file: Path) -> Clone:
    try:
        return _READY.decode(file.read_bytes())
    except OtherFormat as error:
        raise _other_format(file, error.format) from error
    except FormError as error:
        raise _unreadable(file, error) from error


def _carry_out(folder: Path, space: Space, clone: Clone) -> None:
    definitions = definitions_of(clone_folder(folder) / "state.arrow")
    with space.read() as tx:
        done = tx.get(_DONE) == clone.id.encode()
        before = list_maps(tx)
    if not done:
        with ExitStack() as held:
            _hold(held, folder, {folder_name(definition): definition for definition in (*before, *definitions)})
            for definition in definitions:
                if definition.store is Store.LAYERS:
                    continue  # its layers are brought when the log was followed to its end
                file = shard_file(folder, definition) if folder_name(definition) in clone.maps else None
                adopt_copy(_shard(folder, definition), file)
            step("clone.shards_switched")
            space.write(lambda tx: _put_state(tx, folder, clone))
            step("clone.space_written")
    _clean(folder, {folder_name(definition) for definition in definitions})
    step("clone.cleaned")
    remove_tree(clone_folder(folder))


def _shard(folder: Path, definition: MapDefinition) -> Shard:
    return Shard(folder / "shards" / folder_name(definition), definition)


def _hold(held: ExitStack, folder: Path, maps: dict[str, MapDefinition]) -> None:
    """Keep everybody from merging, and from entering."""
    for name in sorted(maps):
        held.enter_context(_shard(folder, maps[name]).exclusive(_LOCK_SECONDS))
    busy = Unavailable("a load is being entered", kind="pond_busy", folder=folder, hint="try again")
    held.enter_context(alone(folder / "loads.lock", _LOCK_SECONDS, busy))


def _put_state(tx: Transaction, folder: Path, clone: Clone) -> None:
    for keyspace in REGISTRY.of(Scope.SHARED, Scope.LOCAL):
        tx.delete_range(keyspace.range())
    source = clone_folder(folder)
    for key, value in _shared_rows(source / "state.arrow"):
        tx.put(key, value)
    for quarantined in quarantine_of(source / "quarantine.arrow"):
        tx.put(QUARANTINE.pack(quarantined.map, quarantined.number), quarantined.to_json())
    _forget_entries(tx)
    tx.put(POND_ID.pack(), clone.pond.encode())
    tx.put(_DONE, clone.id.encode())


def _forget_entries(tx: Transaction) -> None:
    """Keep of the log only what follows its last load: the parts of the others are not here, so nobody can follow."""
    loads = (record.position for record in ENTRIES.records(tx) if record.entry.kind == "load")
    ENTRIES.trim(tx, max(loads, default=0) + 1)


def forget_quarantined(folder: Path, space: Space, name: str, position: int) -> None:
    """Forget the parts of a map that were quarantined: a copy of the map holds everything up to a position."""

    def leave(tx: Transaction) -> list[Quarantined]:
        quarantine = [(key, Quarantined.from_json(value)) for key, value in tx.scan(QUARANTINE[name].range())]
        gone = [(key, part) for key, part in quarantine if part.position <= position]
        for key, part in gone:
            tx.delete(key)
            # Quarantine forgets that the part is known. It is in the map now.
            tx.put(ABSORBED.pack(name, part.part), part.number.to_bytes(8, "big"))
        return [part for _, part in gone]

    places = PartPlaces(folder)
    for part in space.write(leave):
        for place in (places.quarantine(part), places.reason(part)):
            place.unlink(missing_ok=True)


def _clean(folder: Path, needed: set[str]) -> None:
    """Remove what belonged to what the pond was."""
    for parent in ("parts", "quarantine"):
        for place in (folder / parent).glob("[!.]*"):
            place.unlink(missing_ok=True)
    for parent in ("shards", "snapshots"):
        for place in _visible(folder / parent):
            if place.name not in needed:
                remove_tree(place)


def _visible(parent: Path) -> list[Path]:
    return [place for place in parent.glob("[!.]*") if place.is_dir()]
