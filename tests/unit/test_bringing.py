"""Files that are brought a few at a time: their order, the end at the first that fails, and what is counted."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from millpond.errors import NotFound
from millpond.stores.objects import FolderObjects, MemoryObjects
from millpond.stores.objects.bringing import CountedObjects, bring, object_chunks


@pytest.mark.parametrize("threads", [1, 4])
def test_results_come_in_the_order_of_the_items(threads: int) -> None:
    began = threading.Event()

    def act(number: int) -> int:
        if number == 0 and threads > 1:
            assert began.wait(10), "the next ones go on meanwhile"
        began.set()
        return -number

    assert list(bring(act, range(1, 40), threads)) == [-number for number in range(1, 40)]
    if threads > 1:
        began.clear()
        assert list(bring(act, range(40), threads)) == [-number for number in range(40)]


def test_after_the_first_that_fails_none_begins() -> None:
    begun: list[int] = []
    failed = threading.Event()

    def act(number: int) -> int:
        begun.append(number)
        if number == 0:
            assert failed.wait(10)
        if number == 1:
            failed.set()
            raise NotFound("it is gone", kind="object_not_found")
        return number

    results = bring(act, range(1000), 2)
    with pytest.raises(NotFound):
        list(results)
    assert len(begun) < 10


def test_no_more_items_are_taken_than_may_wait() -> None:
    taken: list[int] = []

    def items() -> Iterator[int]:
        for number in range(1000):
            taken.append(number)
            yield number

    results = bring(abs, items(), 2)
    next(results)
    assert len(taken) <= 17
    results.close()  # type: ignore[attr-defined]


def test_a_counted_place_calls_with_each_file(tmp_path: Path) -> None:
    put: dict[str, int] = {}
    place = CountedObjects(FolderObjects(tmp_path), put.__setitem__)
    place.put("a/b", b"12345")
    place.put("c", memoryview(b"1"))
    assert (put, place.get("a/b").to_pybytes()) == ({"a/b": 5, "c": 1}, b"12345")


def test_the_chunks_of_an_object() -> None:
    place = MemoryObjects()
    place.put("large", bytes(20 << 20))
    place.put("empty", b"")
    assert [len(chunk) for chunk in object_chunks(place, "large")] == [8 << 20, 8 << 20, 4 << 20]
    assert list(object_chunks(place, "empty")) == []
    with pytest.raises(NotFound):
        object_chunks(place, "none")
