"""Scripts that Redis runs, each one atomic change or one look at a moment; `prelude.lua` begins each of them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib.resources import files

__all__ = ("APPEND", "CLOSE", "EXPIRE", "INDEX", "PULL_BACK", "READ", "SWITCH", "Script")


@dataclass(frozen=True, slots=True)
class Script:
    """A script, and the hash by which servers know it."""

    source: bytes
    sha: bytes


def _script(name: str) -> Script:
    folder = files(__name__)
    source = folder.joinpath("prelude.lua").read_bytes() + folder.joinpath(f"{name}.lua").read_bytes()
    # Redis names scripts by their SHA-1; nothing is secured by it.
    return Script(source, hashlib.sha1(source, usedforsecurity=False).hexdigest().encode())


APPEND = _script("append")
CLOSE = _script("close")
EXPIRE = _script("expire")
INDEX = _script("index")
PULL_BACK = _script("pull_back")
READ = _script("read")
SWITCH = _script("switch")
