"""Spans as work makes them: `span` does nothing until `begin_tracing` finds that they are wanted."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager
from enum import Enum
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

if TYPE_CHECKING:
    from millpond.tracing.provider import Spans

__all__ = (
    "TRACEPARENT", "Kind", "Noted", "Value", "begin_tracing", "flush_spans", "is_traced", "past_span", "span",
    "spans", "trace_headers", "traceparent", "traceparent_in",
)  # fmt: skip

TRACEPARENT: Final = "traceparent"
"""The header of requests that names the span that they are within; in capitals, the variable of processes."""
_FLUSH_SECONDS: Final = 3.0
_WRITTEN: Final = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}", re.ASCII)

Value: TypeAlias = "str | int | float | bool"


class Kind(Enum):
    """The side of a call that a span is of."""

    INTERNAL = "internal"
    SERVER = "server"
    CLIENT = "client"
    CONSUMER = "consumer"


class Noted(Protocol):
    """A span while it lasts."""

    def note(self, attributes: Mapping[str, Value] | None = None, /, **facts: Value) -> None:
        """Add attributes by their names, and facts as `millpond.NAME`."""


class _Nothing(AbstractContextManager["Noted"]):
    """The span of a process without traces."""

    def __exit__(self, *_: object) -> None:
        return None

    def note(self, attributes: Mapping[str, Value] | None = None, /, **facts: Value) -> None:
        """Note nothing."""


_NOTHING: Final = _Nothing()
_SPANS: list[Spans] = []
"""The spans of this process, once they are wanted."""


def is_traced() -> bool:
    """True when this process makes spans."""
    return bool(_SPANS)


def spans() -> Spans | None:
    """The spans of this process; None while it makes none."""
    return _SPANS[0] if _SPANS else None


def span(
    name: str, kind: Kind = Kind.INTERNAL, parent: str = "", attributes: Mapping[str, Value] | None = None, /,
    **facts: Value,
) -> AbstractContextManager[Noted]:  # fmt: skip
    """A span around a block, which all spans of the block are within; an error that leaves the block is its status.

    `parent`: a `traceparent` of W3C's Trace Context, as another process sent it; by default the span that this block is
    within. Attributes have the names that they are given by, facts are `millpond.NAME`.
    """
    if not _SPANS:
        return _NOTHING
    return _SPANS[0].span(name, kind, parent, attributes, facts)


def past_span(name: str, began_ms: int, ended_ms: int, /, **facts: Value) -> None:
    """A span that is over, of another process which told when it worked: within the one that this code is within."""
    if _SPANS:
        _SPANS[0].past(name, (began_ms, ended_ms), facts)


def traceparent() -> str:
    """The span that this code is within, as other processes are told of it; empty without one."""
    return _SPANS[0].traceparent() if _SPANS else ""


def trace_headers() -> dict[str, str]:
    """The header that names the span that this code is within, where there is one."""
    return {TRACEPARENT: caller} if (caller := traceparent()) else {}


def traceparent_in(text: str | None) -> str:
    """A `traceparent` that someone sent, if it is one; else nothing.

    >>> traceparent_in("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")[:5], traceparent_in("00-1")
    ('00-0a', '')
    """
    return text if text and _WRITTEN.fullmatch(text) else ""


def begin_tracing(target: str) -> None:
    """Make spans from now on, where the application has a provider of its own, or else to a target, if there is one.

    Raises: `ExtraMissing` for a target, without the packages of OpenTelemetry.
    """
    if _SPANS or not (target or "opentelemetry.trace" in sys.modules):
        return
    from millpond.tracing.provider import spans_for

    spans = spans_for(target, traceparent_in(os.environ.get(TRACEPARENT.upper())))
    if spans is not None:
        _SPANS.append(spans)


def flush_spans(seconds: float = _FLUSH_SECONDS) -> None:
    """Wait until the spans that have ended are sent, or some seconds have passed: before a process ends."""
    if _SPANS:
        _SPANS[0].flush(seconds)
