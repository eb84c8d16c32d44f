"""Before kernels follow offsets that lie in a file, they are checked: a damaged file is an error, not a crash.

Kernels read memory at addresses they compute from offsets. Every column of offsets is walked once when it is first
used, which costs about a nanosecond an entry; that a byte of a value changed is found only by reading everything and
comparing it with its name (`verify`).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millpond.arrays.compiled import kernel
from millpond.arrays.memory import load_i32
from millpond.errors import Corrupt

__all__ = ("check_offsets", "check_positions", "damaged")


def damaged(name: str) -> Corrupt:
    """The error that names a damaged file."""
    return Corrupt("the file is not what was written", kind="range_damaged", object=name)


def check_offsets(array: pa.Array, name: str) -> None:
    """Make sure that the offsets of a list, text or binary array ascend within what they count.

    Raises: `Corrupt`, naming the file.
    """
    if len(array) == 0:
        return
    offsets = array.buffers()[1]
    if pa.types.is_list(array.type):
        length = len(array.values)
    else:
        data = array.buffers()[2]
        length = 0 if data is None else data.size
    sound = (
        offsets is not None
        and offsets.size >= 4 * (array.offset + len(array) + 1)
        and _ascend(offsets.address + 4 * array.offset, len(array), length)
    )
    if not sound:
        raise damaged(name)


@kernel
def _ascend(offsets, count, most):  # type: ignore[no-untyped-def]
    before = load_i32(offsets)
    sound = before >= 0
    for number in range(1, count + 1):
        here = load_i32(offsets + 4 * number)
        sound &= here >= before
        before = here
    return sound and before <= most


def check_positions(places: npt.NDArray[np.int64], counts: npt.NDArray[np.int64], name: str) -> None:
    """Make sure that positions name groups that are there; `counts` are the groups of each piece.

    Raises: `Corrupt`, naming the file.
    """
    pieces, numbers = places >> 32, places & 0xFFFFFFFF
    if len(places) and not (
        int(places.min()) >= 0 and int(pieces.max()) < len(counts) and bool(np.all(numbers < counts[pieces]))
    ):
        raise damaged(name)
