"""The engine of runs in one process: a processor on the space of a folder, or the partitions of a bucket."""

from __future__ import annotations

import os
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

from filelock import FileLock, Timeout

from millpond.errors import Conflict, Internal, MillpondError, NotFound, Unavailable
from millpond.maps.loads.pond_folder import host_name, is_alive
from millpond.server.workflows.shared.ownership import Ownership
from millpond.server.workflows.shared.partitions import CHECKPOINT_SECONDS
from millpond.server.workflows.shared.rows import SharedRows
from millpond.tables.runs import runs_in
from millpond.workflows.logs.bucket_owner import IN_PROCESS, BucketOwner
from millpond.workflows.partitions import completed, partition_of_request
from millpond.workflows.partitions.bucket import BUCKET_PARTITIONS, BucketRuns, stores_now
from millpond.workflows.processor import Applied, Measures, Processor, ReadRows, read_rows
from millpond.workflows.tasks.queues import Workers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from google.protobuf.message import Message

    from millpond.clock import Clock
    from millpond.pond import Pond
    from millpond.workflows.engine import Request

__all__ = ("Engine", "open_engine", "reading_pond")

T = TypeVar("T")
OPEN_SECONDS = 600.0
CHECKPOINT_ENTRIES = 1_000
"""Whoever ends makes a checkpoint after so many entries, so that the next process, elsewhere, reads few."""


class Engine(Protocol):
    """An engine that works, until it is stopped."""

    workers: Workers

    def processors(self) -> Sequence[Processor]:
        """Those that apply commands."""

    def submit(self, tenant: str, request: Request) -> Future[Message | None]:
        """See `Processor.submit`."""

    def read(self, tenant: str, act: Callable[[ReadRows], T]) -> T:
        """The result of a function that reads a tenant's rows."""

    def stop(self) -> None:
        """End; runs that have not ended go on when another begins."""


def open_engine(pond: Pond, clock: Clock, passed_on: Callable[[Sequence[Applied]], None]) -> Engine:
    """The engine of a pond, begun.

    Raises: `Conflict`, kind `pipelines_busy`, when another process works on the pond, or `workflows_place`.
    """
    beside = pond.place.beside("workflows")
    if beside is None:
        return _FolderEngine(pond, clock, passed_on)
    return _BucketEngine(pond, BucketRuns.below(beside.objects, clock), clock, passed_on)


@contextmanager
def reading_pond(pond: Pond, clock: Clock, tenant: str) -> Iterator[Callable[[Callable[[ReadRows], Any]], Any]]:
    """A function that gives functions the rows of a tenant to read, of a pond on which another process may work.

    Raises: `NotFound` where there are no runs; `Unavailable` where they are in a store of their own.
    """
    beside = pond.place.beside("workflows")
    if beside is not None:
        with stores_now(beside.objects, clock) as stores:
            yield lambda act: act(_rows(tenant, stores))
        return
    runs = runs_in(pond.space, pond.folder)
    if runs is None:
        raise NotFound("the pond has no runs", kind="workflow_run", pond=pond.folder)
    yield lambda act: runs.read(tenant, act)


def _rows(tenant: str, stores: Sequence[Processor]) -> ReadRows:
    def local(number: int, tenant: str, act: Callable[[ReadRows], Any]) -> Any:
        return read_rows(stores[number], tenant, act)

    def remote(number: int, _tenant: str, _request: bytes) -> bytes:
        raise Internal("the partition is not here", kind="partition_elsewhere", partition=number)

    return cast("ReadRows", SharedRows(tenant, len(stores), lambda _: True, local, remote))


