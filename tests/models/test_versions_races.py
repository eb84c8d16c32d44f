"""Many at one branch: committers, writers, compactors and readers; and deaths at every step of their acts."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest

from millpond.clock import Clock, ManualClock, SystemClock
from millpond.errors import Invalid, MillpondError, NotFound
from millpond.kernel.space import Space
from millpond.kernel.steps import listening
from millpond.ranges import Boundaries
from millpond.stores.memory import MemorySpace
from millpond.stores.objects import MemoryObjects, ObjectStore
from millpond.testing.faulty_space import FaultySpace
from millpond.versions.branch import Branch
from millpond.versions.collect import GRACE_MS, active_commits, collect
from millpond.versions.compaction import Compacted
from millpond.versions.graph.commits import Commit
from millpond.versions.imports.locations import Location, PrefixLocation
from millpond.versions.keyspaces import CLEARED, DROPPED, STAGED
from millpond.versions.objects.entries import Entry
from millpond.versions.repositories import Repositories
from millpond.versions.repository import Repository
from millpond.versions.repository_context import CompactionRules, Retention
from millpond.versions.staging import bulk
from millpond.versions.staging.group_commit import StagedEntry, put_together
from tests.rings.sampling import drawn
from tests.version_spaces import SPACES, open_space

SMALL = Boundaries(rows_min=2, rows_max=6, bits=1)


def opened(space: Space, places: dict[str, ObjectStore], *, clock: Clock | None = None) -> Repositories:
    def place(where: str) -> ObjectStore:
        return places.setdefault(where, MemoryObjects())

    return Repositories(space, clock or SystemClock(), place, boundaries=SMALL)


@pytest.fixture(params=SPACES)
def space(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Space]:
    space = open_space(request.param, tmp_path)
    yield space
    space.close()


def entry(path: str, content: str = "1") -> Entry:
    return Entry(path, f"data/{content}", len(content), 0, content)


def listed(repository: Repository, ref: str) -> list[str]:
    return [found.path for found in repository.ref(ref).list(amount=5000).results]


def in_threads(*acts: Callable[[], None]) -> None:
    failed: list[BaseException] = []

    def run(act: Callable[[], None]) -> None:
        try:
            act()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=(act,)) for act in acts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not failed, failed


@pytest.mark.usefixtures("processor")
def test_racing_commits_lose_nothing_and_none_fails(space: Space) -> None:
    places: dict[str, ObjectStore] = {}
    # two of them, as two processes would have: each with turns of its own
    repositories = [opened(space, places) for _ in range(2)]
    repository = repositories[0].create("races")
    done = threading.Event()

    def committer(number: int) -> Callable[[], None]:
        branch = repositories[number % 2].get("races").branch("main")

        def act() -> None:
            for turn in range(8):
                branch.staging.link(entry(f"{number}/{turn}"))
                with suppress(Invalid):  # another commit took it
                    branch.commit(f"{number}/{turn}")
                # The commit of another thread that took it may still be on its way.
                due = SystemClock().monotonic() + 60
                while f"{number}/{turn}" not in listed(repository, "main@"):
                    assert SystemClock().monotonic() < due, f"{number}/{turn} is in no commit"
                    done.wait(0.01)

        return act

    def compactor() -> None:
        while not done.is_set():
            repositories[1].get("races").branch("main").staging.compact()
            done.wait(0.01)

    def reader() -> None:
        seen: set[str] = set()
        while not done.is_set():
            now = set(listed(repository, "main"))
            assert seen <= now, "what was there stays"
            seen = now

    others = [threading.Thread(target=act) for act in (compactor, reader)]
    for other in others:
        other.start()
    try:
        in_threads(*(committer(number) for number in range(4)))
    finally:
        done.set()
        for other in others:
            other.join()
    expected = sorted(f"{number}/{turn}" for number in range(4) for turn in range(8))
    assert listed(repository, "main@") == expected
    assert listed(repository, "main") == expected


def test_a_commit_finds_what_a_compaction_took_while_it_was_read() -> None:
    repository = prepared(opened(MemorySpace(), {}))
    main = repository.branch("main")
    main.commit("all", allow_empty=True)
    main.staging.link(entry("late", "9"))
    compacted: list[Compacted] = []

    def compact(name: str) -> None:
        if name == "versions.sealed" and not compacted:
            compacted.append(repository.branch("main").staging.compact())

    with listening(compact):
        main.commit("late")
    assert compacted[0].done and "late" in listed(repository, "main@")


ACTS: dict[str, Callable[[Repository], object]] = {
    "commit": lambda repository: repository.branch("main").commit("all"),
    "compact": lambda repository: repository.branch("main").staging.compact(),
    "push": lambda repository: repository.branch("main").staging.push([_table()]),
    "merge": lambda repository: repository.branch("other").merge("side"),
    "reset": lambda repository: repository.branch("main").reset(),
    "restore": lambda repository: repository.branch("main").reset(prefix="a/"),
    "delete prefix": lambda repository: repository.branch("main").staging.delete_prefix("a/"),
    "collect": lambda repository: collect(repository.context, grace_ms=0),
    "upload": lambda repository: _upload(repository.branch("main")),
    "put together": lambda repository: _put_together(repository.branch("main")),
    "import": lambda repository: repository.branch("side").imports.commit(_locations()),
    "import staged": lambda repository: repository.branch("main").imports.stage(_locations()),
    "stage": lambda repository: _stage(repository.branch("main")),
}


def _table() -> pa.RecordBatch:
    return pa.record_batch({"path": [f"a/{number:02}" for number in range(9)], "checksum": ["2"] * 9})


def _locations() -> list[Location]:
    return [PrefixLocation(f"local://{Path(__file__).parents[1]}/data/ranges-2/", "a")]


def _upload(branch: Branch) -> None:
    upload = branch.uploads.create("a/03")
    for number in (2, 1):
        branch.uploads.put_part(upload.id, number, b"part")
    branch.uploads.complete(upload.id)


def _put_together(branch: Branch) -> None:
    """An object with its bytes, and one on a branch that is not there."""
    entry_, name = Entry("a/03", "data/000001/000000000001-01", 4, checksum="put"), branch.name
    orders = [StagedEntry.of(branch.context, at, entry_, body=b"body") for at in (name, "absent")]
    put_together(orders)


def _stage(branch: Branch) -> None:
    """Rows out of order, in chunks that become runs."""
    rows = [pa.record_batch({"path": [f"a/{number:02}"], "checksum": ["3"]}) for number in (5, 4, 3, 20)]
    bulk.stage_rows(branch.context, branch.name, rows, chunk_rows=1, segment_rows_min=1)


def prepared(repositories: Repositories) -> Repository:
    repository = repositories.create("crash")
    main = repository.branch("main")
    for number in range(12):
        main.staging.link(entry(f"a/{number:02}"))
    main.staging.link(entry("b"))
    main.commit("base")
    for name in ("side", "other"):
        repository.create_branch(name, "main").staging.link(entry(f"{name}/new"))
        repository.branch(name).commit(name)
    main.staging.delete_many(["a/01", "a/02"])
    main.staging.link(entry("a/03", "changed"))
    main.staging.link(entry("c"))
    return repository


def states(repository: Repository) -> dict[str, list[tuple[str, str]]]:
    refs = ("main", "main@", "side", "other")
    return {
        ref: [(found.path, found.checksum) for found in repository.ref(ref).list(amount=5000).results]  # type: ignore[union-attr]
        for ref in refs
    }


class _Death(BaseException):
    """Ends an act as the death of its process would, but that locks of this process are given back."""


@pytest.mark.usefixtures("processor")
@pytest.mark.sample(3)
@pytest.mark.parametrize("act", ACTS)
def test_6_11_an_act_that_dies_at_any_step_was_made_or_was_not(act: str) -> None:
    steps = _steps_of(act)
    for chosen in drawn(range(len(steps)), 2, name=act):
        space, places = MemorySpace(), dict[str, ObjectStore]()
        repository = prepared(opened(space, places))
        before = states(repository)
        _die_at(chosen, lambda: ACTS[act](repository))  # noqa: B023
        again = opened(space, places)
        repository = again.get("crash")
        again.sweep()
        found = states(repository)
        if found != before:
            assert found == _after(act), steps[chosen]
        check_rows(space, repository)
        ACTS[act](repository) if found == before else None
        assert states(repository) == _after(act)
        repository.branch("main").commit("at last", allow_empty=True)


def _steps_of(act: str) -> list[str]:
    steps: list[str] = []
    repository = prepared(opened(MemorySpace(), {}))
    with listening(steps.append):
        ACTS[act](repository)
    return steps


def _after(act: str) -> dict[str, list[tuple[str, str]]]:
    repository = prepared(opened(MemorySpace(), {}))
    ACTS[act](repository)
    return states(repository)


def _die_at(chosen: int, act: Callable[[], object]) -> None:
    seen: list[str] = []

    def listener(name: str) -> None:
        seen.append(name)
        if len(seen) == chosen + 1:
            raise _Death(name)

    with listening(listener), suppress(_Death):
        act()


def check_rows(space: Space, repository: Repository) -> None:
    """Every staged row belongs to a token that a branch lists, or that is noted as dropped."""
    with space.read() as tx:
        known = {str(DROPPED.unpack(key)[0]) for key in tx.keys(DROPPED.range())}
        for named in repository.branches(hidden=True).results:
            record = repository.branch(named.name).staging.record()  # type: ignore[union-attr]
            known |= {record.staging_token, *record.sealed_tokens}
        for keyspace in (STAGED, CLEARED):
            assert {str(keyspace.unpack(key)[0]) for key in tx.keys(keyspace.range())} <= known


@pytest.mark.usefixtures("processor")
@pytest.mark.parametrize("act", ["commit", "compact", "merge", "push"])
@pytest.mark.parametrize("committed", [True, False])
def test_a_write_whose_answer_is_lost_leaves_a_whole_state(act: str, *, committed: bool) -> None:
    faulty = FaultySpace(MemorySpace())
    places: dict[str, ObjectStore] = {}
    repository = prepared(opened(faulty, places))
    before = states(repository)
    with faulty.losing_results(committed=committed), pytest.raises(MillpondError):
        ACTS[act](repository)
    assert states(repository) in (before, _after(act))
    with faulty.full(), pytest.raises(MillpondError):
        repository.branch("main").staging.link(entry("x"))
    repository.branch("main").commit("at last", allow_empty=True)
    assert states(repository)["main"] == states(repository)["main@"]


# -- sensor and garbage -------------------------------------------------------------------------------


def test_the_sensor_compacts_a_branch_after_so_many_tombstones() -> None:
    repository = opened(MemorySpace(), {}).create("sensor")
    main = repository.branch("main")
    for number in range(20):
        main.staging.link(entry(f"k{number:02}"))
    main.commit("all")
    repository.set(CompactionRules(deletions=5))
    for number in range(4):
        main.delete(f"k{number:02}")
    assert main.staging.record().compacted_index is None
    main.delete("k04")
    record = main.staging.record()
    assert record.compacted_index is not None
    assert record.sealed == ()
    main.staging.delete_many([f"k{number:02}" for number in range(5, 15)])
    assert main.staging.record().compacted_index == record.compacted_index  # another began lately
    assert listed(repository, "main") == [f"k{number:02}" for number in range(15, 20)]
    assert len(main.diff().results) == 15


def test_the_compaction_start_time_of_a_branch_is_persisted_and_holds_the_next_one_back() -> None:
    clock, space = ManualClock(1_600_000_000_000), MemorySpace()
    places: dict[str, ObjectStore] = {}
    repository = opened(space, places, clock=clock).create("pause")
    repository.set(CompactionRules(deletions=1, pause_ms=60_000))
    main = repository.branch("main")
    for path in "abcde":
        main.staging.link(entry(path))
    main.commit("all")
    assert main.staging.record().compaction_start_time is None

    def compacted_after_deleting(path: str) -> bool:
        """True when a deletion, made by a server that was just started, begins a compaction."""
        server = opened(space, places, clock=clock).get("pause").branch("main")
        before = server.staging.record()
        server.delete(path)
        after = server.staging.record()
        begun = after.compaction_start_time != before.compaction_start_time
        assert begun == (after.compacted_index != before.compacted_index)
        assert not begun or after.compaction_start_time == clock.now_ms()
        return begun

    assert compacted_after_deleting("a")
    clock.advance(59_999)
    assert not compacted_after_deleting("b")
    main.commit("a commit leaves the pause as it is")
    assert main.staging.record().compaction_start_time == clock.now_ms() - 59_999
    clock.advance(1)
    assert compacted_after_deleting("c")
    clock.now -= 3_600_000
    assert compacted_after_deleting("d"), "a start that lies ahead holds nothing back"
    main.delete("e")
    assert repository.branch("main").staging.compact().done, "an order is carried out at once"


def test_a_branch_with_many_sealed_layers_is_compacted() -> None:
    repository = opened(MemorySpace(), {}).create("layers")
    staging = repository.branch("main").staging
    repository.set(CompactionRules(sealed_tokens=3))
    for count in (1, 2, 0):
        staging.push([_table()])  # type: ignore[list-item]
        assert len(staging.record().sealed) == count
    assert len(listed(repository, "main")) == 9


def test_6_11_garbage_goes_and_what_is_needed_stays() -> None:
    places: dict[str, ObjectStore] = {}
    clock = ManualClock(1_600_000_000_000)
    space = MemorySpace()
    repositories = Repositories(space, clock, lambda where: places.setdefault(where, MemoryObjects()), boundaries=SMALL)
    repository = repositories.create("garbage")
    main = repository.branch("main")
    old = main.put("expired", b"1")
    main.commit("one")
    main.delete("expired")
    held = main.put("held", b"2")
    main.commit("two")
    staged, lost, compacted = main.put("staged", b"3"), main.put("lost", b"4"), main.put("compacted", b"5")
    main.staging.compact()
    main.put("lost", b"new")
    main.staging.compact()
    repository.set(Retention(default_days=1))
    clock.advance(3 * 86_400_000)
    main.put("later", b"6")
    young = main.put("young", b"7")
    main.delete("young")
    shown = repository.collect(dry_run=True)
    assert (shown.objects, shown.expired_commits) == (2, 2)
    found = repository.collect()
    assert (found.objects, found.ranges, found.retained > 0) == (2, 0, True)
    store = repository.context.data
    present = [store.exists(item.address) for item in (held, staged, compacted, young, old, lost)]
    assert present == [True, True, True, True, False, False]
    with pytest.raises(NotFound) as error:
        repository.ref("main~1").get("expired")
    assert error.value.kind == "data_missing"
    assert repository.collect().objects == 0
    clock.advance(GRACE_MS)
    assert repository.collect().ranges > 0
    assert repository.collect().retained == 0
    main.commit("three")
    assert listed(repository, "main@") == ["compacted", "held", "later", "lost", "staged"]


def test_55_active_commits_follow_first_parents_while_their_successors_are_young() -> None:
    now = 100 * 86_400

    def commit(name: str, age: int, *parents: str) -> Commit:
        return Commit(name, "", parents, created=now - age * 86_400)

    commits = {c.id: c for c in (
        commit("a", 15), commit("b", 10, "a"), commit("e", 5, "b"), commit("f", 1, "e"), commit("c", 10, "a"),
        commit("d", 5, "c"), commit("old", 20, "a"), commit("dangling", 3, "old"),
    )}  # fmt: skip
    rules = Retention(2, {"f": 7, "d": 3})
    heads = {"f": "f", "d": "d"}
    assert active_commits(commits, heads, (), rules, now) == {"b", "d", "e", "f"}
    assert active_commits(commits, heads, ("old",), rules, now) == {"b", "d", "e", "f", "old"}
    assert active_commits(commits, heads, (), Retention(4, rules.branch_days), now) == {
        "b",
        "d",
        "e",
        "f",
        "dangling",
        "old",
    }
    assert active_commits(commits, heads, (), None, now) == set(commits)
