"""A shard: the store of record of one map, an LMDB environment that is merged into in place.

    shards/<map>/current            the generation that counts, as six digits
    shards/<map>/000001/data.mdb    that generation (compacting writes the next one and switches)
    shards/<map>/write.lock         held by whoever changes the shard

Table `info` keeps, in the same transaction as the rows they speak of: `version` (grows with every change),
`absorbed` (the number of the last load that was merged), `position` (its place in the log), `longest` (no session of
the map lasts longer, in milliseconds) and
`updates_since` (when update times began to be kept).

Invariants:
* every change is one LMDB transaction, which also raises `version`;
* the touched keys of a version are written in that transaction, too (`changed_keys.py`);
* a generation without table `info` has not been committed to yet: readers see an empty map;
* readers see the shard as it was when they began, whatever is written meanwhile.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import lmdb

from millpond.deferred import pa
from millpond.errors import Closed, Corrupt, Unavailable
from millpond.kernel.steps import step
from millpond.maps.model.definition import MapDefinition
from millpond.maps.shard.generation import Generation
from millpond.maps.shard.interned_tables import InternedStore
from millpond.maps.shard.open_shards import OPEN_SHARDS
from millpond.maps.shard.plain_tables import PlainStore
from millpond.maps.shard.update_times import tracks_updates
from millpond.stores.files import is_out_of_files, make_folder, out_of_files, remove_tree, write_file_atomically
from millpond.stores.lmdb.environment import Environment, Limits
from millpond.stores.locks import alone

__all__ = ("Shard", "ShardStats", "ShardView", "generation_folder", "read_generation")

Result = TypeVar("Result")
WRITE_LOCK_SECONDS = 600.0
_GENERATION = re.compile(r"[0-9]{6}")


@dataclass(frozen=True, slots=True)
class ShardStats:
    """Counts of a shard."""

    rows: int
    version: int
    bytes: int


def read_generation(folder: Path) -> str | None:
    """The generation that counts, or None when the map has no shard yet.

    Raises: `Corrupt` when it points to no generation.
    """
    pointer, seen = folder / "current", b""
    while True:
        try:
            content = pointer.read_bytes()
        except FileNotFoundError:
            return None
        generation = _named(folder, content)
        if generation is not None:
            return generation
        if content == seen:
            raise _astray(pointer, content)
        # Compacting may have switched, and removed the named generation, in between.
        seen = content


def _named(folder: Path, content: bytes) -> str | None:
    """The generation that a pointer tells, None when there is none of that name."""
    generation = content.strip().decode(errors="replace")
    return generation if _GENERATION.fullmatch(generation) and (folder / generation).is_dir() else None


def _astray(pointer: Path, content: bytes) -> Corrupt:
    return Corrupt(
        "the map's pointer names no generation", kind="shard_pointer", file=pointer, found=repr(content),
        hint="write the name of the folder beside it that holds data.mdb",
    )  # fmt: skip


def generation_folder(folder: Path, number: int) -> Path:
    """The folder of a generation."""
    return folder / f"{number:06d}"


def _not_loaded_yet() -> None:
    """A shard without a file is empty, for those who know of no catalogue."""


class Shard:
    """An open shard. Close it when done; it may be opened many times."""

    def __init__(
        self, folder: Path, definition: MapDefinition, limits: Limits | None = None, *,
        missing: Callable[[], None] | None = None,
    ) -> None:  # fmt: skip
        """`missing`: run when there is no file, which is so before the first load and after the map was dropped.

        `frozen_version`: a snapshot holds what changed up to there, so the next change drops those lists of keys.
        """
        self.folder = folder
        self._missing = missing or _not_loaded_yet
        self.definition = definition
        self.frozen_version = 0
        self._limits = limits
        self._lock = threading.RLock()
        self._unopened = Generation(definition, None)
        self._generation = self._unopened
        self._pointer = -1
        self._changing: tuple[int, Generation] | None = None
        self._seen: tuple[Generation | None, int, int] = (None, -1, 0)
        self._writers = 0
        self.recent = False

    @property
    def store(self) -> PlainStore | InternedStore:
        """The row tables of the current generation."""
        return self.tables.store

    @property
    def tables(self) -> Generation:
        """The tables of the current generation; inside `change`, those that it opened."""
        # What a change opens is known to its own transaction alone until it is committed.
        changing = self._changing
        return changing[1] if changing is not None and changing[0] == threading.get_ident() else self._generation

    # -- opening --------------------------------------------------------------------------------------

    def exists(self) -> bool:
        """True when the map has a shard."""
        return (self.folder / "current").exists()

    def create(self) -> None:
        """Make an empty shard when there is none."""
        if not self.exists():
            make_folder(generation_folder(self.folder, 1))
            self.switch(1)

    def switch(self, number: int) -> None:
        """Make a generation the one that counts. Readers notice at their next question."""
        write_file_atomically(self.folder / "current", f"{number:06d}\n".encode())
        step("shard.switched")

    def _opened(self) -> Generation | None:
        """The current generation, opened anew when another became current; None when there is none yet."""
        # Asked with every question. The pointer is replaced, never changed: while the file that was read still has a
        # name, it is the one that counts. The lock keeps another thread from closing that file meanwhile.
        with self._lock:
            self.recent = True
            if self._pointer < 0 or not os.fstat(self._pointer).st_nlink:
                return self._reopen()
            if self._generation.info is None:
                # Its first change was not committed yet when it was opened.
                self._generation.open_tables()
            return self._generation

    def _reopen(self) -> Generation | None:
        while self._pointer < 0 or not os.fstat(self._pointer).st_nlink:
            self.close()
            try:
                pointer, generation = self._open_current()
            except FileNotFoundError:
                self._missing()
                return None
            # What was opened counts only if it is current still, else it may have been removed already.
            self._generation, self._pointer = generation, pointer
        return self._generation

    def _open_current(self) -> tuple[int, Generation]:
        """The pointer to the current generation, and the generation; other shards make room for its files."""
        OPEN_SHARDS.opening(self)
        try:
            return self._open_pointer()
        except (OSError, Unavailable) as error:
            OPEN_SHARDS.closed(self)
            if not is_out_of_files(error):
                raise
        OPEN_SHARDS.close_some(0)  # somebody else has the files that were meant for shards
        OPEN_SHARDS.opening(self)
        try:
            return self._open_pointer()
        except OSError as error:
            OPEN_SHARDS.closed(self)
            if is_out_of_files(error):
                raise out_of_files(self.folder, error) from error
            raise

    def _open_pointer(self) -> tuple[int, Generation]:
        pointer = os.open(self.folder / "current", os.O_RDONLY)
        try:
            return pointer, self._follow(pointer)
        except BaseException:
            os.close(pointer)
            raise

    def _follow(self, pointer: int) -> Generation:
        """The generation that the open pointer names; the unopened one when it counts no more, and is gone."""
        content = os.pread(pointer, 64, 0)
        generation = _named(self.folder, content)
        if generation is not None:
            return self._open(generation)
        if os.fstat(pointer).st_nlink:
            raise _astray(self.folder / "current", content)
        return self._unopened

    def _open(self, number: str) -> Generation:
        generation = Generation(self.definition, Environment.acquire(self.folder / number, limits=self._limits))
        try:
            generation.open_tables()
        except BaseException:
            assert generation.env is not None
            generation.env.release()
            raise
        return generation

    def let_go(self) -> bool:
        """Close the file unless the shard is being opened or changed; it opens again by itself. True: it is closed."""
        if not self._lock.acquire(blocking=False):
            return False
        try:
            if not self._writers:
                self.close()
            return not self._writers
        finally:
            self._lock.release()

    def close(self) -> None:
        """Let go of the file."""
        OPEN_SHARDS.closed(self)
        with self._lock:
            env, pointer = self._generation.env, self._pointer
            self._generation, self._pointer = self._unopened, -1
            if pointer >= 0:
                os.close(pointer)
            if env is not None:
                env.release()

    # -- reading --------------------------------------------------------------------------------------

    @contextmanager
    def view(self) -> Iterator[ShardView]:
        """The shard at one moment: version and rows that belong together."""
        with ExitStack() as stack:
            yield self._view(stack)

    def _view(self, stack: ExitStack) -> ShardView:
        while True:
            generation = self._opened()
            if generation is None or generation.info is None or generation.env is None:
                return ShardView(self, None, self._unopened)
            try:
                return ShardView(self, stack.enter_context(generation.env.read()), generation)
            except Closed:
                # Another thread switched to the next generation in between.
                if generation is self._generation:
                    raise

    @property
    def version(self) -> int:
        """Grows with every committed change; 0 when there was none."""
        # Asked with every lookup, and nearly always the same: it was read by a transaction that saw this change.
        try:
            generation = self._opened()
            if generation is None or generation.info is None or generation.env is None:
                return 0
            change = generation.env.last_change()
        except Closed:
            generation, change = None, -1  # another thread switched to the next generation in between
        seen, at, version = self._seen
        if generation is None or generation is not seen or change != at:
            with self.view() as view:
                version = view.version
                self._seen = view.generation, -1 if view.tx is None else view.tx.id(), version
        return version

    @property
    def absorbed(self) -> int:
        """The number of the last load that was merged."""
        with self.view() as view:
            return view.number("absorbed")

    @property
    def position(self) -> int:
        """The position in the log of the last load that was merged; 0 when there was no log."""
        with self.view() as view:
            return view.number("position")

    def stats(self) -> ShardStats:
        """Rows, version and bytes on disk."""
        with self.view() as view:
            env = view.generation.env
            size = (env.path / "data.mdb").stat().st_size if env is not None else 0
            return ShardStats(view.row_count(), view.version, size)

    @property
    def cached(self) -> Generation | None:
        """The current generation if it is open and the locks around it are free, else None.

        Opening one waits for the merge of the day. Reading it may wait still: `Environment.read(wait=False)`.
        """
        if not self._lock.acquire(blocking=False):
            return None
        try:
            generation = self._generation
            if generation.env is None or generation.info is None:
                return None
            return generation if os.fstat(self._pointer).st_nlink else None
        finally:
            self._lock.release()

    def get(self, address: bytes | int, at: int | None = None) -> bytes | tuple[int, int] | None:
        """The encoded value for a key or number (at a time), or `(start, end)` of a session; None on a miss."""
        while True:
            generation = self._opened()
            if generation is None or generation.info is None or generation.env is None:
                return None
            try:
                # As `view`, without what a single question does not need.
                with generation.env.read() as tx:
                    return generation.get(tx, address, at)
            except Closed:
                if generation is self._generation:
                    raise

    def read_rows(self, keys: list[bytes] | pa.Array | None = None, **bounds: Any) -> Iterator[pa.RecordBatch]:
        """As `ShardView.read_rows`, in a view of its own."""
        with self.view() as view:
            yield from view.read_rows(keys, **bounds)

    # -- writing --------------------------------------------------------------------------------------

    @contextmanager
    def exclusive(self, wait_seconds: float = WRITE_LOCK_SECONDS) -> Iterator[None]:
        """Be the only one who changes this shard, among all processes of the machine.

        Raises: `Unavailable` when somebody else keeps it for long.
        """
        if not self.exists():
            self._missing()  # or the folder of a map that was dropped would come back
        make_folder(self.folder)
        busy = Unavailable(
            "somebody else is changing the map", kind="map_busy", map=self.definition.name,
            hint="wait until the running load or maintenance is done",
        )  # fmt: skip
        with alone(self.folder / "write.lock", wait_seconds, busy), self._written():
            yield

    @contextmanager
    def _written(self) -> Iterator[None]:
        """The shard is being changed: `let_go` leaves it open."""
        with self._lock:
            self._writers += 1
        try:
            yield
        finally:
            with self._lock:
                self._writers -= 1

    def change(
        self, act: Callable[[lmdb.Transaction], Result], touched: pa.Array | None, *,
        absorbed: int = 0, position: int = 0, longest: int = 0,
    ) -> Result:  # fmt: skip
        """Do `act`, raise the version, and raise the numbers of table `info` where they are lower, in one transaction.

        Call it while `exclusive`. `touched` None means that too much changed to say: the next freeze reads everything.
        """
        self.create()
        numbers = {"absorbed": absorbed, "position": position, "longest": longest}
        generation = self._opened()
        assert generation is not None and generation.env is not None
        fresh = Generation(self.definition, generation.env)
        following = self.version + 1
        remove_tree(self.folder / "touched")  # the lists of an earlier format

        def whole(tx: lmdb.Transaction) -> Result:
            fresh.open_tables(tx)
            result = act(tx)
            fresh.put_number(tx, "version", following)
            fresh.touched.write(tx, following, touched, forget=self.frozen_version)
            for name, number in numbers.items():
                if number > fresh.number(tx, name):
                    fresh.put_number(tx, name, number)
            step("shard.changed_uncommitted")
            return result

        self._changing = threading.get_ident(), fresh
        try:
            result = generation.env.write(whole)
        except BaseException:
            # Table handles made in a transaction that failed are void: open them again on next use.
            self.close()
            raise
        finally:
            self._changing = None
        with self._lock:
            if self._generation is generation:
                self._generation = fresh
        step("shard.changed")
        return result

    @property
    def tracking(self) -> bool:
        """True when the shard keeps update times."""
        return tracks_updates(self.definition)

    def put_rows(self, tx: lmdb.Transaction, rows: pa.RecordBatch, now_ms: int, *, overwrite: bool) -> None:
        """Put canonical rows, unique by address and in its order, inside `change`."""
        self.store.put_rows(tx, rows, overwrite)
        if self.tracking:
            self.tables.updates.put(tx, rows, now_ms, overwrite)

    def delete_rows(self, tx: lmdb.Transaction, addresses: pa.RecordBatch) -> int:
        """Delete rows by their address columns, inside `change`; how many there were."""
        if self.tracking:
            self.tables.updates.delete(tx, addresses)
        return self.store.delete_rows(tx, addresses)


@dataclass(frozen=True, slots=True)
class ShardView:
    """A shard at one moment: a read transaction, None when there is nothing yet, and the tables it reads."""

    shard: Shard
    tx: lmdb.Transaction | None
    generation: Generation

    @property
    def definition(self) -> MapDefinition:
        """The map's definition; that of an aggregate rolled up as its rows are."""
        return self.shard.definition if self.tx is None else self.generation.definition(self.tx)

    @property
    def version(self) -> int:
        """The version the rows belong to."""
        return self.number("version")

    def number(self, name: str) -> int:
        """A number of table `info`; 0 when it was never put."""
        return 0 if self.tx is None else self.generation.number(self.tx, name)

    @property
    def store(self) -> PlainStore | InternedStore:
        """The row tables."""
        return self.generation.store

    def row_count(self) -> int:
        return 0 if self.tx is None else self.store.row_count(self.tx)

    def touched_since(self, version: int) -> pa.Array | None:
        """The keys touched after `version` up to this view's; None when that is no longer known."""
        return self.generation.touched.since(self.tx, version, self.version)

    def read_rows(
        self, keys: list[bytes] | pa.Array | None = None, *, lower: int | None = None, upper: int | None = None,
        key_lower: bytes | None = None, key_upper: bytes | None = None, since: int | None = None,
        until: int | None = None, batch_rows: int = 65_536,
    ) -> Iterator[pa.RecordBatch]:  # fmt: skip
        """Canonical rows, in the order of the tables.

        `keys`: all rows of just those keys (ranged maps: 16-byte ordered ranges). `lower, upper`: ranged maps,
        bounds of `key_start`. `key_lower, key_upper`: a hint; rows stored directly outside them are left out.
        `since, until`: with `keys`, bounds of the effective time, or of the start of sessions.
        """
        from millpond.maps.shard.row_batches import decoded, whole_table

        if isinstance(keys, (pa.Array, pa.ChunkedArray)):
            keys = keys.to_pylist()
        if self.tx is None:
            return
        whole = all(bound is None for bound in (keys, lower, upper, key_lower, key_upper))
        if whole and isinstance(self.store, PlainStore):
            assert self.generation.env is not None
            for table in self.store.tables():
                yield from whole_table(self.store, self.tx, self.generation.env, table, batch_rows)
            return
        if keys is not None:
            tables = self.store.stream_keys(self.tx, keys, since, until)
        else:
            tables = self.store.stream(self.tx, lower, upper, key_lower, key_upper)
        for table, pairs in tables:
            yield from decoded(self.shard.definition, self.store, self.tx, table, pairs, batch_rows)
