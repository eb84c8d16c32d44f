"""The numbers of LMDB's file format: `bulk_write.py` draws its pages, `bulk_read.py` and `page_walk.py` read them."""

import struct

import numpy as np
import numpy.typing as npt

__all__ = (
    "BIG_VALUE", "BRANCH", "DUPLICATES", "HEADER", "I64", "LEAF", "META", "NODE_HEADER", "OVERFLOW", "PAGE",
    "SEVERAL_ROWS", "SUB_TABLE", "TABLE", "U8",
)  # fmt: skip

U8 = npt.NDArray[np.uint8]
I64 = npt.NDArray[np.int64]

PAGE = 4096
HEADER = 16
NODE_HEADER = 8

BRANCH, LEAF, OVERFLOW, META = 0x01, 0x02, 0x04, 0x08
"""Kinds of pages."""

BIG_VALUE, SUB_TABLE, SEVERAL_ROWS = 0x01, 0x02, 0x04
"""Flags of a node whose value does not simply follow the key."""

DUPLICATES = 0x04
"""The flag of a table that takes several rows under one key."""

TABLE = struct.Struct("<IHHQQQQQ")
"""The MDB_db record of a table: padding, flags, depth, branch, leaf and overflow pages, rows, root."""
