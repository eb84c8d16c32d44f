"""The workers that registered lately."""

from __future__ import annotations

import asyncio

import pytest

pytest.importorskip("littlehorse")

from millpond.clock import ManualClock
from millpond.server.workflows import registrations
from millpond.server.workflows.registrations import SILENT_SECONDS, Registration, Registrations, merged


def test_a_worker_that_is_silent_leaves_its_group() -> None:
    clock = ManualClock()
    found = Registrations(clock)
    began = clock.now_ms()
    for worker in ("b", "a"):
        found.note("acme", "greet", worker)
    clock.advance(SILENT_SECONDS * 1000 - 1)
    found.note("acme", "greet", "b")
    found.note("other", "greet", "c")
    b = Registration("b", began, clock.now_ms())
    assert found.of("acme", "greet") == [Registration("a", began, began), b]
    clock.advance(1)
    assert found.of("acme", "greet") == [b]
    clock.advance(SILENT_SECONDS * 1000)
    found.note("acme", "greet", "b")
    assert found.of("acme", "greet") == [Registration("b", clock.now_ms(), clock.now_ms())]


def test_as_many_workers_are_known_as_the_limit_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registrations, "REGISTERED_MAX", 2)
    found = Registrations(ManualClock())
    for worker in ("a", "b", "a", "c"):
        found.note("acme", "greet", worker)
    assert [one.worker for one in found.of("acme", "greet")] == ["a", "c"]
    found.note("acme", "greet", "d" * 1000)
    assert [one.worker for one in found.of("acme", "greet")] == ["a", "c"]


def test_what_processes_know_of_a_worker_is_one_registration() -> None:
    known = [Registration("b", 5, 9), Registration("a", 1, 2), Registration("b", 3, 7)]
    assert merged(known) == [Registration("a", 1, 2), Registration("b", 3, 9)]


def test_a_group_has_the_workers_of_other_processes() -> None:
    clock = ManualClock()
    other = Registrations(clock)

    async def ask(request: bytes) -> list[bytes]:
        return [await other.for_peer(request), b""]

    found = Registrations(clock, ask)
    began = clock.now_ms()
    other.note("acme", "greet", "b")
    other.note("acme", "wave", "c")
    found.note("acme", "greet", "a")
    expected = [Registration("a", began, began), Registration("b", began, began)]
    assert asyncio.run(found.everywhere("acme", "greet")) == expected
    assert asyncio.run(other.everywhere("acme", "greet")) == expected[1:]
