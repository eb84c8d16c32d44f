"""Scripts that Redis runs, each one atomic change or one look at a moment; `prelude.lua` begins them.

`segments.lua` follows only where it is needed, for Redis makes the functions of a script anew in each call; the script
that is called most has neither.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files

__all__ = (
    "APPEND", "APPEND_SINGLES", "CLOSE", "DELETE", "EXPIRE", "INDEX", "PULL_BACK", "READ", "REWRITE", "SWAP",
    "SWITCH", "Script",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Script:
    """A script, and the hash by which servers know it."""

    source: bytes
    sha: bytes


_WHEN_FULL = b"#!lua flags=allow-oom\n"
"""Begins a script that Redis runs also when its memory is full: it frees more than it takes, or lets others do so."""


def _script(name: str, begin: bytes = b"", parts: Sequence[str] = ("prelude",)) -> Script:
    folder = files(__name__)
    source = begin + b"".join(folder.joinpath(f"{part}.lua").read_bytes() for part in (*parts, name))
    # Redis names scripts by their SHA-1; nothing is secured by it.
    return Script(source, hashlib.sha1(source, usedforsecurity=False).hexdigest().encode())


_WITH_SEGMENTS = ("prelude", "segments")

APPEND = _script("append")
APPEND_SINGLES = _script("append_singles", parts=())
CLOSE = _script("close", _WHEN_FULL)
DELETE = _script("delete", _WHEN_FULL, _WITH_SEGMENTS)
EXPIRE = _script("expire", _WHEN_FULL, _WITH_SEGMENTS)
INDEX = _script("index")
PULL_BACK = _script("pull_back", _WHEN_FULL, _WITH_SEGMENTS)
READ = _script("read", parts=_WITH_SEGMENTS)
REWRITE = _script("rewrite", _WHEN_FULL, _WITH_SEGMENTS)
SWAP = _script("swap", parts=())
SWITCH = _script("switch", _WHEN_FULL, _WITH_SEGMENTS)
