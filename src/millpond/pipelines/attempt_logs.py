"""Logs of attempts: what worker and driver write during one, kept with its run as the attempt's log.

    print, warnings, tracebacks ─┐
    output of a program ─────────┼─▶ lines, secrets masked ─▶ the first bytes … the last bytes ─▶ the attempt's report
    Spark driver and its JVM ────┘

Invariants:
* the first and the last lines stay, and no more bytes than the log's limit;
* a secret is masked before a line is cut: what the environment and the parameters of the run call so, and what looks
  like one.
"""

from __future__ import annotations

import os
import re
import sys
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any, Final

from millpond.lineage import MASK
from millpond.workflows.engine.pipeline_starts import secret_texts

__all__ = ("ATTEMPT_LOG_BYTES_MAX", "RUN_LOG_BYTES_MAX", "AttemptLog", "attempt_bytes", "collecting", "current_log")

ATTEMPT_LOG_BYTES_MAX: Final = 65_536
"""Bytes of the log of one attempt."""
RUN_LOG_BYTES_MAX: Final = 4_194_304
"""Bytes of the logs of all attempts at the steps of one run; of many steps, each attempt may keep less."""
_NOTE_BYTES = 80
_LINE_CHARACTERS = 65_536
_MASK = "***"
_LIKE_SECRETS = (
    (re.compile(r"(://[^\s/:@]*:)[^\s/@]+(@)"), rf"\1{_MASK}\2"),
    (re.compile(r"(?i)\b(bearer\s+)[\w.~+/=-]+"), rf"\1{_MASK}"),
    (re.compile(r"(?i)((?:password|passwd|secret|token|api[_-]?key|access[_-]?key)['\"]?\s*[=:]\s*['\"]?)[^\s'\"&,;]+"),
     rf"\1{_MASK}"),
)  # fmt: skip


def attempt_bytes(steps: int, retries: int) -> int:
    """The limit of an attempt's log, so that those of a run stay below theirs.

    >>> attempt_bytes(10, 3), attempt_bytes(1000, 3)
    (65536, 1048)
    """
    return min(ATTEMPT_LOG_BYTES_MAX, RUN_LOG_BYTES_MAX // (max(1, steps) * (retries + 1)))


class AttemptLog:
    """The lines of one attempt. Threads may share it."""

    def __init__(self, limit: int = ATTEMPT_LOG_BYTES_MAX, values: Mapping[str, Any] | None = None) -> None:
        """A log; of `values`, those whose names say that they are secrets are masked."""
        self.secrets = (*secret_texts(values or {}), *_secrets())
        self._longest = max(map(len, self.secrets), default=0)
        self._half = max(0, limit - _NOTE_BYTES) // 2
        self._first = bytearray()
        self._last: deque[bytes] = deque()
        self._last_bytes = self._dropped = 0
        self._open = ""
        self._lock = threading.Lock()

    def write(self, text: str) -> None:
        """Add text; a line counts when it is whole."""
        with self._lock:
            *lines, self._open = (self._open + text).split("\n")
            for line in lines:
                self._add(f"{line}\n")
            if len(self._open) > _LINE_CHARACTERS:  # what may be the beginning of a secret waits for the rest of it
                whole = self.masked(self._open)
                cut = max(0, len(whole) - self._longest)
                self._add(whole[:cut])
                self._open = whole[cut:]

    def text(self) -> str:
        """The lines that are kept, with a note of what is left out."""
        with self._lock:
            self._add(self._open)
            self._open = ""
            note = f"\n… {self._dropped:,} bytes left out …\n".encode() if self._dropped else b""
            return (bytes(self._first) + note + b"".join(self._last)).decode(errors="ignore")

    def _add(self, line: str) -> None:
        rest = self.masked(line).encode(errors="replace")
        if not self._last:
            room = self._half - len(self._first)
            self._first += rest[:room]
            rest = rest[room:]
        if not rest:
            return
        self._last.append(rest)
        self._last_bytes += len(rest)
        while self._last_bytes > self._half:
            over = self._last_bytes - self._half
            oldest = self._last.popleft()
            if len(oldest) > over:
                self._last.appendleft(oldest[over:])
            lost = min(over, len(oldest))
            self._last_bytes -= lost
            self._dropped += lost

    def masked(self, text: str) -> str:
        """A text without secrets."""
        for secret in self.secrets:
            text = text.replace(secret, _MASK)
        for like, mask in _LIKE_SECRETS:
            text = like.sub(mask, text)
        return text

    def masked_in(self, value: Any) -> Any:
        """A value of JSON without secrets in its texts."""
        match value:
            case str():
                return self.masked(value)
            case Mapping():
                return {name: self.masked_in(inner) for name, inner in value.items()}
            case list():
                return [self.masked_in(inner) for inner in value]
        return value


@cache
def _secrets() -> tuple[str, ...]:
    """The secrets of the environment."""
    return secret_texts(os.environ)


_CURRENT: ContextVar[AttemptLog | None] = ContextVar("attempt_log", default=None)


def current_log() -> AttemptLog | None:
    """The log of the attempt that calls, also from a thread that it began by asyncio."""
    return _CURRENT.get()


@contextmanager
def collecting(log: AttemptLog) -> Iterator[None]:
    """Let a log have what the caller writes to standard output and error, and mask its lineage, while this lasts.

    Standard error gets it, too, without secrets; standard output has what the command answers alone.
    """
    errors = sys.stderr.shown if isinstance(sys.stderr, _Tee) else sys.stderr
    for name in ("stdout", "stderr"):  # each once: who redirects one of them puts back what was there
        if not isinstance(stream := getattr(sys, name), _Tee):
            setattr(sys, name, _Tee(stream, errors))
    token, mask = _CURRENT.set(log), MASK.set(log.masked_in)
    try:
        yield
    finally:
        _CURRENT.reset(token)
        MASK.reset(mask)


class _Tee:
    """A stream that gives what it gets to the log of the attempt that writes."""

    def __init__(self, stream: Any, shown: Any) -> None:
        self._stream, self.shown = stream, shown

    def write(self, text: str) -> int:
        """As the stream; of an attempt, to what shows it."""
        log = _CURRENT.get()
        if log is None:
            count: int = self._stream.write(text)
            return count
        log.write(text)
        self.shown.write(log.masked(text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
