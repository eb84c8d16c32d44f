"""Staging directories: attempts of a job put sealed parts there, until the driver enters them as one load.

    FolderStagingDir   <pond>/writer/<host>-<pid>-<job>/<partition>-<task>/…   the driver adopts it from there; rows of
                    layered maps (`layered/row_files.py`) become one layer first, by tasks of a second stage if many
    BucketStagingDir   see `bucket_staging.py`: files go to the bucket, and the driver takes them from there
    NodesStagingDir    <temp>/millpond-<user>/<pid>-<id>/…                     uploaded to every node, then removed;
                    <temp>/millpond-<random>/…                              where that one is not this user's alone

Invariants:
* An attempt writes below its own folder only; nothing there is visible to anybody until the driver enters it.
* What lies where nobody will fetch it goes away: with the job, with the attempt, or when the process that wrote it is
  seen to be dead. Uploads that nobody enters expire on the nodes.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeAlias, cast

from millpond.clock import SystemClock
from millpond.errors import Conflict, Unavailable
from millpond.kernel.job_reports import NO_REPORTS, JobReports
from millpond.kernel.steps import step
from millpond.maps.layered.row_files import RowFile
from millpond.maps.loads.layered_load import layers_of_files, parts_of
from millpond.maps.loads.load import LoadResult, commit_load
from millpond.maps.parts.part import PartFile
from millpond.maps.snapshots.stretches import StretchWriter, Writes, Written, write_here
from millpond.spark.failures import is_of_spark, line_that_matters
from millpond.spark.locations import OpenPond, SparkNodes
from millpond.spark.private_api import is_connect
from millpond.stores.files import remove_tree

if TYPE_CHECKING:
    from pyspark import Accumulator
    from pyspark.sql import SparkSession

    from millpond.client.pond import RemotePond
    from millpond.client.transport import Nodes
    from millpond.pond import Pond

__all__ = (
    "ROWS", "Entered", "FolderStagingDir", "Landed", "NodesStagingDir", "Staged", "StagingDir", "entered_here",
    "job_over", "scratch_folder",
)  # fmt: skip


ROWS = "rows"
"""The file in an attempt's folder with the number of rows that it has taken."""
REPORTER = "reporter"
"""The file in a job's folder with the name of the attempt that reports the rows of all."""
REPORTER_GONE_MS = 3_000
Staged: TypeAlias = PartFile | RowFile
"""A sealed part, or the rows of a layered map."""
Landed: TypeAlias = "tuple[tuple[Staged, ...], str | bytes | None]"
"""The outcome of an attempt, and its rejects, as the driver will find them: a file's path, or its bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entered:
    """The driver's description of a job, besides its parts. `salt`, of layers; `writes` has their ranges written."""

    source: str = ""
    rejected: int = 0
    stream: tuple[str, int] | None = None
    synchronise: bool = False
    freeze: bool = False
    salt: str = ""
    writes: Writes = write_here


class StagingDir(Protocol):
    """One job's place for parts; it travels to the executors."""

    filed: ClassVar[bool]
    """True when attempts leave rows of layered maps in files, for the driver to have them written."""
    far: ClassVar[bool]
    """True when these files go to a bucket."""

    @property
    def job_id(self) -> str:
        """The id of the job in reports; on nodes that of its load."""

    def counted(self, session: SparkSession) -> StagingDir:
        """The same, so that the driver sees the rows of attempts while the job runs."""

    def commit_reports(self, pond: OpenPond) -> JobReports:
        """The place that a job reports to which is no more than its commit; nodes report commits themselves."""

    def begin(self) -> None:
        """Make the job known, on the driver, before its first attempt."""

    def attempt(self, partition: int, task: int) -> Path:
        """A fresh folder for an attempt.

        Raises: `Conflict` when the job is over.
        """

    def over(self, folder: Path) -> bool:
        """True when the job ended while an attempt was at work in its folder."""

    def rows(self, reporter: Path | None = None) -> int:
        """The rows that attempts have taken so far, as far as can be seen from here.

        0 for an attempt that asks with its folder and is not the one to report them.
        """

    def add_parts(self, folder: Path, parts: Sequence[Staged], rejects: Path | None) -> Landed:
        """Bring what an attempt sealed to where the driver finds it."""

    def leave(self, folder: Path) -> None:
        """Remove what an attempt wrote."""

    def enter(self, pond: OpenPond, parts: Sequence[Staged], entered: Entered) -> LoadResult:
        """Enter the parts of all attempts that count as one load.

        Raises: as `Pond.commit_load`.
        """

    def end(self) -> None:
        """Remove what the job's attempts left, once it is entered."""

    def give_up(self, parts: Iterable[Staged]) -> None:
        """Remove what the job's attempts left, when it will not be entered."""


