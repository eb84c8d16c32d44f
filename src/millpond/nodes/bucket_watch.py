"""The watch of a node over its bucket: each second it takes in what others wrote, and learns how the bucket is.

| what it sees | what follows |
|---|---|
| the bucket does not answer, or refuses reads | the node is not ready, and answers nothing; other nodes may reach it |
| the clock of this machine is not that of the bucket | likewise: what it would enter were known at a wrong time |
| the bucket takes no writes | the node is not ready, says why, and answers what is read |
| a job whose node died | it is done here, see `jobs/job_leases.py` |

So a request finds tokens and maps that are a second old at most, mostly without asking the bucket.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from millpond.errors import Denied, MillpondError
from millpond.kernel.worker import WorkerThread

if TYPE_CHECKING:
    from collections.abc import Callable

    from millpond.clock import Clock
    from millpond.maps.loads.bucket_location import StorageBucket
    from millpond.nodes.jobs.job_leases import JobLeases
    from millpond.stores.bucket_space.space import BucketSpace

__all__ = ("BucketWatch",)

LOOK_SECONDS = 1.0
PROBE_SECONDS = 60.0
"""So often it is tried if the bucket takes writes, and what time it has."""
PROBE_AGAIN_SECONDS = 5.0
"""The same, after it did not."""
SILENT_SECONDS = 10.0
"""A look that takes longer is an answer, too."""


class BucketWatch:
    """The watch of one node; `run_job` is called with the job of a node that died."""

    def __init__(
        self, location: StorageBucket, space: BucketSpace, leases: JobLeases, clock: Clock, *, skew_max_ms: int,
        run_job: Callable[[str], object],
    ) -> None:  # fmt: skip
        self.location, self.space = location, space
        self._leases, self._clock, self._skew_max_ms, self._run_job = leases, clock, skew_max_ms, run_job
        self.worker = WorkerThread("the watch over the bucket", self._look, clock)
        self._heard_at, self._probe_at = clock.monotonic(), clock.monotonic()
        self._silent = self._skewed = self._unwritable = ""
        self.skew_ms = 0

    @property
    def away(self) -> str:
        """The reason why nothing can be read from the bucket; empty while it can."""
        silent = self._clock.monotonic() - self._heard_at
        if not self._silent and self.worker.started and silent > SILENT_SECONDS + LOOK_SECONDS:
            return f"the bucket has not answered for {silent:.0f} s"
        return self._silent

    @property
    def fault(self) -> str:
        """The reason why the node answers nothing; empty while it does."""
        return self.away or self._skewed

    def reasons(self) -> list[str]:
        """The reasons why the node must not be sent work."""
        fault = self.fault
        return [fault] if fault else [self._unwritable] if self._unwritable else []

    def _look(self) -> float:
        try:
            self.space.follow()
            self._silent, self._heard_at = "", self._clock.monotonic()
            if self._clock.monotonic() >= self._probe_at:
                self._probe()
            if not self.reasons():
                self._leases.renew()
                for job in sorted(self._leases.dead()):
                    with suppress(MillpondError):  # the node stops
                        self._run_job(job)
        except MillpondError as error:
            self._silent = f"the bucket cannot be read: {error}"
        return self._clock.monotonic() + LOOK_SECONDS

    def _probe(self) -> None:
        """Put an object, and see what time it has.

        Raises: `Unavailable` when the bucket does not answer.
        """
        self._probe_at = self._clock.monotonic() + PROBE_AGAIN_SECONDS
        before_ms = self._clock.now_ms()
        try:
            there_ms = self.location.now_ms()
        except Denied as error:
            self._unwritable = f"the bucket takes no writes: {error}"
            return
        self._unwritable = ""
        # The time of an object is one of while it was put; some buckets know whole seconds.
        self.skew_ms = min(self._clock.now_ms() - there_ms, 0) + max(before_ms - there_ms - 1_000, 0)
        if abs(self.skew_ms) > self._skew_max_ms:
            self._skewed = f"its clock is off: {self.skew_ms / 1000:+.0f} s beside that of the bucket"
        else:
            self._skewed = ""
            self._probe_at = self._clock.monotonic() + PROBE_SECONDS
