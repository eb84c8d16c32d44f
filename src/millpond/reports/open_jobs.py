"""Jobs that have begun and not ended: one small file each, so that a killed process leaves a mark.

    running/<host>-<pid>-<hash of the job>      {"job_set": …, "job_id": …}

Invariants:
* a job's file is there before its first event is stored, and goes after its last one was: a job whose events end early
  has a file, or its process is at work;
* files cost no sync. After a power cut one may be missing: then the job's story just ends.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from millpond.json_forms import FormError, JsonForm

__all__ = ("Marks", "NoMarks", "OpenJob", "OpenJobs")


@dataclass(frozen=True, slots=True)
class OpenJob:
    """A job that has begun: its job set and its id."""

    job_set: str
    job_id: str


class Marks(Protocol):
    """The marks of jobs that have begun and not ended."""

    def add(self, job: OpenJob, owner: int) -> None:
        """Note that a job has begun, which is lost when the process `owner` is dead."""

    def remove(self, job: OpenJob) -> None:
        """Note that a job has ended."""

    def has(self, job: OpenJob) -> bool:
        """True when a job has begun and, as far as is known, not ended."""

    def lost(self) -> Iterator[tuple[Path, OpenJob]]:
        """The jobs whose processes are dead, with their files."""

    def forget(self, job_set: str, job_id: str | None) -> None:
        """Remove the marks of dead processes of a job set, or of one job of it: its story was deleted."""


class NoMarks:
    """No marks, for a client of nodes: nobody finds them there. Any job may have begun."""

    def add(self, job: OpenJob, owner: int) -> None:
        """Note nothing."""

    def remove(self, job: OpenJob) -> None:
        """Note nothing."""

    def has(self, job: OpenJob) -> bool:
        """True: whoever has its id has begun it."""
        del job
        return True

    def lost(self) -> Iterator[tuple[Path, OpenJob]]:
        """None."""
        return iter(())

    def forget(self, job_set: str, job_id: str | None) -> None:
        """Remove nothing."""


_FORM = JsonForm(OpenJob)


class OpenJobs:
    """The files of a pond's open jobs, on this `host`; `alive` is false for the file of a dead process of ours."""

    def __init__(self, folder: Path, host: str, alive: Callable[[str], bool]) -> None:
        self._folder, self._host, self._alive = folder, host, alive

    def add(self, job: OpenJob, owner: int) -> None:
        with suppress(OSError):
            self._folder.mkdir(exist_ok=True)
            (self._folder / f"{self._host}-{owner}-{_name(job)}").write_bytes(_FORM.encode(job))

    def remove(self, job: OpenJob) -> None:
        with suppress(OSError):
            for file in self._files(job):
                file.unlink(missing_ok=True)

    def has(self, job: OpenJob) -> bool:
        """True when a job has begun and not ended."""
        return bool(self._files(job))

    def lost(self) -> Iterator[tuple[Path, OpenJob]]:
        for file in sorted(self._folder.glob("*-*-*")) if self._folder.is_dir() else ():
            if not self._alive(file.name):
                with suppress(OSError, FormError):
                    yield file, _FORM.decode(file.read_bytes())

    def forget(self, job_set: str, job_id: str | None) -> None:
        for file, job in self.lost():
            if job.job_set == job_set and job_id in (None, job.job_id):
                with suppress(OSError):
                    file.unlink(missing_ok=True)

    def _files(self, job: OpenJob) -> list[Path]:
        return list(self._folder.glob(f"*-*-{_name(job)}"))


def _name(job: OpenJob) -> str:
    return hashlib.sha256(repr((job.job_set, job.job_id)).encode()).hexdigest()[:16]
