"""The bound on the memory of one piece of work: rows beyond it wait on the disk, so work is slower and never fails."""

from __future__ import annotations

import os

from millpond.errors import Invalid
from millpond.sizes import parse_size

__all__ = ("MEMORY_LEAST", "MEMORY_MAX", "memory_bound")

MEMORY_MAX = 512 << 20
"""The bound where nobody sets `maps.memory_max`."""
MEMORY_LEAST = 16 << 20
"""With less, work would consist of files alone."""
_VARIABLE = "MILLPOND_MAPS_MEMORY_MAX"


def memory_bound(stated: object = None) -> int:
    """The bytes of memory that one piece of work may take: as given, else as the environment says.

    >>> memory_bound("1GiB"), memory_bound(1 << 24)
    (1073741824, 16777216)

    Raises: `Invalid` for less than 16 MiB, and for what is no size.
    """
    text = os.environ.get(_VARIABLE, MEMORY_MAX) if stated is None else stated
    size = parse_size(text) if isinstance(text, str) else text
    if not isinstance(size, int) or size < MEMORY_LEAST:
        raise Invalid("memory_max is too small to work with", kind="memory_max", bytes=size, least=MEMORY_LEAST,
                      hint="give it 16MiB or more")  # fmt: skip
    return size