@dataclass(frozen=True, slots=True)
class FolderStagingDir:
    """In the folder of the pond itself, which executors and the driver see under one path."""

    filed: ClassVar[bool] = True  # those who write the layer see the folder, too
    far: ClassVar[bool] = False
    job: Path
    lasting: bool = True
    load_id: str | None = None
    branch: str = ""

    @property
    def job_id(self) -> str:
        """The id of the load when it has one, else the random end of the folder's name."""
        return self.load_id or self.job.name.rpartition("-")[2]

    def counted(self, session: SparkSession) -> FolderStagingDir:
        """The same: attempts note their rows in their folders."""
        del session
        return self

    def commit_reports(self, pond: OpenPond) -> JobReports:
        """Those of the pond."""
        return pond.reports

    def begin(self) -> None:
        """Make the job's folder: an attempt that does not find it is too late."""
        self.job.mkdir(parents=True)

    def attempt(self, partition: int, task: int) -> Path:
        """A folder of its own, also for the second attempt at a partition."""
        folder = self.job / f"{partition:06d}-{task}"
        try:
            folder.mkdir(parents=not self.lasting)
        except FileNotFoundError:
            raise job_over(partition) from None
        return folder

    def over(self, folder: Path) -> bool:
        """True when the job's folder is gone, or, if that says nothing, the attempt's."""
        return not (self.job if self.lasting else folder).exists()

    def rows(self, reporter: Path | None = None) -> int:
        """The sum of what the attempts noted in their folders."""
        rows = 0
        if reporter is not None and not _reports(self.job, reporter.name):
            return rows
        for noted in self.job.glob(f"*/{ROWS}"):
            with suppress(OSError, ValueError):  # it is being written, or the attempt went away
                rows += int(noted.read_text())
        return rows

    def add_parts(self, folder: Path, parts: Sequence[Staged], rejects: Path | None) -> Landed:
        """They lie where the driver looks for them."""
        return tuple(parts), None if rejects is None else str(rejects)

    def leave(self, folder: Path) -> None:
        """Remove an attempt's folder, and that of a job that is made anew when it is needed."""
        remove_tree(folder)
        if not self.lasting:
            with suppress(OSError):  # other attempts are at work
                self.job.rmdir()

    def enter(self, pond: OpenPond, parts: Sequence[Staged], entered: Entered) -> LoadResult:
        """Adopt the folders; they are merged when this returns, and frozen when that is wanted."""
        return entered_here(cast("Pond", pond), parts, entered, self.load_id, self.branch)

    def end(self) -> None:
        """Remove the job's folder."""
        remove_tree(self.job)

    def give_up(self, parts: Iterable[Staged]) -> None:
        """Remove the job's folder."""
        self.end()


