"""Streams against the model, over the embedded backend: in memory, in LMDB, and in a bucket."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass

import pytest

from millpond.events.embedded.check import check_streams
from millpond.events.embedded.garbage import collect_objects
from millpond.stores.lmdb.space import LmdbSpace
from millpond.stores.memory import MemorySpace
from tests.contracts.test_bucket_streams import BucketSite
from tests.contracts.test_streams import EmbeddedSite
from tests.harness.contracts.stream_machine import machine_case
from tests.rings.sampling import examples

pytestmark = pytest.mark.usefixtures("processor")


@dataclass
class CheckedSite(EmbeddedSite):
    """A site whose rows are checked at the end."""

    def close(self) -> None:
        report = check_streams(self.space)
        assert report.ok, report.problems
        super().close()


@dataclass
class FolderSite(CheckedSite):
    """A site in a folder that goes with it."""

    folder: str = ""

    def close(self) -> None:
        super().close()
        shutil.rmtree(self.folder)


def _in_folder() -> FolderSite:
    folder = tempfile.mkdtemp()
    return FolderSite(LmdbSpace(f"{folder}/space", durable=False), folder=folder)


@dataclass
class CheckedBucket(BucketSite):
    """A bucket whose rows and objects are checked at the end."""

    def close(self) -> None:
        rows = self.rows()
        report = check_streams(rows)
        assert report.ok, report.problems
        collect_objects(rows, self.clock, self.clock.now_ms, grace_ms=0, dry_run=False)
        assert check_streams(self.rows()).ok, "what is needed stays"
        super().close()


TestMemoryStreams = machine_case(
    lambda: CheckedSite(MemorySpace()), max_examples=examples(15, 60), stateful_step_count=30
)
TestLmdbStreams = machine_case(_in_folder, max_examples=examples(5, 15), stateful_step_count=30)
TestBucketStreams = machine_case(CheckedBucket, max_examples=examples(4, 8), stateful_step_count=30)


@pytest.mark.full
class TestManyMemoryStreams(
    machine_case(lambda: CheckedSite(MemorySpace()), max_examples=2000, stateful_step_count=50)  # type: ignore[misc]
):
    """The same at length."""


@pytest.mark.full
class TestManyBucketStreams(
    machine_case(CheckedBucket, max_examples=500, stateful_step_count=50)  # type: ignore[misc]
):
    """The same at length."""
