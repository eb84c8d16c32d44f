"""The audit log: one line of JSON for every request that changes something, with the name of its token.

    {"at": "2026-01-31T12:00:00.000Z", "token": "loader", "method": "POST", "path": "/v1/loads", "status": 200, …}

A command that changes tokens writes one, too: its `method` is `command`, its `path` the command, `name` the token.
Uploads of parts have none: a part changes nothing until a load enters it, and the line of the load names its maps.

Invariants:
* a request that the node refuses is written, too, with its status; without a known token, `token` is null;
* no secret, body or value is in it; text of a caller is JSON, so that it makes no line of its own;
* the log takes at most `(FILES_MAX + 1) * FILE_BYTES_MAX` bytes, and a line;
* a line is one write, before the answer; a reader beside it may meet its beginning first: files are written by pages;
* a line that cannot be written fails no request: the node's own log says so.
"""

from __future__ import annotations

import logging
import os
import stat
from contextlib import suppress
from datetime import UTC, datetime
from functools import lru_cache
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any

from millpond.clock import Clock
from millpond.json_forms import FormError, parse_object, to_json

__all__ = ("AuditLog",)

FILE_BYTES_MAX = 16 << 20
"""The size at which the audit log begins a new file."""
FILES_MAX = 10
"""The files of the audit log before this one."""
TAIL_BYTES = 64 << 10
"""The end of the file in which the newest lines are looked for."""
_LOG = logging.getLogger("millpond.server")


class _Rotating(RotatingFileHandler):
    """The file of the log, opened with the first line, and its older files.

    Lines go around logging's records: to make one takes longer than to write the line, while every other request waits.
    """

    _bytes_left = 0
    """The bytes that may be written before the size of the file is looked at."""

    def append(self, line: bytes) -> None:
        """Write a line; errors go to the node's own log."""
        self.acquire()
        try:
            stream = self.stream or self._opened()
            if self.maxBytes and self._bytes_left < len(line):
                status = os.fstat(stream.fileno())
                # What is no file, such as a terminal, has no size, and no older files.
                if stat.S_ISREG(status.st_mode) and status.st_size + len(line) >= self.maxBytes:
                    self.doRollover()
                    stream = self._opened()
                    status = os.fstat(stream.fileno())
                self._bytes_left = max(min(self.maxBytes - status.st_size, TAIL_BYTES), len(line))
            self._bytes_left -= len(line)
            stream.buffer.write(line)
            stream.buffer.flush()
        except Exception:
            _LOG.exception("the audit log %s cannot be written to", self.baseFilename)
        finally:
            self.release()

    def _opened(self) -> TextIOWrapper:
        self.stream = stream = self._open()
        return stream


class AuditLog:
    """The audit log of one node: `audit.jsonl` in its folder, or what a link or a pipe of this name leads to."""

    def __init__(
        self, folder: Path, clock: Clock, *, alone: bool = True, bytes_max: int = FILE_BYTES_MAX, files: int = FILES_MAX
    ) -> None:
        """`alone`: no other process writes to it, so that its files may take turns."""
        self._clock = clock
        self._file = _Rotating(
            (folder / "audit.jsonl").resolve(), maxBytes=bytes_max if alone else 0, backupCount=files,
            encoding="utf-8", delay=True,
        )  # fmt: skip

    def write(self, token: str | None, method: str, path: str, status: int, **values: Any) -> None:
        """Write one line; `values` say more about the change, such as the load that was entered."""
        row = {"at": _in_iso(self._clock.now_ms()), "token": token, "method": method, "path": path,
               "status": status, **values}  # fmt: skip
        self._file.append(to_json(row) + b"\n")

    def write_command(self, command: str, **values: Any) -> None:
        """Write one line about a command that changed the folder of the node on its machine."""
        self.write(None, "command", command, 200, **values)

    def newest(self, amount: int) -> list[dict[str, Any]]:
        """The newest lines of the present file, of its last bytes alone, the newest first; none of what is no file."""
        path = Path(self._file.baseFilename)
        if not path.is_file():
            return []
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - TAIL_BYTES))
            lines = file.read(TAIL_BYTES + 1).splitlines()
        rows = []
        for line in reversed(lines):
            with suppress(FormError):  # the first one may be cut, the last one may not be whole yet
                rows.append(parse_object(line))
        return rows[:amount]

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _in_iso(ms: int) -> str:
    return f"{_second(ms // 1000)}.{ms % 1000:03}Z"


@lru_cache(1)
def _second(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().removesuffix("+00:00")
