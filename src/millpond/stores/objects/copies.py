"""The copies that a machine has of objects in buckets: files below one folder, within a bound.

All processes of the machine share the folder. Each says when it uses a copy, by the time of access of the file, and
makes room before it adds one.

Invariants:
* A copy may go at any time: who has it mapped goes on reading it, and who wants it next fetches it again.
* The copies go beyond the bound by no more than `SLACK` of it for each process. What was used longest ago goes first.
* The time of change of a copy stays: it says which bytes were compared with the name (`stores/verified.py`).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pyarrow as pa

from millpond.clock import Clock
from millpond.errors import MillpondError, Unavailable
from millpond.stores.locks import alone
from millpond.stores.objects.at_once import UNPACKING

__all__ = ("CACHE_MAX", "CopiesOf", "Copy")

CACHE_MAX = 16 << 30
"""The bytes of copies on a machine where nobody says otherwise."""
SLACK = 16
"""A process looks at the folder again when it has added this part of the bound."""
_ROOM_SECONDS = 10.0
_EMPTIED = 0.9
"""The share of the bound to which copies are removed, so that the folder is not looked at for each that comes."""


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy, when it was used last, and its bytes."""

    used_ns: int
    size: int
    file: Path


def _as_it_is(data: Any, name: str, *, blocks: bool, rows: object = None) -> Any:
    del name, blocks, rows
    return data


@dataclass
class CopiesOf:
    """The copies below `folder`, in the places that a `pattern` names; what lies in `own` folders there is none.

    `check` compares bytes with a name, and raises: all that they say, or, without `arriving`, their checksum. `in_form`
    gives the bytes of an object another form, with the same content: that of a bucket, in `blocks`, or of this machine;
    it is told what `check` read of them.
    """

    folder: Path
    pattern: str
    own: tuple[str, ...]
    clock: Clock
    check: Callable[..., Any]
    bytes_max: int = CACHE_MAX
    in_form: Callable[..., Any] = field(default=_as_it_is, repr=False)
    _added: int | None = field(default=None, repr=False)
    _lock: Any = field(default_factory=threading.Lock, repr=False)

    def __reduce__(self) -> tuple[object, ...]:
        return (
            type(self), (self.folder, self.pattern, self.own, self.clock, self.check, self.bytes_max, self.in_form)
        )  # fmt: skip

    def is_sound(self, data: pa.Buffer, name: str) -> bool:
        """True when a copy is what its name says."""
        try:
            self.check(data, name, str(self.folder), arriving=False)
        except MillpondError:
            return False
        return True

    def arrived(self, data: pa.Buffer, name: str) -> pa.Buffer | None:
        """Bytes from the bucket in the form of this machine; None when they are not what their name says."""
        with UNPACKING:
            try:
                rows = self.check(data, name, str(self.folder), arriving=True)
            except MillpondError:
                return None
            return cast(pa.Buffer, self.in_form(data, name, blocks=False, rows=rows))

    def use(self, file: Path | str) -> None:
        """Note that a copy is used now."""
        with suppress(OSError):  # it may have gone, or be another user's: then it goes earlier than it might
            os.utime(file, ns=(self.clock.now_ms() * 1_000_000, os.stat(file).st_mtime_ns))  # noqa: PTH116

    def make_room(self, size: int) -> bool:
        """Remove what was used longest ago, so that a copy of so many bytes has room; False for one that never has."""
        if size > self.bytes_max:
            return False
        with self._lock:
            first, added = self._added is None, size + (self._added or 0)
            if not first and added <= self.bytes_max // SLACK:
                self._added = added
                return True
            self._added = size
        busy = Unavailable("another process makes room", kind="map_busy", file=self.folder, hint="try again")
        # Who makes room at this moment may have looked at the folder before these bytes came.
        try:
            with alone(self.folder / "room.lock", _ROOM_SECONDS, busy):
                self._remove(size)
        except Unavailable:
            with self._lock:
                self._added += added  # so the next copy looks again
        return True

    def _remove(self, size: int) -> None:
        copies = list(self.all())
        left = sum(copy.size for copy in copies) + size
        if left <= self.bytes_max:
            return
        for copy in sorted(copies, key=lambda copy: copy.used_ns):
            if left <= self.bytes_max * _EMPTIED:
                return
            copy.file.unlink(missing_ok=True)
            left -= copy.size

    def all(self) -> Iterator[Copy]:
        """All copies."""
        for path in self.folder.glob(self.pattern):
            yield from self.below(path)

    def below(self, path: Path) -> Iterator[Copy]:
        """The copies in one place."""
        for folder in _entries(path):
            if folder.name in self.own or folder.name.startswith(".") or not folder.is_dir():
                continue
            for file in _entries(folder):
                with suppress(FileNotFoundError):  # another process was faster
                    status = file.stat()
                    yield Copy(status.st_atime_ns, status.st_size, file)


def _entries(folder: Path) -> list[Path]:
    """The entries of a folder; none of one that was removed."""
    try:
        return list(folder.iterdir())
    except FileNotFoundError:
        return []
