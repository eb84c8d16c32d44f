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

__all__ = ("scratch_folder",)

_MEMORY = Path("/dev/shm")


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """An empty folder, removed with all that is in it."""
    place = _MEMORY if _MEMORY.is_dir() and os.access(_MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="millpond-", dir=place) as folder:
        yield Path(folder)