def entered_here(
    pond: Pond, parts: Sequence[Staged], entered: Entered, load_id: str | None, branch: str
) -> LoadResult:  # fmt: skip
    """Enter the parts and files of a job, as one load or one commit of a branch, in a pond that this process opened.

    Raises: as `Pond.commit_load`.
    """
    if branch:
        return _entered_on_branch(pond, parts, entered, load_id, branch)
    with ExitStack() as stack:
        files = [part for part in parts if isinstance(part, RowFile)]
        layers = layers_of_files(pond.loading.layers_of, files, stack, entered.writes, entered.salt)
        result = commit_load(
            pond.loading, [*parts_of(parts), *layers], source=entered.source, rejected=entered.rejected,
            stream=entered.stream, load_id=load_id, writes=partial(_folded, entered.writes),
        )  # fmt: skip  # the job reports itself
    for name in result.maps if entered.freeze else ():
        pond.map(name).freeze()
    return result


def _folded(writes: Writes, writer: StretchWriter[Any, Written]) -> Sequence[Written]:
    """Have the ranges of a fold written after a load, which is entered by then: the next one does what fails.

    Raises: as `StretchWriter.write`; `Unavailable` when Spark fails.
    """
    try:
        return writes(writer)
    except Exception as error:
        if is_of_spark(error):
            reason = line_that_matters(str(error))
            raise Unavailable("Spark gave up", kind="spark_failed", reason=reason) from error
        raise


def _entered_on_branch(
    pond: Pond, parts: Sequence[Staged], entered: Entered, load_id: str | None, branch: str
) -> LoadResult:  # fmt: skip
    """Put the layers of the rows on the branch, as one commit."""
    from millpond.refs.loads import BranchLoad

    on_branch = pond.branch(branch)
    load = BranchLoad(
        states=pond.refs.states, branch=branch, source=entered.source, rejected=entered.rejected,
        stream=entered.stream, again=bool(entered.salt), load_id=load_id, writes=entered.writes,
    )  # fmt: skip
    files = [part for part in parts if isinstance(part, RowFile)]
    if (earlier := load.earlier({file.map for file in files})) is not None:
        return earlier
    with ExitStack() as stack:
        return load.enter(layers_of_files(
            lambda name: on_branch.map(name).rows.layers, files, stack, entered.writes, entered.salt
        ))  # fmt: skip


@dataclass(frozen=True, slots=True)
class NodesStagingDir:
    """On the nodes: executors upload what they sealed to all of them, and keep nothing.

    `job` names the load, so that entering it again enters nothing; it may be `drawn` for it.
    """

    filed: ClassVar[bool] = False  # a node takes parts, and makes layers of them
    far: ClassVar[bool] = False
    location: SparkNodes
    job: str
    drawn: bool = True
    taken: Accumulator[int] | None = None

    @property
    def job_id(self) -> str:
        """The id of the load."""
        return self.job

    def counted(self, session: SparkSession) -> NodesStagingDir:
        """With a sum of the rows that attempts have uploaded, which Spark brings to the driver; Connect has no sums."""
        if is_connect(session):
            return self
        return replace(self, taken=session.sparkContext.accumulator(0))

    def commit_reports(self, pond: OpenPond) -> JobReports:
        """None: the node has its own."""
        del pond
        return NO_REPORTS

    def begin(self) -> None:
        """Do nothing: nodes keep no record of a job."""

    def attempt(self, partition: int, task: int) -> Path:
        """A folder for temporary files of this executor."""
        return scratch_folder()

    def over(self, folder: Path) -> bool:
        """Nobody knows here; uploads that come too late expire."""
        return False

    def rows(self, reporter: Path | None = None) -> int:
        """The rows of attempts that have ended, where they are counted: on the driver."""
        return 0 if self.taken is None or reporter is not None else self.taken.value

    def add_parts(self, folder: Path, parts: Sequence[Staged], rejects: Path | None) -> Landed:
        """Upload the parts to all nodes; rejects travel with the message.

        Raises: `Unavailable` naming nodes and reasons.
        """
        if parts:
            from millpond.client.upload import upload_parts

            upload_parts(self._all_nodes(), parts_of(parts), at=self._at())
            step("spark.uploaded")
            if self.taken is not None:
                self.taken.add(sum(part.manifest.rows for part in parts_of(parts)))
        data = None if rejects is None else rejects.read_bytes()
        remove_tree(folder)
        return tuple(replace(part, file=Path()) for part in parts_of(parts)), data

    def leave(self, folder: Path) -> None:
        """Remove the temporary files; another attempt may have uploaded the same parts, so these stay."""
        remove_tree(folder)

    def enter(self, pond: OpenPond, parts: Sequence[Staged], entered: Entered) -> LoadResult:
        """Have the primary enter the load, and every node come up to it; nodes freeze when they are asked."""
        from millpond.client.upload import enter_load

        there = cast("RemotePond", pond)
        return enter_load(
            there.nodes, parts_of(parts), load_id=self.job, clock=SystemClock(), source=entered.source,
            rejected=entered.rejected, stream=entered.stream,
            synchronise=entered.synchronise or there.settings.client.synchronise, at=self._at(again=bool(entered.salt)),
        )  # fmt: skip

    def _at(self, *, again: bool = False) -> dict[str, str]:
        """The query of a load on the branch; nothing on `main`."""
        options = {"again": again, "drawn": self.drawn}
        on = {"branch": self.location.branch, **{name: str(value).lower() for name, value in options.items()}}
        return on if self.location.branch else {}

    def end(self) -> None:
        """Do nothing: uploaded parts belong to the nodes."""

    def give_up(self, parts: Iterable[Staged]) -> None:
        """Let the nodes forget the uploads."""
        from millpond.client.upload import discard_parts

        if ids := [part.manifest.id for part in parts_of(parts)]:
            discard_parts(self._all_nodes(), ids)

    def _all_nodes(self) -> Nodes:
        nodes = self.location.nodes()
        nodes.learn()
        return nodes


