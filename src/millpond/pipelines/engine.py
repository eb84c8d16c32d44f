"""The engine of runs in one process: the partition of a folder, whose log is in its space, or those of a bucket."""

from __future__ import annotations

import os
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, cast

from filelock import FileLock, Timeout

from millpond.errors import Conflict, Internal, MillpondError, NotFound, Unavailable
from millpond.kernel.signal import Signal
from millpond.maps.loads.pond_folder import host_name, is_alive
from millpond.server.workflows.shared.ownership import Ownership
from millpond.server.workflows.shared.partitions import CHECKPOINT_SECONDS
from millpond.server.workflows.shared.rows import SharedRows
from millpond.tables.runs import runs_in
from millpond.workflows.logs.bucket_owner import IN_PROCESS, BucketOwner
from millpond.workflows.partitions import METADATA, routed
from millpond.workflows.partitions.bucket import BUCKET_PARTITIONS, BucketRuns, stores_now
from millpond.workflows.processor import Applied, Measures, Processor, ReadRows, read_rows
from millpond.workflows.tasks.queues import Workers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from google.protobuf.message import Message

    from millpond.clock import Clock
    from millpond.pond import Pond
    from millpond.workflows.engine import Request

__all__ = ("Engine", "open_engine", "reading_pond")

T = TypeVar("T")
OPEN_SECONDS = 600.0
CHECKPOINT_ENTRIES = 1_000
"""Whoever ends makes a checkpoint after so many entries, so that the next process, elsewhere, reads few."""


@dataclass(frozen=True, slots=True)
class Engine:
    """The partitions of a pond, on which this process works until it is stopped."""

    owned: Mapping[int, Processor]
    partitions: int
    workers: Workers
    clock: Clock
    stop: Callable[[], object]
    """End; runs that have not ended go on when another begins."""

    def processors(self) -> Sequence[Processor]:
        """Those that apply commands."""
        owned = dict(self.owned)  # another thread takes some away
        return [owned[number] for number in sorted(owned)]

    def submit(self, tenant: str, request: Request) -> Future[Message | None]:
        """See `Processor.submit`."""
        number, whole = routed(tenant, request, self.partitions, self.clock)
        processor = self.owned.get(number)
        if processor is not None:
            return processor.submit(tenant, whole)
        refused: Future[Message | None] = Future()
        refused.set_exception(_moving())
        return refused

    def read(self, tenant: str, act: Callable[[ReadRows], T]) -> T:
        """The result of a function that reads a tenant's rows."""
        processors = self.processors()
        if len(processors) < self.partitions:
            raise _moving()
        return _read(processors, tenant, act)


def open_engine(pond: Pond, clock: Clock, passed_on: Callable[[Sequence[Applied]], None]) -> Engine:
    """The engine of a pond, begun.

    Raises: `Conflict`, kind `pipelines_busy`, when another process works on the pond, or `workflows_place`.
    """
    beside = pond.location.beside("workflows")
    with ExitStack() as ends:
        if beside is None:
            return _on_folder(pond, clock, passed_on, ends)
        return _on_bucket(pond, BucketRuns.below(beside.objects, clock), clock, passed_on, ends)


def _on_folder(pond: Pond, clock: Clock, passed_on: Callable[[Sequence[Applied]], None], ends: ExitStack) -> Engine:
    if (pond.folder / "workflows").exists():
        raise Conflict("the runs of this pond are in another store", kind="workflows_place", store="rocksdb",
                       hint="serve the pond, and deploy the pipeline there")  # fmt: skip
    lock = FileLock(pond.folder / "pipelines.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise _busy(pond, "") from None
    ends.callback(lock.release)
    processor = Processor(pond.space, clock, passed_on)
    ends.callback(processor.stop)
    processor.start()
    return Engine({METADATA: processor}, 1, processor.workers, clock, ends.pop_all().close)


def _on_bucket(
    pond: Pond, runs: BucketRuns, clock: Clock, passed_on: Callable[[Sequence[Applied]], None], ends: ExitStack
) -> Engine:  # fmt: skip
    """The partitions of a bucket, while this process has the lease on them."""
    workers, changed = Workers(), Signal(clock)
    name = f"{IN_PROCESS}{host_name()}-{os.getpid()}-{clock.random_id()}"
    owner = BucketOwner(pond.space, name, clock, BUCKET_PARTITIONS, changed.ring)
    ends.callback(owner.stop)
    ends.callback(runs.log.close)
    if not (owner.take(dead=_is_dead) or (owner.wait_free() and owner.take())):
        raise _busy(pond, owner.holder)
    ownership = Ownership(
        runs.log, pond.own_folder / "workflows" / pond.log.pond_id, runs.checkpoints, clock,
        assigned=lambda: owner.own, passed_on=passed_on, workers=workers, measures=Measures(),
        interval=CHECKPOINT_SECONDS,
    )  # fmt: skip
    ends.callback(ownership.stop)
    ends.callback(_save, ownership)
    changed.listeners.append(ownership.wake)
    ownership.start()
    owner.start()
    due = clock.monotonic() + OPEN_SECONDS
    if not ownership.changed.wait_for(lambda: len(ownership.owned) == BUCKET_PARTITIONS, due):
        raise _moving()
    return Engine(ownership.owned, BUCKET_PARTITIONS, workers, clock, ends.pop_all().close)


def _save(ownership: Ownership) -> None:
    with suppress(MillpondError):  # the next one reads more of the log
        ownership.save_many(CHECKPOINT_ENTRIES)


@contextmanager
def reading_pond(pond: Pond, clock: Clock, tenant: str) -> Iterator[Callable[[Callable[[ReadRows], Any]], Any]]:
    """A function that gives functions the rows of a tenant to read, of a pond on which another process may work.

    Raises: `NotFound` where there are no runs; `Unavailable` where they are in a store of their own.
    """
    beside = pond.location.beside("workflows")
    if beside is not None:
        with stores_now(beside.objects, clock) as stores:
            yield lambda act: _read(stores, tenant, act)
        return
    runs = runs_in(pond.space, pond.folder)
    if runs is None:
        raise NotFound("the pond has no runs", kind="workflow_run", pond=pond.folder)
    yield lambda act: runs.read(tenant, act)


def _read(stores: Sequence[Processor], tenant: str, act: Callable[[ReadRows], T]) -> T:
    """The result of a function that reads a tenant's rows, of all partitions."""
    if len(stores) == 1:
        return read_rows(stores[0], tenant, act)

    def local(number: int, tenant: str, act: Callable[[ReadRows], Any]) -> Any:
        return read_rows(stores[number], tenant, act)

    def remote(number: int, _tenant: str, _request: bytes) -> bytes:
        raise Internal("the partition is not here", kind="partition_elsewhere", partition=number)

    return act(cast("ReadRows", SharedRows(tenant, len(stores), lambda _: True, local, remote)))


def _is_dead(holder: str) -> bool:
    return holder.startswith(IN_PROCESS) and not is_alive(holder.removeprefix(IN_PROCESS))


def _busy(pond: Pond, holder: str) -> Conflict:
    return Conflict("another process runs the workflows of this pond", kind="pipelines_busy",
                    pond=pond.location.address, process=holder,
                    hint="wait for it, or serve the pond and deploy the pipeline there")  # fmt: skip


def _moving() -> Unavailable:
    return Unavailable("another process runs the workflows of this pond", kind="partition_moving",
                       hint="begin it again: what the run has done stays done")  # fmt: skip
