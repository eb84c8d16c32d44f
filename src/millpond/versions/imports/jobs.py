"""Imports that run in the background: started, watched and cancelled through rows of the space.

Any process of the pond shows the state of an import and cancels it; the one that started it runs it. Its row is a lease
(`kernel/lease.py`) that it renews: an import is over when another process has seen its row stand still for
`ALIVE_SECONDS`, and that one says so in the row.

Invariants:
* An import that cannot read its source is refused when it is started: it has no row.
* A row that is over does not change. What was cancelled while it ran, or taken for dead, changed no branch.
* A collection of garbage leaves ranges alone while an import runs.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum

from millpond.errors import Conflict, Fenced, MillpondError, NotFound, Unavailable
from millpond.json_forms import JsonForm
from millpond.kernel.lease import Lease
from millpond.kernel.schedule import Recurring
from millpond.kernel.signal import last_change_of
from millpond.kernel.space import ReadTransaction, Transaction
from millpond.kernel.steps import step
from millpond.versions.commits import Message
from millpond.versions.imports.importing import Imported, Imports, Watch
from millpond.versions.imports.locations import Location, ReadTable, read_table
from millpond.versions.keyspaces import IMPORT
from millpond.versions.repository_context import RepositoryContext

__all__ = ("ImportJobs", "ImportRecord", "ImportState", "end_dead_imports", "running_imports")

_LOG = logging.getLogger(__name__)
RUNNING_MAX = 8
SHOWN_SECONDS = 1.0
"""The pause between two rows of progress."""
ALIVE_SECONDS = 60.0
FORGOTTEN_MS = 7 * 24 * 3_600_000
"""The time that an import is shown after its last change."""


class ImportState(StrEnum):
    """The states of an import."""

    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELED = "canceled"


@dataclass(frozen=True, slots=True)
class ImportRecord:
    """An import; `commit` and `index` are ids, `error` a sentence, empty while there are none.

    `beat` counts the rows so far; `alive_until_ms` was read by earlier releases.
    """

    id: str
    branch: str
    state: ImportState
    updated_ms: int
    alive_until_ms: int = 0
    entries: int = 0
    commit: str = ""
    index: str = ""
    error: str = ""
    beat: int = 0

    @property
    def lease(self) -> Lease:
        """The lease of the process that runs it; free when it is over."""
        running = self.state is ImportState.RUNNING
        return Lease(self.id, 1, self.beat, self.updated_ms) if running else Lease()


_FORM = JsonForm(ImportRecord)


def running_imports(tx: ReadTransaction, uid: str) -> bool:
    """True while an import of the repository runs, for all that its rows say."""
    return any(record.state is ImportState.RUNNING for record in _records(tx, uid))


def end_dead_imports(context: RepositoryContext) -> None:
    """Say of imports whose processes died that they failed; what does not show that it lives is waited for."""
    with context.space.read() as tx:
        running = [record for record in _records(tx, context.uid) if record.state is ImportState.RUNNING]
    for record in running:
        key = IMPORT[context.uid].pack(record.id)

        def read(key: bytes = key, record: ImportRecord = record) -> Lease:
            with context.space.read() as tx:
                row = tx.get(key)
            return Lease() if row is None else _parse(row, record.id).lease

        if context.head_locks.watch.wait_free(key, read, ALIVE_SECONDS, last_change_of(context.space)) is not None:
            _end_dead(context, record.id)


def _end_dead(context: RepositoryContext, id_: str) -> None:
    """Say of an import that it failed, if its process counts as dead."""
    key = IMPORT[context.uid].pack(id_)

    def end(tx: Transaction) -> None:
        row = tx.get(key)
        record = None if row is None else _parse(row, id_)
        if record is not None and _is_dead(context, record):
            error = "the process that imported has ended: import again"
            over = replace(record, state=ImportState.FAILED, error=error, updated_ms=context.clock.now_ms())
            tx.put(key, _FORM.encode(over))

    context.space.write(end)


def _is_dead(context: RepositoryContext, record: ImportRecord) -> bool:
    lease = record.lease
    return bool(lease.holder) and not context.head_locks.watch.left(
        IMPORT[context.uid].pack(record.id), lease, ALIVE_SECONDS
    )


def _records(tx: ReadTransaction, uid: str) -> Iterator[ImportRecord]:
    for key, row in tx.scan(IMPORT[uid].range()):
        yield _parse(row, str(IMPORT[uid].unpack(key)[0]))


def _parse(row: bytes, id_: str) -> ImportRecord:
    return _FORM.stored(row, "an import cannot be read", kind="import_damaged", id=id_)


class ImportJobs:
    """The imports that this process runs, and all that it can show."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(RUNNING_MAX, thread_name_prefix="imports")
        self._running = 0
        self._closed = False
        self._lock = threading.Lock()

    def start(
        self, context: RepositoryContext, branch: str, locations: Sequence[Location], message: Message | None, *,
        force: bool = False, read_table: ReadTable = read_table,
    ) -> str:  # fmt: skip
        """Check an import, then run it in the background; its id. Without a message it is staged, not committed.

        `read_table`: as in `Imports`.

        Raises: as `Imports.check`; `Unavailable` when too many run.
        """
        imports = Imports(context, branch, read_table)
        imports.check(locations, force=force, staged=message is None)
        id_, now = context.clock.random_id(), context.clock.now_ms()
        record = ImportRecord(id_, branch, ImportState.RUNNING, now)

        def begin(tx: Transaction) -> None:
            for old in _records(tx, context.uid):
                if now >= old.updated_ms + FORGOTTEN_MS:
                    tx.delete(IMPORT[context.uid].pack(old.id))
            tx.put(IMPORT[context.uid].pack(id_), _FORM.encode(record))

        with self._lock:
            if self._closed or self._running >= RUNNING_MAX:
                raise Unavailable(
                    "too many imports are running", kind="imports_full", running_max=RUNNING_MAX,
                    hint="try again when one has ended",
                )  # fmt: skip
            context.space.write(begin)
            step("versions.import_started")
            self._running += 1
            job = _Job(context, record, imports, tuple(locations), message, force, lambda: self._closed)
            self._threads.submit(self._run, job)
        return id_

    def _run(self, job: _Job) -> None:
        try:
            job.run()
        finally:
            with self._lock:
                self._running -= 1
            step("versions.import_ended")

    def get(self, context: RepositoryContext, branch: str, id_: str) -> ImportRecord:
        """The state of an import; one whose process died has failed.

        Raises: `NotFound`.
        """
        with context.space.read() as tx:
            record = _get(tx, context, branch, id_)
        if _is_dead(context, record):
            _end_dead(context, id_)
            with context.space.read() as tx:
                record = _get(tx, context, branch, id_)
        return record

    def cancel(self, context: RepositoryContext, branch: str, id_: str) -> None:
        """End an import; its process stops at the next block. One that was canceled before is canceled.

        Raises: `NotFound`; `Conflict`, kind `import_over`.
        """

        def cancel(tx: Transaction) -> None:
            job = _get(tx, context, branch, id_)
            if job.state is ImportState.CANCELED:
                return
            if job.state is not ImportState.RUNNING:
                raise Conflict(
                    f"the import is {job.state}", kind="import_over", id=id_, hint="it cannot be canceled any more"
                )
            over = replace(job, state=ImportState.CANCELED, updated_ms=context.clock.now_ms(), error="Canceled")
            tx.put(IMPORT[context.uid].pack(id_), _FORM.encode(over))

        context.space.write(cancel)
        step("versions.import_canceled")

    def close(self) -> None:
        """Stop the imports of this process at their next block, and wait for them."""
        with self._lock:
            self._closed = True
        self._threads.shutdown()  # also of one that no thread has taken yet: it says in its row that it ended


