"""Millpond: the state that data pipelines need.

>>> import millpond
>>> pond = millpond.open("pond")                                    # doctest: +SKIP
>>> pond.map("weather").get("JFK", at="2013-02-08T18:00Z")          # doctest: +SKIP
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from millpond.clock import Clock
from millpond.errors import (
    AlreadyExists,
    Closed,
    Conflict,
    Corrupt,
    Internal,
    Invalid,
    MillpondError,
    NotFound,
    Unavailable,
)  # fmt: skip

if TYPE_CHECKING:
    from millpond.maps.handle import Map
    from millpond.maps.loading import LoadResult
    from millpond.pond import Pond

__all__ = (
    "AlreadyExists", "Closed", "Conflict", "Corrupt", "Internal", "Invalid", "LoadResult", "Map", "MillpondError",
    "NotFound", "Pond", "Unavailable", "__version__", "open",
)  # fmt: skip

__version__ = "0.1.0"


def open(folder: str | os.PathLike[str], *, create: bool = True, clock: Clock | None = None) -> Pond:
    """Open the pond in a folder; made if missing, unless `create` is False.

    Raises: `Invalid` when the folder holds something else or, without `create`, no pond.
    """
    # Arrow and LMDB are imported with the first pond, so that `import millpond` stays light.
    from millpond.pond import open_pond

    return open_pond(folder, create=create, clock=clock)


_LAZY = {"Pond": "millpond.pond", "Map": "millpond.maps.handle", "LoadResult": "millpond.maps.loading"}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'millpond' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_LAZY[name]), name)
