"""Behaviours that clients of such systems depend on, one test for each table of them."""

from __future__ import annotations

from typing import TypeAlias

import pytest

from millpond.clock import ManualClock
from millpond.errors import Invalid, NotFound
from millpond.stores.memory import MemorySpace
from millpond.stores.objects import MemoryObjects, ObjectStore
from millpond.versions.branch import Branch
from millpond.versions.graph.commits import Commit
from millpond.versions.graph.expressions import parse
from millpond.versions.graph.history import Window, log, merge_base
from millpond.versions.keyspaces import STAGED
from millpond.versions.merges import MergeConflict
from millpond.versions.objects.entries import Entry
from millpond.versions.objects.staged_rows import TOMBSTONE
from millpond.versions.repositories import Repositories
from millpond.versions.repository import Repository
from millpond.versions.staging.sensor import Sensor

State: TypeAlias = "dict[str, str]"


@pytest.fixture
def repository() -> Repository:
    places: dict[str, ObjectStore] = {}
    repositories = Repositories(
        MemorySpace(), ManualClock(1_600_000_000_000), lambda where: places.setdefault(where, MemoryObjects())
    )
    return repositories.create("behaviours")


def put(branch: Branch, **contents: str) -> None:
    for path, content in contents.items():
        branch.staging.link(Entry(path, f"data/{content}", 1, 0, content))


def state(repository: Repository, ref: str) -> State:
    return {found.path: found.checksum for found in repository.ref(ref).list().results if isinstance(found, Entry)}


def commit_state(branch: Branch, contents: State) -> None:
    branch.staging.delete_prefix("")
    put(branch, **contents)
    branch.commit("state", allow_empty=True)


def seal(branch: Branch) -> None:
    """Seal the staging token, as a commit does that fails."""
    branch.staging.delete_prefix("\x01none")
    branch.staging.push([_nothing()])


def _nothing() -> object:
    import pyarrow as pa

    return pa.record_batch({"path": ["\x02none"], "deleted": [True]})


def staged_row(branch: Branch, path: str) -> bytes | None:
    with branch.site.space.read() as tx:
        return tx.get(STAGED[branch.staging.record().staging_token].pack(path))


# -- the sensor (behaviours 7 to 15) ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flow", "offered"),
    [
        ([("b1", "t", 2), ("b2", "t", 10)], {"b2": 1}),
        ([("b1", "t", 10), ("b2", "t", 11)], {"b1": 1, "b2": 1}),
        ([("b1", "t", 20)], {"b1": 2}),
        ([("b1", "t", 19)], {"b1": 1}),
        ([("b1", "t", 9), ("b2", "t", 9), ("b3", "t", 9)], {}),
        ([("b1", "t", 8), ("b2", "t", 8), ("b3", "t", 8), ("b2", "t", 8)], {"b2": 1}),
        ([("b1", "t1", 8), ("b1", "t2", 8), ("b1", "t3", 8), ("b1", "t3", 8)], {"b1": 1}),
        ([("b1", "t1", 8), ("b1", "t2", 8), ("b1", "t3", 8), ("b1", "t4", 8)], {}),
    ],
)
def test_the_sensor_offers_after_so_many_deletions_of_one_token(
    flow: list[tuple[str, str, int]], offered: dict[str, int]
) -> None:
    found: dict[str, int] = {}

    def offer(_: str, branch: str, __: str) -> bool:
        found[branch] = found.get(branch, 0) + 1
        return True

    sensor = Sensor(offer)
    for branch, token, times in flow:
        for _ in range(times):
            sensor.count("uid", branch, token, tombstones=1, threshold=10)
    assert found == offered


def test_a_sensor_offers_again_what_was_not_taken_and_nothing_once_closed() -> None:
    answers = [False, False, True]
    sensor = Sensor(lambda *_: answers.pop(0))
    for _ in range(12):
        sensor.count("uid", "b", "t", tombstones=1, threshold=10)
    assert answers == []
    assert sensor.counted("uid", "b") == 2
    sensor.close()
    sensor.close()
    sensor.count("uid", "b", "t", tombstones=100, threshold=10)


# -- deletions (26 to 30) -----------------------------------------------------------------------------


@pytest.mark.parametrize("compacted", [False, True])
def test_a_deletion_leaves_a_tombstone_where_a_layer_below_shows_the_path(
    repository: Repository, *, compacted: bool
) -> None:
    main = repository.branch("main")
    put(main, committed="1")
    if compacted:
        main.staging.compact()
    else:
        main.commit("one")
    main.delete("committed")
    assert staged_row(main, "committed") == TOMBSTONE
    put(main, sealed="1")
    seal(main)
    main.delete("sealed")
    assert staged_row(main, "sealed") == TOMBSTONE
    assert main.delete("sealed") is False
    assert staged_row(main, "sealed") == TOMBSTONE
    put(main, fresh="1")
    assert main.delete("fresh") is True
    assert staged_row(main, "fresh") is None  # it hid nothing
    assert main.delete("never") is False
    assert staged_row(main, "never") is None