def _get(tx: ReadTransaction, context: RepositoryContext, branch: str, id_: str) -> ImportRecord:
    row = tx.get(IMPORT[context.uid].pack(id_))
    job = None if row is None else _parse(row, id_)
    if job is None or job.branch != branch:
        raise NotFound("not found", kind="import_not_found", id=id_)
    return job


class _Job(Watch):
    """An import that runs: its row shows its progress, once in a while, and its end with the branch's own write."""

    def __init__(
        self, context: RepositoryContext, record: ImportRecord, imports: Imports, locations: tuple[Location, ...],
        message: Message | None, force: bool, stopping: Callable[[], bool],
    ) -> None:  # fmt: skip
        self._context, self._record, self._imports, self._stopping = context, record, imports, stopping
        self._locations, self._message, self._force = locations, message, force
        self._times = Recurring(context.clock.monotonic(), SHOWN_SECONDS)

    def run(self) -> None:
        """Import, and show how it ended."""
        imports, words = self._imports, self._message
        try:
            if words is None:
                imports.stage(self._locations, force=self._force, watch=self)
            else:
                imports.commit(
                    self._locations, words.text, committer=words.committer, metadata=words.metadata,
                    created=words.created, force=self._force, watch=self,
                )  # fmt: skip
        except Fenced:
            _LOG.info("import %s was canceled", self._record.id)
        except MillpondError as error:
            self._fail(str(error))
        except Exception as error:
            _LOG.exception("import %s failed", self._record.id)
            self._fail(f"the import failed: {type(error).__name__}")

    def __call__(self, entries: int) -> None:
        """Show progress.

        Raises: `Fenced` when the import was canceled; `Unavailable` when the process stops.
        """
        if self._stopping():
            raise Unavailable("the process that imported is stopping", kind="import_stopped", hint="import again")
        if self._times.begin(self._context.clock.monotonic()):
            now = self._context.clock.now_ms()
            self._record = replace(self._record, entries=entries, updated_ms=now, beat=self._record.beat + 1)
            self._context.space.write(lambda tx: self._put(tx, self._record))

    def done(self, tx: Transaction, imported: Imported) -> None:
        """Show the end, with the write that changes the branch."""
        commit = "" if imported.commit is None else imported.commit.id
        over = replace(
            self._record, state=ImportState.COMPLETED, entries=imported.entries, commit=commit, index=imported.index,
            updated_ms=self._context.clock.now_ms(),
        )  # fmt: skip
        self._put(tx, over)

    def _fail(self, error: str) -> None:
        over = replace(
            self._record, state=ImportState.FAILED, error=error, updated_ms=self._context.clock.now_ms()
        )  # fmt: skip
        with suppress(Fenced):  # canceled meanwhile: that stands
            self._context.space.write(lambda tx: self._put(tx, over))

    def _put(self, tx: Transaction, record: ImportRecord) -> None:
        key = IMPORT[self._context.uid].pack(record.id)
        row = tx.get(key)
        if row is None or _parse(row, record.id).state is not ImportState.RUNNING:
            raise Fenced("the import was canceled", kind="import_canceled", id=record.id)
        tx.put(key, _FORM.encode(record))
