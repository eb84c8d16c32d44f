"""Small spaces in LMDB for tests, and another Python that uses them too."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

from millpond.kernel.keys import EVERYTHING
from millpond.stores.lmdb.space import Limits, LmdbSpace

if TYPE_CHECKING:
    from millpond.stores.lmdb.environment import Environment

SMALL = Limits(map_bytes=16384)
BIG = bytes(100_000)


def rows(space: LmdbSpace) -> dict[bytes, bytes]:
    with space.read() as transaction:
        return dict(transaction.scan(EVERYTHING))


def put(space: LmdbSpace, key: bytes, value: bytes = b"") -> None:
    space.write(lambda transaction: transaction.put(key, value))


def python(code: str, *arguments: object) -> subprocess.Popen[str]:
    """Another Python that runs `code`; it reads from and writes to pipes."""
    command = [sys.executable, "-c", "from millpond.stores.lmdb.space import *\nimport sys, os\n" + code]
    return subprocess.Popen([*command, *map(str, arguments)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def environment_of(space: LmdbSpace) -> Environment:
    assert space._environment is not None
    return space._environment
