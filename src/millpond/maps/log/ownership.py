"""Ownership of a pond folder: by one node that serves it, or shared by any number of processes that open it.

    node.lock    held alone by the node for its life, shared by others while they change content

The system frees it when its holder dies. Readers never look at it.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from millpond.errors import Conflict
from millpond.stores.files import make_folder

__all__ = ("OwnerLock",)


class OwnerLock:
    """The lock of one pond, as one opening of it sees it."""

    def __init__(self, folder: Path, *, may_go: bool = False) -> None:
        """`may_go`: the folder has but copies of a bucket, and may be removed at any time."""
        self.file, self._may_go = folder / "node.lock", may_go
        self._held: int | None = None

    @property
    def serving(self) -> bool:
        """True when this opening serves the pond."""
        return self._held is not None

    def serve(self) -> None:
        """Be the one node that serves the pond, until `close`.

        Raises: `Conflict`, kind `pond_served`, when another does, or somebody is changing it.
        """
        handle = self._taken(fcntl.LOCK_EX)
        if handle is None:
            raise Conflict(
                "the pond is served, or somebody is loading into it", kind="pond_served", folder=self.file.parent,
                hint="one node serves a folder: stop the other, or wait for the load",
            )  # fmt: skip
        self._held = handle

    def serve_beside(self, folders: Path) -> None:
        """Be one of several nodes that serve the pond on this machine, until `close`, with the first of the folders
        `0`, `1` … that no other has.
        """
        number = 0
        while self._held is None:
            folder = folders / str(number)
            folder.mkdir(parents=True, exist_ok=True)
            self.file = folder / "node.lock"
            self._held = self._taken(fcntl.LOCK_EX)
            number += 1

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Keep nodes away while content is changed here.

        Raises: `Conflict`, kind `pond_served`, when a node serves the pond.
        """
        if self.serving:
            yield
            return
        handle = self._taken(fcntl.LOCK_SH)
        if handle is None:
            raise Conflict(
                "a node serves this pond: its folder cannot be changed directly", kind="pond_served",
                folder=self.file.parent, hint="use the node's URL instead of the folder",
            )  # fmt: skip
        try:
            yield
        finally:
            os.close(handle)

    def served(self) -> bool:
        """True when a node serves the pond now, this opening or another."""
        if self.serving:
            return True
        handle = self._taken(fcntl.LOCK_SH)
        if handle is not None:
            os.close(handle)
        return handle is None

    def _taken(self, how: int) -> int | None:
        handle = self._opened()
        try:
            fcntl.flock(handle, how | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            return None
        except BaseException:
            os.close(handle)
            raise
        return handle

    def _opened(self) -> int:
        while True:
            try:
                return os.open(self.file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            except FileNotFoundError:
                if not self._may_go:
                    raise
                make_folder(self.file.parent, 0o700)

    def close(self) -> None:
        """Serve no more."""
        if self._held is not None:
            os.close(self._held)
            self._held = None
