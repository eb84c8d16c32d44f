"""Scripts that Redis runs, each one atomic change or one look at a moment; `prelude.lua` begins each of them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib.resources import files

__all__ = ("APPEND", "CLOSE", "DELETE", "EXPIRE", "INDEX", "PULL_BACK", "READ", "STAGE", "SWAP", "SWITCH", "Script")


@dataclass(frozen=True, slots=True)
class Script:
    """A script, and the hash by which servers know it."""

    source: bytes
    sha: bytes


_WHEN_FULL = b"#!lua flags=allow-oom\n"
"""Begins a script that Redis runs also when its memory is full: it frees more than it takes, or lets others do so."""


def _script(name: str, begin: bytes = b"") -> Script:
    folder = files(__name__)
    source = begin + folder.joinpath("prelude.lua").read_bytes() + folder.joinpath(f"{name}.lua").read_bytes()
    # Redis names scripts by their SHA-1; nothing is secured by it.
    return Script(source, hashlib.sha1(source, usedforsecurity=False).hexdigest().encode())


APPEND = _script("append")
CLOSE = _script("close", _WHEN_FULL)
DELETE = _script("delete", _WHEN_FULL)
EXPIRE = _script("expire", _WHEN_FULL)
INDEX = _script("index")
PULL_BACK = _script("pull_back", _WHEN_FULL)
READ = _script("read")
STAGE = _script("stage", _WHEN_FULL)
SWAP = _script("swap")
SWITCH = _script("switch", _WHEN_FULL)