# -- uncommitted changes (46, 47), dirty branches (38) ------------------------------------------------


@pytest.mark.parametrize("compacted", [False, True])
def test_uncommitted_changes_are_counted_from_the_commit(repository: Repository, *, compacted: bool) -> None:
    main = repository.branch("main")
    put(main, x="1", n="BAD", s="BAD", gone="1")
    main.commit("base")
    put(main, add="C", x="DEAD", n="B", s="DEAD")
    main.delete("gone")
    if compacted:
        main.staging.compact()
    else:
        seal(main)
    put(main, x="1", s="A", gone="2")
    assert [(found.type, found.path) for found in main.diff().results] == [  # type: ignore[union-attr]
        ("added", "add"), ("changed", "gone"), ("changed", "n"), ("changed", "s"),
    ]  # fmt: skip
    main.delete("add")
    put(main, gone="1", n="BAD", s="BAD")
    assert main.diff().results == ()
    repository.create_branch("side", "main")
    put(repository.branch("side"), new="1")
    repository.branch("side").commit("new")
    main.merge("side")  # tombstones that hide nothing, and what is as it was, are no changes
    assert main.staging.record().compacted_index is None


# -- merges (40), comparisons (42) --------------------------------------------------------------------

_ABC = {"a": "a", "b": "b", "c": "c"}
_CD = {"c": "c", "d": "d"}


@pytest.mark.parametrize(
    ("base", "source", "dest", "dest_wins", "source_wins"),
    [
        ({"a": "a", "b": "b"}, {"a": "a1", "b": "b"}, {}, {}, {"a": "a1"}),
        ({"a": "a", "b": "b"}, _CD, {"a": "a1", "b": "b"}, {"a": "a1", **_CD}, _CD),
        (_ABC, {**_ABC, "b": "b1"}, {"a": "a", "c": "c"}, {"a": "a", "c": "c"}, {"a": "a", "b": "b1", "c": "c"}),
        (_ABC, {"a": "a", "c": "c"}, {**_ABC, "b": "b1"}, {**_ABC, "b": "b1"}, {"a": "a", "c": "c"}),
        (_ABC, {**_ABC, "b": "b1"}, {**_ABC, "b": "b2"}, {**_ABC, "b": "b2"}, {**_ABC, "b": "b1"}),
    ],
)  # fmt: skip
def test_strategies_decide_conflicts_and_nothing_else(
    repository: Repository, base: State, source: State, dest: State, dest_wins: State, source_wins: State
) -> None:
    main = repository.branch("main")
    commit_state(main, base)
    repository.create_branch("source", "main")
    commit_state(repository.branch("source"), source)
    commit_state(main, dest)
    head = main.head().id
    with pytest.raises(MergeConflict):
        main.merge("source")
    assert main.head().id == head
    for strategy, expected in (("dest-wins", dest_wins), ("source-wins", source_wins)):
        commit = main.merge("source", strategy=strategy)
        assert commit.metadata[".lakefs.merge.strategy"] == strategy
        assert state(repository, "main") == expected
        main.staging.reset_hard(head)
    with pytest.raises(Invalid, match="strategy"):
        main.merge("source", strategy="ours")


@pytest.mark.parametrize(
    ("base", "left", "right", "shown"),
    [
        ({}, {}, {"k": "1"}, "added"), ({"k": "1"}, {"k": "1"}, {"k": "2"}, "changed"),
        ({"k": "1"}, {"k": "1"}, {}, "removed"), ({"k": "1"}, {"k": "2"}, {"k": "1"}, None),
        ({"k": "1"}, {"k": "2"}, {"k": "3"}, "conflict"), ({"k": "1"}, {"k": "2"}, {}, "conflict"),
        ({"k": "1"}, {}, {"k": "2"}, "conflict"), ({}, {"k": "1"}, {"k": "2"}, "conflict"),
        ({"k": "1"}, {"k": "2"}, {"k": "2"}, None), ({"k": "1"}, {}, {}, None),
    ],
)  # fmt: skip
def test_three_dots_show_what_the_right_changed(
    repository: Repository, base: State, left: State, right: State, shown: str | None
) -> None:
    main = repository.branch("main")
    commit_state(main, base)
    repository.create_branch("right", "main")
    commit_state(repository.branch("right"), right)
    commit_state(main, left)
    found = [change.type for change in repository.diff("main", "right").results]  # type: ignore[union-attr]
    assert found == ([] if shown is None else [shown])


