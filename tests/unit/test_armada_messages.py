"""Stored events as messages for Armada's clients: what has no form there is counted."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from millpond.events.event import Event
from millpond.events.names import StreamName
from millpond.server.armada.messages import LEFT_OUT, api_event

STREAM = StreamName("etl", "night")


def left_out(what: str) -> float:
    return LEFT_OUT.labels(what)._value.get()


@pytest.mark.parametrize("payload", [b"{", b"[1]" * 3, b'{"reason": 7}', b'{"reason": {}}', b"\xff\xff"])
def test_a_payload_in_no_form_is_left_out_and_counted(payload: bytes) -> None:
    before = left_out("payload")
    message = api_event(STREAM, Event(1, 1_000, payload, "failed", {"job_id": "j"}))
    assert message is not None and (message.failed.job_id, message.failed.reason) == ("j", "")
    assert left_out("payload") == before + 1


def test_an_event_of_an_unknown_kind_is_left_out_and_counted() -> None:
    before = left_out("event")
    assert api_event(STREAM, Event(1, 1_000, b"", "exploded", {})) is None
    assert left_out("event") == before + 1


def test_what_has_a_form_is_not_counted() -> None:
    before = left_out("event"), left_out("payload")
    message = api_event(STREAM, Event(1, 1_000, b'{"reason": "why", "more": 1}', "failed", {}))
    assert message is not None and message.failed.reason == "why"
    assert before == (left_out("event"), left_out("payload"))


def test_the_counts_are_on_the_page_of_metrics() -> None:
    registry = CollectorRegistry()
    registry.register(LEFT_OUT)
    left_out("event")
    assert b'millpond_events_left_out_total{what="event"}' in generate_latest(registry)
