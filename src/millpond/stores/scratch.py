"""Arrays in files without a name, for what grows with the data: the kernel keeps in memory what it has room for."""

from __future__ import annotations

import os
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from millpond.stores.files import disk_errors

__all__ = ("scratch_array",)


def scratch_array(files: ExitStack, folder: Path, count: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """So many zeros in a file in this folder, which goes when `files` is closed or the process ends.

    The room is taken at once: a full disk is an error here, and no signal later.

    Raises: `Unavailable` when the disk is full.
    """
    if count == 0:
        return np.zeros(0, dtype)
    with disk_errors(folder):
        file = files.enter_context(tempfile.TemporaryFile(dir=folder, prefix="scratch-"))  # noqa: SIM115
        os.posix_fallocate(file.fileno(), 0, count * np.dtype(dtype).itemsize)
        return np.asarray(np.memmap(file, dtype, "r+", shape=(count,)))
