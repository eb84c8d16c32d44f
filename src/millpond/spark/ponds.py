"""The pond a Spark call speaks of: an open one, a folder, or the session's own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

from pyspark.sql import SparkSession

from millpond.clock import SystemClock
from millpond.errors import Invalid
from millpond.pond import Pond, open_pond

__all__ = ("POND", "PondLike", "opened", "pond_folder")

PondLike: TypeAlias = "Pond | str | os.PathLike[str]"

POND = "spark.millpond.pond"
"""The setting of a session that names the pond for calls that name none."""


def pond_folder(pond: PondLike | None, session: SparkSession | None = None) -> Path:
    """The folder of the pond that is meant: the one given, else the session's.

    Raises: `Invalid` when there is neither.
    """
    told = pond if pond is not None else (session.conf.get(POND, None) if session else None)
    if told is None:
        raise Invalid(
            "no pond is named", kind="pond_unnamed", hint=f"pass pond=…, or set {POND}; sources take option('pond', …)"
        )
    folder = told.folder if isinstance(told, Pond) else Path(told)
    # Executors work elsewhere than the driver.
    return folder.absolute()


@contextmanager
def opened(pond: PondLike) -> Iterator[Pond]:
    """An open pond as it is; a folder opened for as long as this lasts.

    Raises: `Invalid` when there is no pond in the folder.
    """
    if isinstance(pond, Pond):
        yield pond
        return
    with open_pond(pond, create=False, clock=SystemClock()) as made:
        yield made
