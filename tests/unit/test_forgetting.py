"""A pond's memory of parts and streams has an end, the same on every node."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.errors import Unavailable
from millpond.kernel.keys import EVERYTHING
from millpond.kernel.space import Space, Transaction
from millpond.maps.log import queue
from millpond.maps.log.apply import follow, record
from millpond.maps.log.deduplication import remembered
from millpond.maps.log.log import Entry, entries_after
from millpond.maps.log.queue import NUMBER, queued_parts, series_of, settings_of
from millpond.maps.model.catalogue import find_map
from millpond.maps.model.definition import Kind, MapDefinition, Scheme
from millpond.maps.model.keyspaces import ABSORBED, STREAMS
from millpond.stores.memory import MemorySpace

MAX, EVERY = 6, 4


@pytest.fixture(autouse=True, scope="module")
def small_limits() -> Any:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(queue, "PARTS_REMEMBERED_MAX", MAX)
        patched.setattr(queue, "PARTS_FORGOTTEN_EVERY", EVERY)
        yield


def make(space: Space, name: str) -> None:
    definition = MapDefinition(name=name, kind=Kind.STATE, incarnation=f"of-{name}", scheme=Scheme.AUTO)
    space.write(lambda tx: record(tx, "create", (name,), {"definition": definition.to_dict()}, 1))


def load(space: Space, load_id: str, parts: dict[str, str], stream: tuple[str, int] | None = None) -> None:
    """Enter a load of parts, each with the map that it is for; those that are known are left out."""

    def enter(tx: Transaction) -> None:
        fresh = {part: name for part, name in parts.items() if not series_of(name).knows(tx, part)}
        maps = {name: find_map(tx, name) for name in set(fresh.values())}
        body = {
            "load": load_id, "source": "", "rejected": 0, "stream": None if stream is None else list(stream),
            "number": int.from_bytes(tx.get(NUMBER) or b"", "big") + 1, "rows": dict.fromkeys(parts.values(), 1),
            "duplicates": len(parts) - len(fresh),
            "maps": {
                definition.name: {"incarnation": definition.incarnation, "settings": settings_of(definition)}
                for definition in maps.values()
            },
            "parts": [{"id": part, "map": name, "rows": 1, "bytes": 1} for part, name in fresh.items()],
        }  # fmt: skip
        record(tx, "load", tuple(maps), body, 1)

    space.write(enter)


def merge(space: Space, name: str) -> None:
    def leave(tx: Transaction) -> None:
        series_of(name).retire(tx, [part.number for part in queued_parts(tx, name)])

    space.write(leave)


def known(space: Space) -> dict[tuple[Any, ...], int]:
    with space.read() as tx:
        return {ABSORBED.unpack(key): int.from_bytes(value, "big") for key, value in tx.scan(ABSORBED.range())}


def pull(replica: Space, primary: Space, after: int) -> int:
    with primary.read() as tx:
        entries = entries_after(tx, after, 1000)
    for entry in entries:
        enter = partial(_followed, entry)
        try:
            replica.write(enter)
        except Unavailable as error:
            # A part that the primary forgot, and took anew, waits here still: a replica merges, then tries again.
            if error.kind != "part_waits":
                raise
            for name in "mn":
                merge(replica, name)
            replica.write(enter)
    return after + len(entries)


def _followed(entry: Entry, tx: Transaction) -> bool:
    return follow(tx, entry)


STEPS = st.lists(
    st.one_of(
        st.lists(
            st.tuples(st.integers(0, 30), st.sampled_from("mn")), min_size=1, max_size=3, unique_by=lambda p: p[0]
        ),
        st.sampled_from(["merge", "merge there", "pull"]),
    ),
    max_size=40,
)


@pytest.mark.usefixtures("processor")
@given(STEPS)
def test_nodes_remember_the_same_parts_and_no_more_than_they_must(steps: list[Any]) -> None:
    primary, replica = MemorySpace(), MemorySpace()
    for name in "mn":
        make(primary, name)
    numbers: dict[tuple[str, str], int] = {}
    waits: set[tuple[str, str]] = set()
    last = pulled = 0
    for turn, step in enumerate(steps):
        if step == "merge":
            for name in "mn":
                merge(primary, name)
            waits.clear()
        elif step == "merge there":
            pulled = pull(replica, primary, pulled)
            for name in "mn":
                merge(replica, name)
        elif step == "pull":
            pulled = pull(replica, primary, pulled)
        else:
            before = last
            load(primary, f"load-{turn}", {f"part-{number}": name for number, name in step})
            for number, name in step:
                if (name, f"part-{number}") not in numbers:
                    last += 1
                    numbers[name, f"part-{number}"] = last
                    waits.add((name, f"part-{number}"))
            if before // EVERY < last // EVERY:
                numbers = {part: at for part, at in numbers.items() if at > last - MAX or part in waits}
        assert known(primary) == numbers
    for name in "mn":
        merge(primary, name)
    pulled = pull(replica, primary, pulled)
    for name in "mn":
        merge(replica, name)
    # What waited longer on one of them goes when both look next.
    load(primary, "last", {f"more-{number}": "m" for number in range(EVERY)})
    pull(replica, primary, pulled)
    assert known(replica) == known(primary)
    assert len(known(primary)) <= MAX + EVERY


def test_a_part_that_is_forgotten_comes_again_as_new() -> None:
    space = MemorySpace()
    make(space, "m")
    load(space, "first", {"part": "m"})
    merge(space, "m")
    load(space, "again", {"part": "m"})
    assert known(space) == {("m", "part"): 1}, "it is known"
    for number in range(MAX + EVERY):
        load(space, f"load-{number}", {f"other-{number}": "m"})
    merge(space, "m")
    assert ("m", "part") not in known(space)
    load(space, "once more", {"part": "m"})
    assert known(space)["m", "part"] == MAX + EVERY + 2


def test_a_part_that_still_waits_is_never_forgotten() -> None:
    space = MemorySpace()
    make(space, "m")
    for number in range(5 * (MAX + EVERY)):
        load(space, f"load-{number}", {f"part-{number}": "m"})
    assert len(known(space)) == 5 * (MAX + EVERY)


def test_a_stream_is_remembered_once_and_goes_with_its_maps() -> None:
    space, replica = MemorySpace(), MemorySpace()
    for name in "mn":
        make(space, name)
    for epoch in range(20):
        load(space, f"one-{epoch}", {f"one-{epoch}": "m"}, ("one", epoch))
        load(space, f"two-{epoch}", {f"two-{epoch}": "mn"[epoch % 2]}, ("two", epoch))
    load(space, "two-20", {}, ("two", 20))  # an epoch without a row
    pull(replica, space, 0)
    with space.read() as tx:
        assert len(list(tx.scan(STREAMS.range()))) == 2
        known_load = remembered(tx, None, ("one", 7))
        assert known_load is not None
        assert known_load.load == "one-19"
    for name, left in (("m", [("two",)]), ("n", [])):
        incarnation = f"of-{name}"

        def drop(tx: Transaction, name: str = name, incarnation: str = incarnation) -> None:
            record(tx, "drop", (name,), {"incarnation": incarnation}, 1)

        space.write(drop)
        with space.read() as tx:
            assert [STREAMS.unpack(key) for key, _ in tx.scan(STREAMS.range())] == left
    with space.read() as tx:
        head = len(entries_after(tx, 0, 1000))
    pull(replica, space, head - 2)
    with space.read() as ours, replica.read() as theirs:
        assert list(ours.scan(EVERYTHING)) == list(theirs.scan(EVERYTHING))