class _FolderEngine:
    def __init__(self, pond: Pond, clock: Clock, passed_on: Callable[[Sequence[Applied]], None]) -> None:
        if (pond.folder / "workflows").exists():
            raise Conflict("the runs of this pond are in another store", kind="workflows_place", store="rocksdb",
                           hint="serve the pond, and deploy the pipeline there")  # fmt: skip
        self._lock = FileLock(pond.folder / "pipelines.lock")
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            raise _busy(pond, "") from None
        self._processor = Processor(pond.space, clock, passed_on)
        self.workers, self.submit = self._processor.workers, self._processor.submit
        self._processor.start()

    def processors(self) -> Sequence[Processor]:
        return [self._processor]

    def read(self, tenant: str, act: Callable[[ReadRows], T]) -> T:
        return read_rows(self._processor, tenant, act)

    def stop(self) -> None:
        self._processor.stop()
        self._lock.release()


class _BucketEngine:
    """The partitions of a bucket, while this process has the lease on them."""

    def __init__(
        self, pond: Pond, runs: BucketRuns, clock: Clock, passed_on: Callable[[Sequence[Applied]], None]
    ) -> None:  # fmt: skip
        self._clock, self.workers = clock, Workers()
        self._log, checkpoints = runs
        name = f"{IN_PROCESS}{host_name()}-{os.getpid()}-{clock.random_id()}"
        self._owner = BucketOwner(pond.space, name, clock, BUCKET_PARTITIONS, self._changed)
        self._ownership: Ownership | None = None
        if not (self._owner.take(dead=_is_dead) or (self._owner.wait_free() and self._owner.take())):
            self._log.close()
            raise _busy(pond, self._owner.holder)
        try:
            self._ownership = Ownership(
                self._log, pond.own_folder / "workflows" / pond.log.pond_id, checkpoints, clock,
                assigned=lambda: self._owner.own, passed_on=passed_on, workers=self.workers, measures=Measures(),
                interval=CHECKPOINT_SECONDS,
            )  # fmt: skip
            self._ownership.start()
            self._owner.start()
            self._wait_opened()
        except BaseException:
            self.stop()
            raise

    def _changed(self) -> None:
        if self._ownership is not None:
            self._ownership.wake()

    def _wait_opened(self) -> None:
        assert self._ownership is not None, "begun"
        due = self._clock.monotonic() + OPEN_SECONDS
        if not self._ownership.changed.wait_for(lambda: len(self.processors()) == BUCKET_PARTITIONS, due):
            raise _moving()

    def processors(self) -> Sequence[Processor]:
        assert self._ownership is not None, "begun"
        owned = dict(self._ownership.owned)  # another thread takes some away
        return [owned[number] for number in sorted(owned)]

    def submit(self, tenant: str, request: Request) -> Future[Message | None]:
        whole = completed(request, lambda: self._clock.random_id() + self._clock.random_id())
        processors = self.processors()
        if len(processors) == BUCKET_PARTITIONS:
            return processors[partition_of_request(tenant, whole, BUCKET_PARTITIONS)].submit(tenant, whole)
        refused: Future[Message | None] = Future()
        refused.set_exception(_moving())
        return refused

    def read(self, tenant: str, act: Callable[[ReadRows], T]) -> T:
        processors = self.processors()
        if len(processors) < BUCKET_PARTITIONS:
            raise _moving()
        return act(_rows(tenant, processors))

    def stop(self) -> None:
        if self._ownership is not None:
            with suppress(MillpondError):  # the next one reads more of the log
                self._ownership.save_many(CHECKPOINT_ENTRIES)
            self._ownership.stop()
        self._log.close()
        self._owner.stop()


def _is_dead(holder: str) -> bool:
    return holder.startswith(IN_PROCESS) and not is_alive(holder.removeprefix(IN_PROCESS))


def _busy(pond: Pond, holder: str) -> Conflict:
    return Conflict("another process runs the workflows of this pond", kind="pipelines_busy", pond=pond.place.address,
                    process=holder, hint="wait for it, or serve the pond and deploy the pipeline there")  # fmt: skip


def _moving() -> Unavailable:
    return Unavailable("another process runs the workflows of this pond", kind="partition_moving",
                       hint="begin it again: what the run has done stays done")  # fmt: skip
