"""A pond for one test: in a temporary folder, on a manual clock, over a space whose writes can be made to fail."""

from __future__ import annotations

import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from millpond.clock import Clock, ManualClock
from millpond.testing.faulty_space import FaultySpace

if TYPE_CHECKING:
    from collections.abc import Iterator

    from millpond.pond import Pond

__all__ = ("BEGINNING_MS", "faults_of", "temporary_pond")

BEGINNING_MS = 1_704_067_200_000
"""The time at which the clock of a test begins: 2024-01-01T00:00Z."""


@contextmanager
def temporary_pond(*, clock: Clock | None = None) -> Iterator[Pond]:
    """An empty pond, closed and removed at the end. Its clock is a `ManualClock` at 2024-01-01 if none is given."""
    # Arrow and LMDB are imported with the first pond, so that children which need no pond start soon.
    from millpond.pond import Pond
    from millpond.stores.lmdb.space import LmdbSpace

    with tempfile.TemporaryDirectory(prefix="millpond-") as folder:
        pond = Pond(
            Path(folder) / "pond", create=True, clock=clock or ManualClock(now=BEGINNING_MS),
            open_space=lambda path: FaultySpace(LmdbSpace(path)),
        )  # fmt: skip
        with pond:
            yield pond


def faults_of(pond: Pond) -> FaultySpace:
    """The faults that a temporary pond can be given, as context managers."""
    assert isinstance(pond.space, FaultySpace), "the pond is one of temporary_pond"
    return pond.space
