"""Opening and closing environments of LMDB, one after another where they have an inode in common.

A file that was removed gives its inode up in the middle of its environment's end, and py-lmdb refuses to open the next
file of that inode until it is through: who is refused waits for those that are being closed, and opens again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import lmdb

from millpond.stores.lmdb.errors import is_open_already

__all__ = ("close_environment", "open_environment")

_CLOSING = threading.Lock()


def open_environment(opened: Callable[[], lmdb.Environment]) -> lmdb.Environment:
    """The environment that `opened` opens, also of a file that has the inode of one that is just being closed.

    Raises: `lmdb.Error`.
    """
    try:
        return opened()
    except lmdb.Error as error:
        if not is_open_already(error):
            raise
        with _CLOSING:
            return opened()


def close_environment(environment: lmdb.Environment) -> None:
    """Close it; others that are closed meanwhile wait."""
    with _CLOSING:
        environment.close()
