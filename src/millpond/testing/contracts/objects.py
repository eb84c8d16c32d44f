"""The promises of every store of objects, as tests: subclass `ObjectsContract` in a module that pytest collects.

A store's suite supplies an `objects` fixture, empty for each test, and two hooks that go round the API.

    class TestMine(ObjectsContract):
        @pytest.fixture
        def objects(self, tmp_path): ...
        def look_behind(self, objects, name): ...
        def put_behind(self, objects, name, data): ...
"""

from __future__ import annotations

import pickle
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Barrier
from typing import Any, cast

import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from millpond.errors import Conflict, Invalid, NotFound
from millpond.stores.objects import Level, ObjectInfo, ObjectStore, put_all

__all__ = ("ObjectsContract", "ObjectsMachine")

WRITERS = 6
ROUNDS = 5
BAD_NAMES = ("", "/a", "a/", "a//b", "../a", "a/../b", ".hidden", "a/.b", "a b", "ä", "a\n", "C:\\x")
# No name is a folder of another. Their order is not that of their parts: `-` and `.` come before `/`.
NAMES = ("a/b", "a-b", "a.b", "a/b-c/d", "a0", "z/y/x", "z/y/w", "B", "_")
SPANS = (
    (2, 5), (8, 50), (10, 50), (50, 60), (3, 3), (5, 2), (0, None), (7, None), (10, None), (-3, None), (-30, None),
)  # fmt: skip
FOLDERS = ("", "a", "z", "z/y", "a/b-c", "nothing")
PREFIXES = ("", "a", "a/", "a/b", "z/y/", "B", "zz")


