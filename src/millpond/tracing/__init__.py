"""Traces: spans of OpenTelemetry, from who asks to the bytes that answer.

    command ─▶ load ─▶ commit           request of a client ─▶ of the node ─▶ of its primary
    request ─▶ run ─▶ its tasks ─▶ what they load, ask and send

| module | holds |
|---|---|
| `doors` | what work calls |
| `provider` | the provider of this process, and the spans that it makes |
| `exporters` | the target of spans: a collector, or a file |
| `jobs` | jobs that are reported, as spans |
| `runs` | the trace of a run of a workflow, by which its tasks find each other |

Invariants:
* without a target, and without a provider of the application, nothing of OpenTelemetry is imported, and a span costs
  one call that does nothing;
* work never fails for its trace and waits for no collector: what cannot be sent is dropped;
* a span has names, counts and kinds of errors: no key, no value, no secret, no text of an error.
"""

from millpond.tracing.doors import (
    TRACEPARENT,
    Kind,
    Noted,
    begin_tracing,
    flush_spans,
    is_traced,
    past_span,
    span,
    trace_headers,
    traceparent,
    traceparent_in,
)

__all__ = (
    "TRACEPARENT", "Kind", "Noted", "begin_tracing", "flush_spans", "is_traced", "past_span", "span",
    "trace_headers", "traceparent", "traceparent_in",
)  # fmt: skip
