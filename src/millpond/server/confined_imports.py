"""Imports of the server of forks of `confined.py`, which no work has to wait for.

Invariant: it has none of the node's environment but what Python needs: no secret of it is in its memory, nor in that of
a child. It begins once more for that, as the same process.
"""

import atexit
import gc
import os
import sys
from importlib import import_module

__all__ = ()

_STAYING = "PATH", "HOME", "TZ", "TMPDIR", "LANG", "LC_", "PYTHON", "LD_LIBRARY_PATH", "NUMBA_", "MALLOC_"
"""The beginnings of names that stay."""
_environment = {name: value for name, value in os.environ.items() if name.startswith(_STAYING)}
if len(_environment) < len(os.environ) and "multiprocessing.forkserver" in sys.orig_argv[-1]:
    os.execve(sys.executable, sys.orig_argv, _environment)  # its descriptors stay open

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
