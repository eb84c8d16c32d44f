"""Imports of the server of forks of `confined.py`, which no work has to wait for."""

from __future__ import annotations

import atexit
import gc
import os
from importlib import import_module

__all__ = ()

# Other pools reserve memory ahead, which would not count; a fork loses threads.
os.environ.update(ARROW_DEFAULT_MEMORY_POOL="system", OMP_NUM_THREADS="1")
for _name in (
    "pyarrow.csv", "pyarrow.json", "pyarrow.parquet", "millpond.maps.sql", "millpond.server.confined",
    "millpond.server.confined_files", "millpond.server.console.object_rows", "millpond.server.console.queries",
    "millpond.maps.inputs.formats.references",
):  # fmt: skip
    import_module(_name)
gc.freeze()
atexit.register(os.dup2, os.open(os.devnull, os.O_WRONLY), 2)  # libraries tell of what they did not free
