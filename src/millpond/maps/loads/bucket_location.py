"""A pond in a bucket, and the folder of this machine before it.

    s3://bucket/prefix/pond.json                format version, put last when a pond is made
                      /space/                   the space: `docs/format/bucket.md`; or what guards one in a database
                      /snapshots/<map>.<…>/     files of layered maps, as in a folder
                      /repositories/            commits and indexes of branches
                      /events/<id>              large batches of events
                      /workflows/               the log of commands, and checkpoints: `workflows/partitions/bucket.py`
                      /uploads/<part>           parts that came to a node, until their load is entered

What the folder has may be lost between two openings: copies of files, locks, rows on their way.

Invariants:
* A pond is made only where nothing is, in a bucket that keeps to `If-None-Match`: of several who put one name, one
  succeeds. A try among threads shows that before the marker is there.
* Who opens a pond only reads. The first change of a process tries whether it may write, and whether the bucket still
  keeps to conditions, before anything is put; and whether it may remove, which this machine remembers of a key.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from pathlib import Path

from millpond.clock import Clock, SystemClock
from millpond.errors import Conflict, Invalid, NotFound, Unavailable, Uncertain
from millpond.kernel.space import ReadTransaction
from millpond.maps.loads.pond_folder import (
    FOLDERS,
    MARKER,
    POND_FORMAT,
    HeadNote,
    make_folders,
    marker_of,
    read_marker,
    read_note,
)
from millpond.maps.log.ownership import OwnerLock
from millpond.maps.model.keyspaces import PURGED
from millpond.ranges.files import in_form
from millpond.ranges.verify import check_file
from millpond.retry import Backoff, only, retry
from millpond.sizes import parse_size
from millpond.stores.bucket_space.space import MAX_STALENESS, BucketSpace, Watched
from millpond.stores.objects import (
    CACHE_MAX,
    Beside,
    CopiesOf,
    FolderBeforeBucket,
    Objects,
    ObjectsBelow,
    ObjectStore,
    StoreBelow,
    begin_after,
    drop_copies,
    open_objects,
)

__all__ = ("UNSUPPORTED", "StorageBucket", "bucket_location", "bucket_unsupported", "cache_bound")

UNSUPPORTED = {
    "shards": "make the map with store='layers', or keep it in a pond in a folder",
    "a Redis for events": "leave events.store out: events lie in the bucket",
    "another log of workflows": "leave workflows.log out: all nodes on the bucket share the log that is in it",
    "another store of runs": "leave workflows.store out: the log in the bucket is what counts",
    "replication": "leave nodes.urls out: every node on the bucket takes reads and writes, behind any load balancer; "
    "the pond is copied from its bucket, not from a node",
    "backups": "copy the pond (millpond copy), or let the bucket keep versions",
    "readers": "leave server.readers out, and start more nodes",
    "another place for repositories": "leave versions.space and versions.objects out: they lie in the bucket",
}
"""The parts that do not work in a bucket, each with the way out."""
MARKER_NAME = "pond.json"
_SCHEME = "s3://"
_OWN = ("leases", "pins", "scratch", "subsets", "writing.lock")
_RACERS = 4
_PAUSES = Backoff(first_seconds=0.1, seconds_max=5.0, attempts_max=8)
_CACHE_MAX = "MILLPOND_BUCKET_CACHE_MAX"
_RIGHTS_MS = 7 * 24 * 3_600_000
"""So long this machine remembers that credentials may remove objects."""


def bucket_location(
    url: str, clock: Clock, *, cache: object = "", max_staleness: object = None, cache_max: object = None,
    space: str = "",
) -> StorageBucket:  # fmt: skip
    """The place of a pond at `s3://bucket/prefix`; `cache` is the folder for copies, by default the user's. `space`:
    the database of its rows, where they do not lie in the bucket.

    Raises: `Invalid` for an address that is not understood, or a size.
    """
    url = f"s3://{url[len(_SCHEME) :].strip('/')}"
    if url == _SCHEME:
        raise Invalid(
            "the address names no bucket", kind="objects_config", where=url, hint="such as s3://bucket/prefix"
        )
    from millpond.stores.objects.bucket import endpoint_set

    if max_staleness is not None and not (isinstance(max_staleness, int | float) and max_staleness >= 0):
        raise Invalid("no age in seconds", kind="setting_type", setting="max_staleness", value=max_staleness,
                      hint="a number of seconds, 0 or more; 0 asks the bucket each time")  # fmt: skip
    if not isinstance(cache, str | os.PathLike):
        raise Invalid("no folder", kind="setting_type", setting="cache", value=cache, hint="the path of a folder")
    # Two servers may have buckets of one name.
    id_ = blake2b(f"{endpoint_set()} {url}".encode(), digest_size=10).hexdigest()
    folder = _cache_folder(cache)
    return StorageBucket(
        url, folder / id_, clock, MAX_STALENESS if max_staleness is None else max_staleness, cache_bound(cache_max),
        space,
    )  # fmt: skip


def bucket_unsupported(part: str, pond: str) -> Invalid:
    """The error for a part, one of `UNSUPPORTED`, that a pond in a bucket does not have."""
    return Invalid("a pond in a bucket does not have this", kind="bucket_unsupported", part=part, pond=pond,
                   hint=UNSUPPORTED[part])  # fmt: skip


def cache_bound(stated: object = None) -> int:
    """The bytes of copies on this machine: as given, else as the environment says; 0 is none.

    >>> cache_bound("1GiB"), cache_bound(0)
    (1073741824, 0)

    Raises: `Invalid` for what is no size.
    """
    text = os.environ.get(_CACHE_MAX, CACHE_MAX) if stated is None else stated
    size = parse_size(text) if isinstance(text, str) else text
    if not isinstance(size, int) or size < 0:
        raise Invalid("no size is below 0", kind="setting_type", setting="cache_max", value=size,
                      hint="a size such as 16GiB; 0 for no copies")  # fmt: skip
    return size


def _cache_folder(stated: str | os.PathLike[str]) -> Path:
    if os.fspath(stated):
        return Path(stated).expanduser()
    from platformdirs import user_cache_path

    return user_cache_path("millpond") / "buckets"


@dataclass(frozen=True, slots=True)
class StorageBucket:
    """A prefix of a bucket."""

    address: str
    folder: Path
    clock: Clock
    max_staleness: float = MAX_STALENESS
    cache_max: int = CACHE_MAX
    space: str = field(default="", repr=False)
    note: HeadNote | None = field(init=False, default=None)
    objects: ObjectStore = field(init=False)
    copies: CopiesOf = field(init=False)
    _files: dict[Path, FolderBeforeBucket] = field(init=False, default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "objects", open_objects(self.address))
        copies = CopiesOf(self.folder.parent, "*/snapshots/*", _OWN, self.clock, check_file, self.cache_max, in_form)
        object.__setattr__(self, "copies", copies)

    @property
    def repositories(self) -> str:
        """A prefix of the pond's."""
        return f"{self.address}/repositories"

    def refuse(self, part: str) -> None:
        """Refuse a part that is not made for buckets.

        Raises: `Invalid`, kind `bucket_unsupported`.
        """
        if part in UNSUPPORTED:
            raise bucket_unsupported(part, self.address)

    def check(self, *, create: bool) -> int:
        """The format of the pond at the prefix.

        Raises: `Invalid` for a prefix with something else, or a bucket that cannot hold a pond; `Denied`, naming the
        verb; `Unavailable`.
        """
        marker = self._marker()
        if marker is None:
            if not create:
                raise Invalid("there is no pond here", kind="pond_missing", pond=self.address,
                              hint=f"make one: millpond init {self.address}")  # fmt: skip
            marker = self._begin()
        stored = self._format(marker)
        if self.space and self.note is None:
            raise Invalid(
                "the pond has its rows in its bucket", kind="head_other", pond=self.address,
                hint="leave space out; or make a new pond with it, and copy this one there: millpond copy",
            )  # fmt: skip
        try:
            make_folders(self.folder, *FOLDERS)
        except (FileExistsError, FileNotFoundError, NotADirectoryError, PermissionError) as error:
            raise Invalid(
                "there can be no folder for copies of what a bucket has", kind="setting_type", setting="cache",
                value=self.folder.parent, reason=error.strerror, hint="name another folder",
            ) from error  # fmt: skip
        return stored

    def _format(self, marker: bytes) -> int:
        """The format that a marker says; what else it says is remembered."""
        object.__setattr__(self, "note", read_note(marker))
        stored = read_marker(MARKER if self.note else marker, self.address, f"{self.address}/{MARKER_NAME}")
        return POND_FORMAT if stored == 4 else stored  # what changed since is in folders alone

    def move_head(self) -> bool:
        """Move the rows of the pond to the database that `space` names; False when they lie there, or there is none.

        Raises: as `stores/postgres/head.move`; `Invalid`, kind `head_other`, for a pond with its rows in its bucket.
        """
        from millpond.stores.postgres import head

        if self._marker() is None:
            return False
        tagged = self.objects.get_tagged(MARKER_NAME)
        self._format(tagged.data.to_pybytes())
        if self.note is None or head.same_database(self.space, self.note.space):
            return False
        home = head.move(head.Home(self.note.id, self.address, self.note.space), self.space)
        self.objects.swap(MARKER_NAME, marker_of(HeadNote(home.home, home.id)), tagged.tag)
        return True

    def _marker(self) -> bytes | None:
        try:
            return self.objects.get(MARKER_NAME).to_pybytes()
        except NotFound as error:
            if error.kind != "object_not_found":
                raise
            return None

    def _begin(self) -> bytes:
        """Make a pond where nothing is; its marker."""
        there = next((info.name for info in self.objects.list() if not info.name.startswith("probe/")), None)
        if there is not None:
            raise Invalid("the prefix holds something else", kind="pond_folder", pond=self.address, object=there,
                          hint="name an empty prefix")  # fmt: skip
        self._race()
        note = None
        if self.space:
            from millpond.stores.postgres.head import claim

            home = claim(self.space, self.address, self.clock.random_id())
            note = HeadNote(home.home, home.id)
        marker = marker_of(note)
        if self._put_new(MARKER_NAME, marker):
            return marker
        return self._marker() or marker  # another process made it, or an answer was lost

    def _race(self) -> None:
        """See that of several puts of one name one succeeds, and that objects can be removed."""
        name = f"probe/{self.clock.random_id()}"
        with ThreadPoolExecutor(_RACERS, thread_name_prefix="probe") as threads:
            first = list(threads.map(lambda number: self._put_new(name, b"%d" % number), range(_RACERS)))
        stored = self.objects.get(name).to_pybytes()
        self.objects.delete(name)
        won = [b"%d" % number for number in range(_RACERS) if first[number]]
        # None is known to have won where its answer was lost: without conditions its next try would have.
        if won and won != [stored]:
            raise self._unfit()

    def _try_writing(self) -> None:
        """See that this process may put and remove, and that a put of what is there is refused."""
        # A bucket that does not keep to conditions puts it: then it says what it said.
        if self._put_new(MARKER_NAME, marker_of(self.note)):
            raise self._unfit()
        from millpond.stores.objects.bucket import credential_set

        who = blake2b(credential_set().encode(), digest_size=10).hexdigest()
        note, now_ms = self.folder / "rights" / who, self.clock.now_ms()
        with suppress(OSError, ValueError):
            if 0 <= now_ms - int(note.read_text()) < _RIGHTS_MS:
                return
        self.objects.delete(f"probe/{self.clock.random_id()}")  # what is not there is removed by those who may
        with suppress(OSError):
            note.parent.mkdir(exist_ok=True)
            note.write_text(str(now_ms))

    def _put_new(self, name: str, data: bytes) -> bool:
        """Put an object where none is; False when there was one: this one, where an answer was lost before.

        Raises: `Denied`, naming the verb; `Invalid`, kind `bucket_unfit`; `Unavailable` when it does not answer.
        """
        try:
            retry(lambda: self.objects.swap(name, data, None), only(Uncertain, _PAUSES), self.clock)
        except Conflict:
            return False
        except Uncertain as error:  # not of what is to be written
            raise Unavailable("the bucket takes no writes; nothing was changed", kind="objects_unavailable",
                              pond=self.address, reason=error.values.get("reason", error.message),
                              hint="check AWS_ENDPOINT_URL and the network, then try again") from error  # fmt: skip
        except Invalid as error:
            if error.kind != "objects_unsupported":
                raise
            raise self._unfit() from error
        return True

    def _unfit(self) -> Invalid:
        return Invalid(
            "the bucket does not keep to conditional writes (If-None-Match)", kind="bucket_unfit", pond=self.address,
            hint="Amazon S3, Cloudflare R2, MinIO, Ceph and versitygw do; else keep the pond in a folder",
        )  # fmt: skip

    def serve(self, owner: OwnerLock) -> None:
        """Be one of any number of nodes; what it has on this machine alone lies in `nodes/<number>`."""
        owner.serve_beside(self.folder / "nodes")

    def open_space(self) -> BucketSpace:
        """The space below the prefix, or in its database.

        Raises: as `BucketSpace`; as `open_head`.
        """
        watched = Watched(PURGED.range(), self._drop_copies)
        if self.note is not None:
            from millpond.stores.postgres.head import Home, open_head

            return open_head(
                Home(self.note.id, self.address, self.note.space), self.space, self.objects, self.clock,
                max_staleness=self.max_staleness, before_writing=self._try_writing, watched=watched,
            )  # fmt: skip
        return BucketSpace(
            StoreBelow(self.objects, "space"), self.clock, max_staleness=self.max_staleness,
            before_writing=self._try_writing, watched=watched,
        )  # fmt: skip

    def _drop_copies(self, tx: ReadTransaction) -> None:
        """Remove the copies of files that this machine has from before purges."""
        for key, row in tx.scan(PURGED.range()):
            folder, purge = self.folder / "snapshots" / str(PURGED.unpack(key)[0]), int(row)
            if folder in self._files:
                drop_copies(self._files[folder], purge)
            else:
                begin_after(self.open_files(folder), purge)

    def beyond_purges(self) -> Iterator[str]:
        """A line for each place that may have rows of maps, and that a purge does not look at.

        Raises: `Denied`, `Unavailable`.
        """
        for prefix in self.objects.level("writer").prefixes:
            yield f"{prefix}: not read; a job of Spark has put it: delete again when it has ended"
        if any(True for _ in self.objects.list("uploads")):
            yield "uploads/: not read; parts on their way to a load: delete again when it is entered"
        self._put_new(probe := f"probe/{self.clock.random_id()}", b"")
        self.objects.delete(probe)
        if self.objects.versioned:
            yield "old versions of objects: the bucket keeps versions; remove them there, or let a rule expire them"

    def open_files(self, folder: Path) -> FolderBeforeBucket:
        """The files of a map: copies in the folder, the originals below the prefix."""
        # One for all who use them: what one put, another need not ask for.
        if folder not in self._files:
            self._files[folder] = FolderBeforeBucket(
                folder, self.files_of(folder.name), self.copies,
                elsewhere=partial(_files_of, self.address, folder.name),
            )  # fmt: skip
        return self._files[folder]

    def files_of(self, folder: str) -> Objects:
        """The files of a map in the bucket."""
        return ObjectsBelow(self.objects, f"snapshots/{folder}")

    def beside(self, part: str) -> Beside:
        """A folder of the pond's in the bucket: a copy of all rows is in the memory of each process."""
        return Beside(StoreBelow(self.objects, part), self.now_ms)

    def now_ms(self) -> int:
        """The time of the bucket, as it says of an object that is put now.

        Raises: `Denied`, `Unavailable`.
        """
        name = f"probe/{self.clock.random_id()}"
        self.objects.put(name, b"")
        info = next(iter(self.objects.list("probe", prefix=name)), None)
        self.objects.delete(name)
        if info is None:
            raise Unavailable("the bucket does not list what was put", kind="objects_unavailable", object=name,
                              where=self.address, hint="try again")  # fmt: skip
        return info.modified_ms


def _files_of(address: str, name: str) -> FolderBeforeBucket:
    """The files of a map in a process that has not opened its pond, with copies in the folder of its user."""
    location = bucket_location(address, SystemClock())
    return location.open_files(location.folder / "snapshots" / name)
