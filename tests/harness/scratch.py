"""A folder that is gone when it is let go of, in memory where the machine has such a place.

Model tests write thousands of small shards and test meaning, not disks: in memory a sync costs nothing.
"""

from __future__ import annotations

import os
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ("memory", "scratch_folder")

_MEMORY = Path("/dev/shm")


def memory() -> Path | None:
    """The place for files in memory, where the machine has one."""
    return _MEMORY if _MEMORY.is_dir() and os.access(_MEMORY, os.W_OK) else None


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """An empty folder, removed with all that is in it."""
    with tempfile.TemporaryDirectory(prefix="millpond-", dir=memory()) as folder:
        yield Path(folder)
