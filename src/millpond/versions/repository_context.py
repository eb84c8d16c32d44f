"""One repository and all that its acts stand on: the space, the clock, its objects, its settings.

Settings are rows of the space, and read in the transaction that they bound: what was set holds at once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, TypeVar

from millpond.error_values import ShownAsTable, shown
from millpond.errors import Conflict, Denied, Invalid, NotFound
from millpond.json_forms import FormError, JsonForm
from millpond.kernel.job_reports import NO_REPORTS, JobReports
from millpond.kernel.moments import Moments
from millpond.kernel.space import ReadTransaction, Space, Transaction, WouldBlock
from millpond.ranges import DEFAULT_BOUNDARIES, Boundaries, CachedObjects, HeldObjects, Index, load_index, write
from millpond.stores.objects.sources import Source, split_address
from millpond.versions.graph.resolve import Graph
from millpond.versions.keyspaces import COMMIT, REPOSITORY, SETTING, TAG
from millpond.versions.measures import Measures
from millpond.versions.objects.entries import ENTRIES
from millpond.versions.objects.uploads import is_full_address, relative_address

if TYPE_CHECKING:
    from millpond.clock import Clock
    from millpond.stores.objects import ObjectStore
    from millpond.versions.objects.signing import Signer
    from millpond.versions.staging.head_lock import HeadLocks
    from millpond.versions.staging.reads import View
    from millpond.versions.staging.tombstone_counter import TombstoneCounter

__all__ = (
    "COMPRESSION", "CompactionRules", "ProtectedBranches", "RepositoryContext", "RepositoryRecord", "Retention",
    "check_setting_row", "clear_setting", "get_repository", "graph_of", "no_setting", "parse_repository",
    "put_repository", "put_setting_row", "read_setting", "setting_rows", "stated", "write_setting",
)  # fmt: skip

COMPRESSION = "zstd"
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RepositoryRecord(ShownAsTable):
    """A repository. `uid` is another whenever a repository of that name is made anew; `created` counts seconds."""

    name: str
    uid: str
    namespace: str
    default_branch: str = "main"
    created: int = 0
    read_only: bool = False
    metadata: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ProtectedBranches:
    """Patterns of branches that take no writes and no commits, only merges; `*` and `?` stand for any letters."""

    patterns: tuple[str, ...] = ()

    def protects(self, branch: str) -> bool:
        """True when a pattern matches."""
        return any(fnmatchcase(branch, pattern) for pattern in self.patterns)


@dataclass(frozen=True, slots=True)
class Retention:
    """The days that commits stay active after another took their place, by default and for some branches."""

    default_days: int = 0
    branch_days: dict[str, int] = field(default_factory=dict)

    def days(self, branch: str) -> int:
        """The days for a branch."""
        return self.branch_days.get(branch, self.default_days)


@dataclass(frozen=True, slots=True)
class CompactionRules:
    """The thresholds of the sensor; 0 turns one off. After a compaction began, none begins for `pause_ms`."""

    deletions: int = 0
    sealed_tokens: int = 0
    pause_ms: int = 60_000


_FORM = JsonForm(RepositoryRecord)


def get_repository(tx: ReadTransaction, name: str) -> RepositoryRecord:
    """The record of a repository.

    Raises: `NotFound`, `Corrupt`.
    """
    row = tx.get(REPOSITORY.pack(name))
    if row is None:
        raise NotFound("repository not found", kind="repository_not_found", repository=name)
    return parse_repository(row, name)


def parse_repository(row: bytes, name: str) -> RepositoryRecord:
    """The record in a row.

    Raises: `Corrupt`.
    """
    return _FORM.stored(row, "a repository cannot be read", kind="repository_damaged", repository=name)


def put_repository(tx: Transaction, record: RepositoryRecord) -> None:
    """Store the record of a repository.

    Raises: as `stated`.
    """
    tx.put(REPOSITORY.pack(record.name), stated(_FORM, record))


def stated(form: JsonForm[T], value: T) -> bytes:
    """The row of a value with texts and numbers as a caller gave them.

    Raises: `Invalid` for those of another type: the row could not be read.
    """
    try:
        return form.checked(value)
    except FormError as error:
        raise Invalid("a value is not of its type", kind="value_form", value=shown(value), reason=error) from error


_SETTINGS: Mapping[type, tuple[str, JsonForm[object]]] = {
    kind: (name, JsonForm(kind))
    for kind, name in ((ProtectedBranches, "protected"), (Retention, "retention"), (CompactionRules, "compaction"))
}


def _setting(kind: object) -> tuple[str, JsonForm[object]]:
    if not isinstance(kind, type) or kind not in _SETTINGS:
        raise no_setting(kind)
    return _SETTINGS[kind]


def no_setting(kind: object) -> Invalid:
    """The error for what is no setting of a repository."""
    return Invalid(
        "this is no setting of a repository", kind="value_form", value=shown(kind),
        hint=", ".join(setting.__name__ for setting in _SETTINGS),
    )  # fmt: skip


def read_setting(tx: ReadTransaction, uid: str, kind: type[T]) -> tuple[T | None, str]:
    """A setting and its tag; None and an empty tag when it was never set.

    Raises: `Corrupt`; `Invalid` for a class that is no setting.
    """
    name, form = _setting(kind)
    row = tx.get(SETTING[uid].pack(name))
    if row is None:
        return None, ""
    value = form.stored(row, "a setting cannot be read", kind="setting_damaged", setting=name)
    return value, hashlib.sha256(row).hexdigest()  # type: ignore[return-value]


def write_setting(tx: Transaction, uid: str, value: object, *, expected: str | None = None) -> str:
    """Store a setting, if the one there has the tag `expected`, where one is given; the new tag. None clears nothing.

    Raises: `Conflict`; as `stated`.
    """
    name, form = _setting(type(value))
    current = read_setting(tx, uid, type(value))[1]
    if expected is not None and expected != current:
        raise Conflict(
            "the setting was changed", kind="setting_changed", setting=name, expected=expected, found=current,
            hint="read it again, then try again",
        )  # fmt: skip
    row = stated(form, value)
    tx.put(SETTING[uid].pack(name), row)
    return hashlib.sha256(row).hexdigest()


def clear_setting(tx: Transaction, uid: str, kind: type) -> None:
    """Delete a setting."""
    tx.delete(SETTING[uid].pack(_setting(kind)[0]))


def setting_rows(tx: ReadTransaction, uid: str) -> Iterator[tuple[str, Any]]:
    """The settings that were set, as parsed JSON, by their names."""
    for kind, (name, form) in _SETTINGS.items():
        value: object = read_setting(tx, uid, kind)[0]
        if value is not None:
            yield name, form.plain(value)


def check_setting_row(name: str, value: Any) -> None:
    """Check a setting that `setting_rows` read.

    Raises: `FormError`, `KeyError`.
    """
    forms = dict(_SETTINGS.values())
    forms[name].build(value)


def put_setting_row(tx: Transaction, uid: str, name: str, value: Any) -> None:
    """Store a setting that `setting_rows` read, and that was checked."""
    forms = dict(_SETTINGS.values())
    tx.put(SETTING[uid].pack(name), forms[name].encode(forms[name].build(value)))


@dataclass(frozen=True, slots=True)
class RepositoryContext:
    """One repository, and the components that its acts use."""

    name: str
    uid: str
    namespace: str
    space: Space
    clock: Clock
    data: ObjectStore
    """The bytes of objects, below the namespace."""
    ranges: CachedObjects
    """Ranges and indexes."""
    graph: Graph
    head_locks: HeadLocks
    tombstones: TombstoneCounter
    after: Callable[[Callable[[], object]], None]
    """Runs maintenance that nobody waits for."""
    sources: Callable[[str], Source]
    """The source at a root, for objects that were linked or imported from there."""
    signer: Signer
    """Signs addresses and URLs."""
    boundaries: Boundaries = DEFAULT_BOUNDARIES
    """The rule for the ends of ranges."""
    measures: Measures = field(default_factory=Measures)
    """Counts what maintenance costs."""
    views: Moments[View] = field(default_factory=Moments)
    """The states of references that were read last."""
    reports: JobReports = NO_REPORTS
    """The place that commits and merges report to."""
    composed: str = ""
    """The beginning of paths that are read here, and written by whoever composes their objects; empty: none."""

    def check_paths(self, paths: Iterable[str]) -> None:
        """Refuse to write a path that is only read.

        Raises: `Denied`, kind `path_read_only`.
        """
        for path in paths:
            if self.composed and path.startswith(self.composed):
                raise Denied(
                    "what lies here is not written as objects", kind="path_read_only", path=path,
                    hint="load the map on the branch: pond.branch(…).map(…).load(…)",
                )  # fmt: skip

    def seconds(self) -> int:
        """The time of day in whole seconds."""
        return self.clock.now_ms() // 1000

    def at_once(self) -> RepositoryContext | None:
        """The same context for reads that must not wait: they raise `WouldBlock`; None over a database."""
        if not hasattr(self.space, "last_change"):
            return None
        return replace(self, space=_AtOnce(self.space), ranges=HeldObjects(self.ranges))

    def index(self, id_: str) -> Index:
        """The index of that id.

        Raises: `NotFound`, `Corrupt`.
        """
        return load_index(self.ranges, id_)

    def empty_index(self) -> Index:
        """The index of no entries."""
        return write(self.ranges, (), self.boundaries, schema=ENTRIES, compression=COMPRESSION)

    def locate(self, address: str) -> tuple[ObjectStore | Source, str]:
        """The store and the name of an object, by its name below the namespace or by its whole URL.

        Raises: `Invalid` for an address that is none.
        """
        name = relative_address(self.namespace, address)
        if not is_full_address(name):
            return self.data, name
        root, name = split_address(address)
        return self.sources(root), name

    def record(self, tx: ReadTransaction) -> RepositoryRecord:
        """The repository's record, if it is still the same repository.

        Raises: `NotFound`.
        """
        record = get_repository(tx, self.name)
        if record.uid != self.uid:
            raise NotFound(
                "repository not found", kind="repository_not_found", repository=self.name,
                hint="it was deleted and made anew: open it again",
            )  # fmt: skip
        return record

    def check_writable(self, tx: ReadTransaction, branch: str | None, act: str, *, force: bool = False) -> None:
        """Refuse a change of a read-only repository, or of a protected branch; `act` says which: `write`, `commit` …

        Raises: `Denied`, `NotFound`.
        """
        if self.record(tx).read_only and not force:
            raise Denied("read-only repository", kind="repository_read_only", repository=self.name)
        rules = None if branch is None else read_setting(tx, self.uid, ProtectedBranches)[0]
        if branch is not None and rules is not None and rules.protects(branch):
            raise Denied(
                f"cannot {act} protected branch", kind="branch_protected", branch=branch,
                hint="commit to another branch, then merge it; or take this one from the protected branches",
            )  # fmt: skip


class _AtOnce:
    """A space whose reads never wait."""

    def __init__(self, inner: Space) -> None:
        self._inner = inner

    def read(self, *, wait: bool = True) -> AbstractContextManager[ReadTransaction]:
        return self._inner.read(wait=False)

    def write(self, change: Callable[[Transaction], T]) -> T:
        raise WouldBlock("a write waits", hint="write where waiting is allowed")

    def close(self) -> None:
        """Leave the space open: others use it."""


def graph_of(uid: str, head: Callable[[ReadTransaction, str], str | None]) -> Graph:
    """The graph of a repository."""
    return Graph(COMMIT[uid], TAG[uid], head)
