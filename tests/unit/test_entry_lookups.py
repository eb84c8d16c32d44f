"""Lookups of entries that share a journey: what they find is what a transaction of that moment would find."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from millpond.clock import ManualClock
from millpond.errors import MillpondError, NotFound
from millpond.kernel.keys import KeyRange
from millpond.kernel.space import WouldBlock
from millpond.stores.memory import MemorySpace
from millpond.stores.objects import MemoryObjects
from millpond.versions.entry_lookups import EntryLookups, EntryName
from millpond.versions.objects.entries import Entry
from millpond.versions.repositories import Repositories
from millpond.versions.repository import Repository


class FarSpace(MemorySpace):
    """A space that reads together, and counts how often it does; `last_change` is none of its promises."""

    journeys = 0
    before: Callable[[], object] | None = None

    def read_together(
        self, keys: Sequence[bytes], ranges: Sequence[KeyRange]
    ) -> tuple[dict[bytes, bytes], list[bytes | None]]:
        self.journeys += 1
        before, self.before = self.before, None
        if before is not None:
            before()
        with self.read() as tx:
            rows = {key: value for key, value in zip(keys, tx.get_many(keys), strict=True) if value is not None}
            return rows, [next(tx.keys(keys, reverse=True), None) for keys in ranges]


@pytest.fixture
def space() -> FarSpace:
    return FarSpace()


@pytest.fixture
def repositories(space: FarSpace) -> Repositories:
    stores: dict[str, MemoryObjects] = {}
    return Repositories(space, ManualClock(0), lambda place: stores.setdefault(place, MemoryObjects()))


@pytest.fixture
def lookups(repositories: Repositories) -> EntryLookups:
    assert repositories.lookups is not None
    return repositories.lookups


def shown(found: object) -> object:
    """An entry, or the kind of an error."""
    if isinstance(found, tuple):
        assert isinstance(found[1], Entry)
        return found[1]
    assert isinstance(found, MillpondError)
    return found.kind


def in_thread(lookups: EntryLookups, name: EntryName) -> object:
    try:
        return shown(lookups.find(name))
    except MillpondError as error:
        return error.kind


def by_reference(repositories: Repositories, name: EntryName) -> object:
    try:
        return repositories.get(name.repository).ref(name.ref).stat(name.path)
    except MillpondError as error:
        return error.kind


REFS = ("main", "main@", "side", "v1", "main~1", "none")
PATHS = ("a", "b/1", "b/2", "c", "é")


def act(random: np.random.Generator, repository: Repository) -> None:
    branch = repository.branch(str(random.choice(["main", "side"])))
    path = str(random.choice(PATHS))
    match random.integers(8):
        case 0 | 1 | 2:
            branch.put(path, bytes(int(random.integers(9))))
        case 3:
            branch.delete(path)
        case 4:
            branch.staging.delete_prefix("b/")
        case 5:
            branch.reset()
        case _:
            branch.commit("more", allow_empty=True)


@pytest.mark.parametrize("seed", range(4))
def test_what_is_found_together_is_what_a_transaction_finds(
    repositories: Repositories, lookups: EntryLookups, seed: int
) -> None:
    random, repository = np.random.default_rng(seed), repositories.create("flights")
    repository.create_branch("side", "main")
    repository.create_tag("v1", "main")
    names = [EntryName("flights", ref, path) for ref in REFS for path in PATHS]
    together = 0
    for _ in range(40):
        act(random, repository)
        expected = [by_reference(repositories, name) for name in names]
        for name, found, truth in zip(names, lookups.find_all(names), expected, strict=True):
            if isinstance(found, WouldBlock):
                assert in_thread(lookups, name) == truth
            else:
                assert shown(found) == truth
                together += 1
    assert together > 40 * len(names) / 4


def test_a_state_that_is_remembered_costs_one_journey_for_all(
    space: FarSpace, repositories: Repositories, lookups: EntryLookups
) -> None:
    main = repositories.create("flights").branch("main")
    for path in PATHS:
        main.put(path, b"1")
    names = [EntryName("flights", "main", path) for path in (*PATHS, "none")]
    assert {shown(found) for found in lookups.find_all(names)} == {"would_block"}
    assert space.journeys == 0
    assert in_thread(lookups, names[-1]) == "entry_not_found"
    found = [shown(found) for found in lookups.find_all(names)]
    assert space.journeys == 1
    assert found == [*(main.stat(path) for path in PATHS), "entry_not_found"]
    main.commit("all")
    assert shown(lookups.find_all(names)[0]) == "would_block"
    lookups.find(names[0])
    assert [shown(entry) for entry in lookups.find_all(names)] == found, "of ranges that are held"


def test_a_write_that_was_committed_before_the_journey_is_seen(
    space: FarSpace, repositories: Repositories, lookups: EntryLookups
) -> None:
    main = repositories.create("flights").branch("main")
    main.put("a", b"1")
    name = EntryName("flights", "main", "a")
    lookups.find(name)
    space.before = lambda: main.put("a", b"22")
    [found] = lookups.find_all([name])
    assert isinstance(found, tuple)
    assert found[1].size == 2
    space.before = lambda: main.delete("a")
    assert shown(lookups.find_all([name])[0]) == "entry_not_found"
    space.before = lambda: main.commit("empty", allow_empty=True)
    assert shown(lookups.find_all([name])[0]) == "would_block", "the branch lists other tokens now"


def test_a_repository_that_was_made_anew_is_another(repositories: Repositories, lookups: EntryLookups) -> None:
    name = EntryName("flights", "main", "a")
    repositories.create("flights").branch("main").put("a", b"1")
    lookups.find(name)
    repositories.delete("flights")
    assert shown(lookups.find_all([name])[0]) == "would_block"
    with pytest.raises(NotFound, match="repository not found"):
        lookups.find(name)
    repositories.create("flights", "local://another")
    assert shown(lookups.find_all([name])[0]) == "would_block"
    assert in_thread(lookups, name) == "entry_not_found"
