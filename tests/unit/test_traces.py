"""Traces within one process: what a span says, and the trace that the messages of a run carry."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from littlehorse.model import RunWfRequest, ScheduledTask, TaskRun, WfRun
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from millpond.errors import Invalid
from millpond.tracing import Kind, is_traced, past_span, span, traceparent, traceparent_in
from millpond.tracing.doors import _SPANS
from millpond.tracing.provider import Spans
from millpond.tracing.runs import end_run, run_parent
from millpond.workflows.engine.trace_context import carried, carry, carry_on

CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
TRACEPARENTS = st.from_regex(r"00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}", fullmatch=True)


@pytest.fixture
def seen() -> Iterator[InMemorySpanExporter]:
    """The spans of this process, which are those of nobody else."""
    exporter, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    _SPANS.append(Spans(provider, ""))
    yield exporter
    _SPANS.clear()


def test_a_process_without_traces_makes_one_object_for_all() -> None:
    with span("load", Kind.SERVER, CALLER, map="m") as own:
        own.note(rows=1)
    past_span("task", 1, 2)
    assert not is_traced() and span("a") is span("b") and not traceparent() and not run_parent("r", CALLER)


def test_a_span_says_the_kind_of_its_error_and_nothing_of_its_words(seen: InMemorySpanExporter) -> None:
    with pytest.raises(Invalid), span("outer"), span("inner", map="m"):
        raise Invalid("the password is s3cret", kind="load_refused", value="s3cret")
    with pytest.raises(ValueError, match="s3cret"), span("other"):
        raise ValueError("s3cret")
    inner, outer, other = seen.get_finished_spans()
    assert inner.parent is not None and outer.context is not None and inner.parent.span_id == outer.context.span_id
    assert [own.status.description for own in (inner, outer, other)] == ["load_refused", "load_refused", "ValueError"]
    assert not any("s3cret" in own.to_json() for own in (inner, outer, other))


def test_a_task_is_within_its_run_whichever_ends_first(seen: InMemorySpanExporter) -> None:
    with span("load", Kind.CONSUMER, run_parent("nightly-1", CALLER)):
        past_span("task", 1_000, 2_000, partition=3)
    end_run("nightly-1", CALLER, 1_000, 5_000, "ERROR", workflow="nightly")
    task, load, run = seen.get_finished_spans()
    assert run.context is not None and load.parent is not None and task.parent is not None and run.parent is not None
    assert f"{run.context.trace_id:032x}" == CALLER[3:35] and f"{run.parent.span_id:016x}" == CALLER[36:52]
    assert load.parent.span_id == run.context.span_id and run.status.description == "ERROR"
    assert (run.start_time, run.end_time, task.end_time) == (1_000_000_000, 5_000_000_000, 2_000_000_000)


def test_a_run_that_nobody_asked_for_has_a_trace_that_follows_from_its_name(seen: InMemorySpanExporter) -> None:
    assert run_parent("a", "") == run_parent("a", "") != run_parent("b", "")
    end_run("a", "", 1, 2, "")
    [run] = seen.get_finished_spans()
    assert run.context is not None and run.parent is None
    assert run_parent("a", "") == f"00-{run.context.trace_id:032x}-{run.context.span_id:016x}-01"


@given(TRACEPARENTS)
def test_what_a_request_carries_comes_to_the_task(text: str) -> None:
    request, run, task, scheduled = RunWfRequest(id="a"), WfRun(), TaskRun(), ScheduledTask()
    carry(request, text)
    for source, target in ((request, run), (run, task), (task, scheduled)):
        carry_on(type(source).FromString(source.SerializeToString(deterministic=True)), target)
    assert carried(scheduled) == text and request.id == "a"


@given(st.binary(max_size=80))
def test_whatever_bytes_a_client_adds_a_caller_or_nothing_is_carried(data: bytes) -> None:
    request = RunWfRequest()
    request.MergeFromString(bytes((0xD2, 0xA5, 0x24, len(data))) + data)
    text = carried(request)
    assert text == (data.decode() if traceparent_in(text) or text else "")
    assert not text or len(text) == len(CALLER)


@given(st.text(max_size=60))
def test_a_header_that_is_no_caller_is_none(text: str) -> None:
    assert traceparent_in(text) in ("", text) and traceparent_in(f"{CALLER}{text or ' '}") == ""