class ObjectsContract(ABC):
    """The promises of `millpond.stores.objects.protocol`, one test each."""

    swaps_race = True
    """False for a server that does not keep S3's promise about `If-Match` of writers at once."""
    examples_max = 20

    @abstractmethod
    def look_behind(self, objects: ObjectStore, name: str) -> bytes | None:
        """The bytes that the place holds under a name, read behind the API's back."""

    @abstractmethod
    def put_behind(self, objects: ObjectStore, name: str, data: bytes) -> None:
        """Store bytes under a name, behind the API's back."""

    # --- one object

    def test_a_put_object_is_stored_and_a_stored_one_read(self, objects: ObjectStore) -> None:
        objects.put("a/b.txt", b"one")
        assert self.look_behind(objects, "a/b.txt") == b"one"
        self.put_behind(objects, "c/d", b"two")
        assert objects.get("c/d").to_pybytes() == b"two"
        assert (objects.size("c/d"), objects.exists("c/d"), objects.exists("c/e")) == (3, True, False)

    @pytest.mark.parametrize("data", [b"", b"\xff\x80\x00", memoryview(b"view"), pa.py_buffer(b"arrow")])
    def test_bytes_of_any_sort_are_stored(self, objects: ObjectStore, data: bytes) -> None:
        objects.put("a", b"before")
        objects.put("a", data)
        assert objects.get("a").to_pybytes() == bytes(data)

    @pytest.mark.parametrize("span", SPANS)
    def test_a_range_is_what_a_slice_is(self, objects: ObjectStore, span: tuple[int, int | None]) -> None:
        objects.put("a", b"0123456789")
        objects.put("empty", b"")
        assert objects.get_range("a", *span) == b"0123456789"[slice(*span)]
        assert bytes(objects.get_range("empty", *span)) == b""

    def test_a_missing_object_is_named(self, objects: ObjectStore) -> None:
        acts: list[Callable[[str], object]] = [
            objects.get, objects.get_tagged, objects.size, lambda name: objects.get_range(name, 0, 1),
            lambda name: objects.get_range(name, 3, 3), lambda name: objects.rename(name, "other"),
        ]  # fmt: skip
        for act in acts:
            with pytest.raises(NotFound, match="object=x/missing") as caught:
                act("x/missing")
            assert caught.value.kind == "object_not_found"
        objects.delete("x/missing", "x/other")
        assert list(objects.list()) == []

    @pytest.mark.parametrize("name", BAD_NAMES)
    def test_no_name_leaves_its_place(self, objects: ObjectStore, name: str) -> None:
        objects.put("a", b"")
        acts: list[Callable[[], object]] = [
            lambda: objects.put(name, b""), lambda: objects.put_stream(name, [b""]),
            lambda: objects.swap(name, b"", None), lambda: objects.get(name), lambda: objects.get_tagged(name),
            lambda: objects.delete("a", name), lambda: objects.rename("a", name), lambda: objects.local_path(name),
        ]  # fmt: skip
        for act in acts:
            with pytest.raises(Invalid) as caught:
                act()
            assert caught.value.kind == "object_name"

    def test_an_object_is_renamed_whole_over_another(self, objects: ObjectStore) -> None:
        objects.put("ranges/a", b"bad")
        objects.put("quarantine/a", b"older")
        objects.rename("ranges/a", "quarantine/a")
        assert [info.name for info in objects.list()] == ["quarantine/a"]
        assert objects.get("quarantine/a").to_pybytes() == b"bad"

    def test_it_travels_to_another_process(self, objects: ObjectStore) -> None:
        objects.put("a", b"1")
        again = pickle.loads(pickle.dumps(objects))
        assert type(again) is type(objects)
        if objects.where != "memory://":  # what memory holds stays behind
            assert again.get("a").to_pybytes() == b"1"

    # --- many objects

    def test_many_are_deleted_at_once(self, objects: ObjectStore) -> None:
        for number in range(30):
            objects.put(f"a/{number:03d}", b"1")
        objects.delete(*(f"a/{number:03d}" for number in range(0, 40, 2)))
        assert [info.name for info in objects.list()] == [f"a/{number:03d}" for number in range(1, 30, 2)]
        objects.delete()

    def test_several_are_put_at_once(self, objects: ObjectStore) -> None:
        stored = {f"a/{number % 3}/{number:02}": bytes([number]) * number for number in range(20)}
        objects.put("a/0/00", b"old")
        put_all(objects, [])
        put_all(objects, list(stored.items()))
        assert {name: bytes(objects.get(name)) for name in stored} == stored
        assert [info.name for info in objects.list()] == sorted(stored)

    def test_listings_of_several_pages_ascend(self, objects: ObjectStore) -> None:
        names = [f"many/{number:04d}" for number in range(1005)]
        for name in names:
            self.put_behind(objects, name, b"")
        assert [info.name for info in objects.list("many")] == names
        assert [info.name for info in objects.list(after="many/0999")] == names[1000:]
        assert [info.name for info in objects.list(prefix="many/01")] == names[100:200]
        assert objects.level() == Level((), ("many/",))
        assert len(objects.level("many").objects) == len(names)

    # --- streams

    @pytest.mark.parametrize("sizes", [[], [0], [1, 0, 5], [5 << 20, 1], [3 << 20] * 7])
    def test_a_stream_is_stored_whole(self, objects: ObjectStore, sizes: list[int]) -> None:
        objects.put("a", b"before")
        chunks = [bytes([number]) * size for number, size in enumerate(sizes)]
        objects.put_stream("a", iter(chunks))
        assert objects.size("a") == sum(sizes)
        assert objects.get("a").to_pybytes() == b"".join(chunks)

    @pytest.mark.parametrize("error", [ValueError("mine"), OSError("mine"), NotFound("mine", kind="mine")])
    def test_a_stream_that_fails_leaves_the_old(self, objects: ObjectStore, error: Exception) -> None:
        def failing() -> Iterator[bytes]:
            yield bytes(9 << 20)
            raise error

        objects.put("a", b"before")
        for name in ("a", "new"):
            with pytest.raises(type(error), match="mine"):
                objects.put_stream(name, failing())
        assert [(info.name, info.size) for info in objects.list()] == [("a", 6)]

    # --- swaps

    def test_a_swap_needs_what_it_expects(self, objects: ObjectStore) -> None:
        first = objects.swap("head", b"1", None)
        assert objects.get_tagged("head").tag == first
        second = objects.swap("head", b"2", first)
        losing: list[tuple[str, str | None]] = [("head", None), ("head", first), ("missing", second)]
        for name, expected in losing:
            with pytest.raises(Conflict, match=f"object={name}") as caught:
                objects.swap(name, b"3", expected)
            assert caught.value.kind == "object_changed"
        assert objects.get("head").to_pybytes() == b"2"
        assert not objects.exists("missing")

    def test_one_of_many_puts_what_is_absent(self, objects: ObjectStore) -> None:
        for number in range(ROUNDS):
            won = _at_once(partial(_swap, objects, f"new/{number}", "", None))
            assert len(won) == 1
            assert objects.get(f"new/{number}").to_pybytes() == b" %d" % won[0]

    def test_one_of_many_swaps(self, objects: ObjectStore) -> None:
        tag = objects.swap("head", b"first", None)
        for number in range(ROUNDS):
            if not self.swaps_race:
                tag = objects.swap("head", b"%d" % number, tag)
                continue
            won = _at_once(partial(_swap, objects, "head", number, tag))
            assert len(won) == 1
            tagged = objects.get_tagged("head")
            assert tagged.data.to_pybytes() == b"%d %d" % (number, won[0])
            tag = tagged.tag

    def test_counters_of_many_lose_nothing(self, objects: ObjectStore) -> None:
        """The loop every user of `swap` writes; where races are not kept, by one writer."""
        objects.swap("count", b"0", None)

        def add(_: int) -> None:
            for _round in range(ROUNDS):
                while True:
                    content = objects.get_tagged("count")
                    try:
                        objects.swap("count", b"%d" % (int(content.data.to_pybytes()) + 1), content.tag)
                        break
                    except Conflict:
                        continue

        writers = 3 if self.swaps_race else 1
        with ThreadPoolExecutor(writers) as threads:
            list(threads.map(add, range(writers)))
        assert objects.get("count").to_pybytes() == b"%d" % (writers * ROUNDS)

    # --- all of it

    def test_it_does_what_a_dictionary_does(self, objects: ObjectStore) -> None:
        def machine() -> ObjectsMachine:
            objects.delete(*(info.name for info in objects.list()))
            return ObjectsMachine(objects)

        run_state_machine_as_test(
            cast(Any, machine), settings=settings(max_examples=self.examples_max, stateful_step_count=15, deadline=None)
        )


