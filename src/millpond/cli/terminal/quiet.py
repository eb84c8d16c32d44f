"""Spark's small talk: what the JVM and PySpark say at every start and that nobody can do anything about.

Everything else that they write to standard error still gets there, line by line.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from millpond.kernel.worker import begin_thread

__all__ = ("quiet_spark",)

_SMALL_TALK = (
    b"WARNING: Using incubator modules",
    b"PySpark does not yet fully support pandas",
    b"require_minimum_pandas_version()",
)


@contextmanager
def quiet_spark() -> Iterator[None]:
    """While this lasts, processes that are started get a standard error that leaves out small talk, for their life."""
    warnings.filterwarnings("ignore", message="PySpark does not yet", category=FutureWarning)
    sys.stderr.flush()
    true_stderr = os.dup(2)
    read_end, write_end = os.pipe()
    os.dup2(write_end, 2)
    os.close(write_end)
    begin_thread("what Spark says", partial(_pass_on, read_end, true_stderr))
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(true_stderr, 2)


def _pass_on(read_end: int, true_stderr: int) -> None:
    with os.fdopen(read_end, "rb") as lines:
        for line in lines:
            if not any(talk in line for talk in _SMALL_TALK):
                os.write(true_stderr, line)
    os.close(true_stderr)
