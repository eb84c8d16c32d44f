"""The staging directory of a job that loads into a pond in a bucket: what tasks bring lies below a prefix of the pond.

    writer/<ms>-<job>/begun                             the job goes on
                     /<partition>-<task>/begun          an attempt goes on, of a job that is made by its attempts
                     /<partition>-<task>/<number>       rows of a layered map, as in `layered/row_files.py`

Invariants:
* An attempt writes a file on its own machine, and puts it whole; nobody sees it before the driver has its message.
* The driver removes the marks with all that attempts put: an attempt that comes later sees it, and removes its own.
  What a process that was killed left is removed by the first job that ends `LEFT_MS` later.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, cast

import pyarrow as pa

from millpond.clock import Clock, SystemClock
from millpond.kernel.job_reports import NO_REPORTS, JobReports
from millpond.kernel.steps import step
from millpond.maps.layered.row_files import RowFile
from millpond.spark.staging import Entered, Landed, Staged, StagingDir, entered_here, job_over, scratch_folder
from millpond.stores.files import remove_tree

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from millpond.maps.loads.load import LoadResult
    from millpond.pond import Pond
    from millpond.spark.locations import OpenPond
    from millpond.stores.objects import ObjectStore

__all__ = ("LEFT_MS", "BucketStagingDir", "job_name")

LEFT_MS = 7 * 24 * 3_600_000
"""Longer than any job lasts, and the clocks of machines differ."""
_WRITER, _BEGUN = "writer", "begun"


def job_name(clock: Clock) -> str:
    """The name of a new job, which says when it began."""
    return f"{clock.now_ms()}-{clock.random_id()}"


@dataclass(frozen=True, slots=True)
class BucketStagingDir:
    """Below a prefix of the pond; `bucket` has its objects, and each process its own credentials."""

    filed: ClassVar[bool] = True
    far: ClassVar[bool] = True
    bucket: ObjectStore
    job: str
    lasting: bool = True
    load_id: str | None = None
    branch: str = ""

    @property
    def job_id(self) -> str:
        """The id of the load when it has one, else the random end of the job's name."""
        return self.load_id or self.job.rpartition("-")[2]

    @property
    def _prefix(self) -> str:
        return f"{_WRITER}/{self.job}"

    def _mark(self, attempt: str) -> str:
        return f"{self._prefix}/{_BEGUN}" if self.lasting else f"{self._prefix}/{attempt}/{_BEGUN}"

    def counted(self, session: SparkSession) -> StagingDir:
        """The same: nobody sees rows before a task is done."""
        del session
        return self

    def commit_reports(self, pond: OpenPond) -> JobReports:
        """None: a pond in a bucket has no events."""
        del pond
        return NO_REPORTS

    def begin(self) -> None:
        """Put the job's mark: an attempt that does not find it is too late."""
        self.bucket.put(self._mark(""), b"")

    def attempt(self, partition: int, task: int) -> Path:
        """A folder for files of this executor, named after the attempt."""
        name = f"{partition:06d}-{task}"
        if not self.lasting:
            self.bucket.put(self._mark(name), b"")
        elif not self.bucket.exists(self._mark(name)):
            raise job_over(partition)
        folder = scratch_folder() / name
        folder.mkdir()
        return folder

    def over(self, folder: Path) -> bool:
        """True when the mark is gone."""
        return not self.bucket.exists(self._mark(folder.name))

    def rows(self, reporter: Path | None = None) -> int:
        """None that can be seen."""
        return 0

    def add_parts(self, folder: Path, parts: Sequence[Staged], rejects: Path | None) -> Landed:
        """Put the rows into the bucket; rejects travel with the message.

        Raises: `Unavailable`, `Denied`.
        """
        files = cast("Sequence[RowFile]", parts)
        names = [f"{self._prefix}/{folder.name}/{number}" for number in range(len(files))]
        for file, name in zip(files, names, strict=True):
            with pa.memory_map(file.path) as mapped:
                self.bucket.put(name, mapped.read_buffer())
            step("spark.staged")
        data = None if rejects is None else rejects.read_bytes()
        remove_tree(folder.parent)
        put = zip(files, names, strict=True)
        return tuple(replace(file, path=name, lies=self.bucket) for file, name in put), data

    def leave(self, folder: Path) -> None:
        """Remove an attempt's files, here and in the bucket."""
        remove_tree(folder.parent)
        self.bucket.delete(*(info.name for info in self.bucket.list(f"{self._prefix}/{folder.name}")))

    def enter(self, pond: OpenPond, parts: Sequence[Staged], entered: Entered) -> LoadResult:
        """Make layers of the rows; the load is in the bucket when this returns."""
        return entered_here(cast("Pond", pond), parts, entered, self.load_id, self.branch)

    def end(self) -> None:
        """Remove all that the job put, and what jobs that were killed left long ago."""
        left = SystemClock().now_ms() - LEFT_MS
        jobs = (prefix.split("/")[1] for prefix in self.bucket.level(_WRITER).prefixes)
        for job in [self.job, *(job for job in jobs if _began_ms(job) < left)]:
            # The marks go first: who is at work sees it.
            names = sorted((info.name for info in self.bucket.list(f"{_WRITER}/{job}")), key=_is_no_mark)
            self.bucket.delete(*names)

    def give_up(self, parts: Iterable[Staged]) -> None:
        """Remove all that the job put."""
        del parts
        self.end()


def _began_ms(job: str) -> float:
    """The begin in the name of a job; never, in a name that is none."""
    begin = job.partition("-")[0]
    return int(begin) if begin.isdecimal() else float("inf")


def _is_no_mark(name: str) -> bool:
    return not name.endswith(f"/{_BEGUN}")