class ObjectsMachine(RuleBasedStateMachine):
    """A store beside a dictionary; after each act both hold and list the same."""

    def __init__(self, objects: ObjectStore) -> None:
        super().__init__()
        self.objects = objects
        self.model: dict[str, bytes] = {}

    names = st.sampled_from(NAMES)
    bodies = st.binary(max_size=20)

    @initialize()
    def begin(self) -> None:
        """Both are empty."""
        assert list(self.objects.list()) == []

    @rule(name=names, body=bodies)
    def put(self, name: str, body: bytes) -> None:
        """Store over what is there."""
        self.objects.put(name, body)
        self.model[name] = body

    @rule(name=names, bodies=st.lists(bodies, max_size=3))
    def put_stream(self, name: str, bodies: list[bytes]) -> None:
        """Store chunk by chunk."""
        self.objects.put_stream(name, iter(bodies))
        self.model[name] = b"".join(bodies)

    @rule(name=names, body=bodies, stored=st.booleans())
    def swap(self, name: str, body: bytes, stored: bool) -> None:
        """Swap by the tag that is there, or by none: right only where nothing is."""
        content = self.objects.get_tagged(name) if name in self.model else None
        expected = content.tag if content is not None and stored else None
        if content is not None and not stored:
            with pytest.raises(Conflict):
                self.objects.swap(name, body, expected)
        else:
            tag = self.objects.swap(name, body, expected)
            self.model[name] = body
            assert self.objects.get_tagged(name).tag == tag

    @rule(names=st.lists(names, max_size=3))
    def delete(self, names: list[str]) -> None:
        """Remove several, some of which are not there."""
        self.objects.delete(*names)
        for name in names:
            self.model.pop(name, None)

    @rule(name=names, other=names)
    def rename(self, name: str, other: str) -> None:
        """Move what is there."""
        if name in self.model and name != other:
            self.objects.rename(name, other)
            self.model[other] = self.model.pop(name)

    @rule(name=names, start=st.integers(-25, 25), length=st.none() | st.integers(-2, 25))
    def get_range(self, name: str, start: int, length: int | None) -> None:
        """A range is a slice."""
        if name in self.model:
            stop = None if length is None or start < 0 else start + length
            expected = self.model[name][start:stop] if stop is None or stop > start else b""
            assert self.objects.get_range(name, start, stop) == expected

    @rule(under=st.sampled_from(FOLDERS), prefix=st.sampled_from(PREFIXES), after=st.sampled_from(("", *NAMES, "a/")))
    def lists(self, under: str, prefix: str, after: str) -> None:
        """Listings filter and ascend."""
        after = after.rstrip("/")
        listing = [(info.name, info.size) for info in self.objects.list(under, prefix=prefix, after=after)]
        assert listing == [
            (name, len(self.model[name])) for name in sorted(self.model)
            if (not under or name.startswith(f"{under}/")) and name.startswith(prefix) and name > after
        ]  # fmt: skip

    @rule(folder=st.sampled_from(FOLDERS))
    def levels(self, folder: str) -> None:
        """A level has what lies right in a folder, and names the folders there."""
        start = f"{folder}/" if folder else ""
        inside = [name for name in sorted(self.model) if name.startswith(start)]
        here = [name for name in inside if "/" not in name[len(start) :]]
        folders = {f"{start}{name[len(start) :].partition('/')[0]}/" for name in inside if name not in here}
        objects = tuple(ObjectInfo(name, len(self.model[name])) for name in here)
        assert self.objects.level(folder) == Level(objects, tuple(sorted(folders)))

    @invariant()
    def same(self) -> None:
        """All objects are there, as they were put."""
        assert {info.name: self.objects.get(info.name).to_pybytes() for info in self.objects.list()} == self.model


def _swap(objects: ObjectStore, name: str, word: object, expected: str | None, writer: int) -> None:
    """Swap as one of several writers, with bytes that name it."""
    objects.swap(name, f"{word} {writer}".encode(), expected)


def _at_once(act: Callable[[int], object]) -> list[int]:
    """The writers that did not lose, of several who begin together."""
    together = Barrier(WRITERS)

    def begun(writer: int) -> bool:
        together.wait()
        try:
            act(writer)
        except Conflict:
            return False
        return True

    with ThreadPoolExecutor(WRITERS) as threads:
        return [writer for writer, won in enumerate(threads.map(begun, range(WRITERS))) if won]
