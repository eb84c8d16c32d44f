"""The memory that a process still holds after freeing it."""

from __future__ import annotations

import subprocess
import sys

PIECES = """
import psutil
from millpond.arrays.malloc import give_memory_back, keep_memory

assert keep_memory()
pieces = [bytearray(100_000) for _ in range(4000)]  # each too small to be given back alone
remaining = pieces[::50]  # and something stays in between
del pieces
before = psutil.Process().memory_info().rss
give_memory_back()
print(before - psutil.Process().memory_info().rss > 200_000_000)
"""


def test_what_was_freed_between_other_things_is_given_back() -> None:
    done = subprocess.run([sys.executable, "-c", PIECES], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True"