def scratch_folder() -> Path:
    """A fresh folder of this user alone, for what goes elsewhere; those of dead processes are removed."""
    parent = Path(tempfile.gettempdir()) / f"millpond-{os.getuid()}"
    if not _is_private(parent):
        return Path(tempfile.mkdtemp(prefix="millpond-"))
    _sweep(parent)
    folder = parent / f"{os.getpid()}-{SystemClock().random_id()}"
    folder.mkdir(mode=0o700)
    return folder


def job_over(partition: int) -> Conflict:
    """The error of an attempt that comes too late."""
    return Conflict(
        "the load is over: another attempt at this task won, or the job was given up", kind="load_over",
        partition=partition,
    )  # fmt: skip


def _reports(job: Path, attempt: str) -> bool:
    """True for the attempt that asked first, until it has not asked for some seconds; for a moment two may."""
    reporter = job / REPORTER
    with suppress(OSError):  # the job is over
        try:
            if reporter.read_text() != attempt:
                if SystemClock().now_ms() < reporter.stat().st_mtime * 1000 + REPORTER_GONE_MS:
                    return False
                reporter.write_text(attempt)
            os.utime(reporter)
        except FileNotFoundError:
            with reporter.open("x") as file:
                file.write(attempt)
        return True
    return False


def _is_private(folder: Path) -> bool:
    """Make a folder, or find it made: a real one that belongs to this user, and that nobody else can write to.

    Its name can be guessed. Whoever made it first, or could put a link in its place, would read the parts of others,
    or swap them. In a temporary folder that is sticky, nobody else can take away what is ours.
    """
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o022:
        return False
    if status.st_mode & 0o077:
        folder.chmod(0o700)  # it was made by an older version; nobody else could write to it
    return True


def _sweep(parent: Path) -> None:
    """Remove what attempts of dead processes left."""
    for folder in parent.glob("[0-9]*-*"):
        with suppress(PermissionError):
            try:
                os.kill(int(folder.name.partition("-")[0]), 0)
            except ProcessLookupError:
                remove_tree(folder)
