"""The provider of this process, of the application or of a target, and the spans that it makes."""

from __future__ import annotations

import atexit
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from importlib.metadata import version
from typing import Any, Final

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from millpond.errors import MillpondError
from millpond.extras import need
from millpond.kernel.worker import begin_thread
from millpond.tracing.doors import Kind, Value, flush_spans

__all__ = ("Spans", "spans_for")

_LOG = logging.getLogger(__name__)
_KINDS: Final = {kind: trace.SpanKind[kind.name] for kind in Kind}
_PROPAGATOR: Final = TraceContextTextMapPropagator()
_STATED: ContextVar[tuple[int, int] | None] = ContextVar("stated", default=None)
"""The trace and the id of the span that begins next, where others know them already."""


def spans_for(target: str, parent: str) -> Spans | None:
    """The spans of this process; None where its application has no provider, and no target is stated.

    `parent`: the span of another process that spans without one are within.
    """
    try:
        provider = trace.get_tracer_provider()
    except Exception as error:  # of OTEL_PYTHON_TRACER_PROVIDER, whatever it names
        _LOG.warning("no spans are made: %s", error)
        return None
    if isinstance(provider, trace.ProxyTracerProvider):
        if not target:
            return None
        need("opentelemetry.sdk")
        from millpond.tracing.exporters import provider_for

        provider = provider_for(target)
        trace.set_tracer_provider(provider)  # steps of pipelines make spans of their own with it
        atexit.register(flush_spans)
    return Spans(provider, parent)


class _Ids:
    """Ids of spans: those that are stated, else those of the provider."""

    def __init__(self, drawn: Any) -> None:
        self._drawn = drawn

    def generate_trace_id(self) -> int:
        """The trace of a span without a parent."""
        stated = _STATED.get()
        return int(self._drawn.generate_trace_id()) if stated is None else stated[0]

    def generate_span_id(self) -> int:
        """The id of a span."""
        stated = _STATED.get()
        return int(self._drawn.generate_span_id()) if stated is None else stated[1]

    def is_trace_id_random(self) -> bool:
        """True when a trace that begins now has an id that was drawn."""
        return _STATED.get() is None


class _Noting:
    """A span while it lasts."""

    def __init__(self, span: trace.Span) -> None:
        self._span = span

    def note(self, attributes: Mapping[str, Value] | None = None, /, **facts: Value) -> None:
        """As `Noted`."""
        self._span.set_attributes(_named(attributes, facts))


class Spans:
    """The spans of this process. Threads may share it."""

    def __init__(self, provider: trace.TracerProvider, parent: str) -> None:
        if hasattr(provider, "id_generator"):
            provider.id_generator = _Ids(provider.id_generator)
        self._provider = provider
        self._tracer = provider.get_tracer("millpond", version("millpond"))
        self._outer = _context(parent)

    @contextmanager
    def span(
        self, name: str, kind: Kind, parent: str, attributes: Mapping[str, Value] | None, facts: Mapping[str, Value]
    ) -> Iterator[_Noting]:
        """As `doors.span`."""
        context = _context(parent) if parent else self._here()
        own = self._tracer.start_span(name, context, _KINDS[kind], _named(attributes, facts))
        with trace.use_span(own, end_on_exit=True, record_exception=False, set_status_on_exception=False):
            try:
                yield _Noting(own)
            except BaseException as error:
                words = error.kind if isinstance(error, MillpondError) else type(error).__name__
                words = getattr(error, "exception_name", words)  # of a task, as its workflow knows it
                own.set_attribute("error.type", words)
                own.set_status(trace.StatusCode.ERROR, words)
                raise

    def past(
        self, name: str, times_ms: tuple[int, int], facts: Mapping[str, Value], *, ids: tuple[int, int] | None = None,
        parent: str = "", error: str = "",
    ) -> None:  # fmt: skip
        """A span that is over: within the one that this code is within, or with the `ids` of its trace and itself that
        others know it by, and the `parent` of another process. `error` is its kind where it failed."""
        began, ended = (ms * 1_000_000 for ms in times_ms)
        token = _STATED.set(ids)
        try:
            context = self._here() if ids is None else _context(parent)
            own = self._tracer.start_span(name, context, attributes=_named(None, facts), start_time=began)
        finally:
            _STATED.reset(token)
        if error:
            own.set_attribute("error.type", error)
            own.set_status(trace.StatusCode.ERROR, error)
        own.end(ended)

    def is_sampled(self, trace_id: int) -> bool:
        """True when the spans of a trace that nobody began are kept."""
        sampler = getattr(self._provider, "sampler", None)
        return sampler is None or bool(sampler.should_sample(None, trace_id, "").decision.is_sampled())

    def traceparent(self) -> str:
        """As `doors.traceparent`."""
        carrier: dict[str, str] = {}
        _PROPAGATOR.inject(carrier, self._here())
        return carrier.get("traceparent", "")

    def flush(self, seconds: float) -> None:
        """As `doors.flush_spans`."""
        flush = getattr(self._provider, "force_flush", None)
        if flush is not None:  # it looks at no limit of its own while a collector does not answer
            begin_thread("spans", flush).join(seconds)

    def _here(self) -> Context | None:
        return None if trace.get_current_span().get_span_context().is_valid else self._outer


def _context(parent: str) -> Context:
    return _PROPAGATOR.extract({"traceparent": parent}, Context())


def _named(attributes: Mapping[str, Value] | None, facts: Mapping[str, Value]) -> dict[str, Value]:
    return {**(attributes or {}), **{f"millpond.{name}": value for name, value in facts.items()}}