# -- refs, logs, merge bases (50 to 54) ---------------------------------------------------------------


@pytest.mark.parametrize("text", ["main", "main^", "main~^~3", "main^2^", "main@", "main$"])
def test_expressions_that_are_refs(text: str) -> None:
    assert parse(text).base == "main"


@pytest.mark.parametrize("text", ["main@1", "main^a", "^^^3", "b@^", "b^@", "", "a b", "main~99999999999"])
def test_expressions_that_are_none(text: str) -> None:
    with pytest.raises(Invalid) as error:
        parse(text)
    assert error.value.kind == "ref_invalid"


def test_refs_resolve_branches_and_tags_before_beginnings_of_commits(repository: Repository) -> None:
    main = repository.branch("main")
    put(main, a="1")
    first = main.commit("one")
    repository.create_branch(first.id[:6], "main~1")
    assert repository.ref(first.id[:6]).head().message == "Repository created"
    assert repository.ref(first.id[:7]).head() == first
    assert repository.ref("main~1").head() == repository.ref("main^").head()
    assert repository.ref("main^0").head() == first
    for text in ("main~200", "nothing", "0"):
        with pytest.raises(NotFound):
            repository.ref(text).head()
    for text in ("main^3", f"{first.id}@"):
        with pytest.raises(Invalid):
            repository.ref(text).head()


def graph(edges: dict[str, str], created: int = 0) -> dict[str, Commit]:
    """Commits by name; generations follow from the parents, which come first."""
    found: dict[str, Commit] = {}
    for name, parents in edges.items():
        generation = max((found[parent].generation for parent in parents.split()), default=0) + 1
        found[name] = Commit(name, "", tuple(parents.split()), created=created, generation=generation)
    return found


def test_a_log_of_one_date_shows_children_first() -> None:
    commits = graph({"c1": "", "c2": "c1", "c3": "c1", "c4": "c2 c3", "c5": "c4"})
    assert [commit.id for commit in log(commits.__getitem__, "c5")] == ["c5", "c4", "c3", "c2", "c1"]
    first = Window(first_parent=True)
    assert [commit.id for commit in log(commits.__getitem__, "c5", first)] == ["c5", "c4", "c2", "c1"]
    assert [commit.id for commit in log(commits.__getitem__, "c5", Window(stop_at="c3"))] == ["c5", "c4", "c3"]


@pytest.mark.parametrize(
    ("edges", "left", "right", "bases"),
    [
        ({"c0": "", "c1": "c0", "c2": "c0"}, "c1", "c2", {"c0"}),
        ({"c0": "", "c1": "c0", "c2": "c1"}, "c2", "c1", {"c1"}),
        ({"c0": "", "c1": "c0", "d0": "", "d1": "d0"}, "c1", "d1", {None}),
        ({"c0": "", "c1": "c0", "c2": "c0", "c3": "c1 c2", "c4": "c2"}, "c3", "c4", {"c2"}),
        ({"c0": "", "c1": "c0", "c2": "c0", "c3": "c1 c2", "c4": "c2 c1"}, "c3", "c4", {"c1", "c2"}),
    ],
)  # fmt: skip
def test_merge_bases(edges: dict[str, str], left: str, right: str, bases: set[str | None]) -> None:
    commits = graph(edges)
    for pair in ((left, right), (right, left)):
        found = merge_base(commits.__getitem__, *pair)
        assert (None if found is None else found.id) in bases


def test_a_commit_has_the_id_of_its_content() -> None:
    first = Commit.make("tree", (), committer="c", message="m", created=1, metadata={"b": "2", "a": "1"})
    again = Commit.make("tree", (), committer="c", message="m", created=1, metadata={"a": "1", "b": "2"})
    assert first == again
    assert Commit.make("tree", (first,), committer="c", message="m", created=1).generation == 2
    assert (
        len(
            {first.id, *(Commit.make(*words, (), committer="", message="", created=0).id for words in (("a",), ("b",)))}
        )
        == 3
    )


def test_reverting_a_commit_leaves_later_ones(repository: Repository) -> None:
    main = repository.branch("main")
    main.put("1.txt", b"one")
    first = main.commit("one")
    main.put("2.txt", b"two")
    main.commit("two")
    reverted = main.revert(first.id)
    assert reverted.message == f"Revert {first.id}"
    assert state(repository, "main").keys() == {"2.txt"}
    assert main.get("2.txt") == b"two"
    picked = main.cherry_pick(first.id)
    assert picked.metadata["cherry-pick-origin"] == first.id
    assert main.get("1.txt") == b"one"
