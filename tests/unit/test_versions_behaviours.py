"""Behaviours that clients of such systems depend on, by their numbers, 1 to 63; a test may hold several.

What their own tests leave out has the number 6.11.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from millpond.clock import ManualClock
from millpond.errors import Invalid, NotFound
from millpond.kernel.space import Transaction
from millpond.stores.memory import MemorySpace
from millpond.stores.objects import MemoryObjects, ObjectStore
from millpond.versions.branch import Branch
from millpond.versions.graph.commits import Commit, put_commit
from millpond.versions.graph.history import Window, log, merge_base
from millpond.versions.graph.resolve import parse
from millpond.versions.keyspaces import STAGED
from millpond.versions.merges import MergeConflict
from millpond.versions.objects.entries import Entry
from millpond.versions.objects.staged_rows import TOMBSTONE
from millpond.versions.repositories import Repositories
from millpond.versions.repository import Repository
from millpond.versions.staging.tombstone_counter import TombstoneCounter

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
    with branch.context.space.read() as tx:
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
def test_7_to_13_the_sensor_offers_after_so_many_deletions_of_one_token(
    flow: list[tuple[str, str, int]], offered: dict[str, int]
) -> None:
    found: dict[str, int] = {}

    def offer(_: str, branch: str, __: str) -> bool:
        found[branch] = found.get(branch, 0) + 1
        return True

    sensor = TombstoneCounter(offer)
    for branch, token, times in flow:
        for _ in range(times):
            sensor.count("uid", branch, token, tombstones=1, threshold=10)
    assert found == offered


def test_14_15_a_sensor_offers_again_what_was_not_taken_and_nothing_once_closed() -> None:
    answers = [False, False, True]
    sensor = TombstoneCounter(lambda *_: answers.pop(0))
    for _ in range(12):
        sensor.count("uid", "b", "t", tombstones=1, threshold=10)
    assert answers == []
    assert sensor.counted("uid", "b") == 2
    sensor.close()
    sensor.close()
    sensor.count("uid", "b", "t", tombstones=100, threshold=10)


@pytest.mark.parametrize(("taken", "left"), [(True, 5), (False, 15)])
def test_14_15_a_sensor_loses_nothing_that_is_counted_during_an_offer(*, taken: bool, left: int) -> None:
    offers = []

    def offer(*_: str) -> bool:
        offers.append(sensor.counted("uid", "b"))
        if len(offers) == 1:
            sensor.count("uid", "b", "t", tombstones=3, threshold=10)  # as another thread does
        return taken

    sensor = TombstoneCounter(offer)
    sensor.count("uid", "b", "t", tombstones=12, threshold=10)
    assert offers == [2]
    assert sensor.counted("uid", "b") == left


def test_compacting_what_was_compacted_says_so(repository: Repository) -> None:
    main = repository.branch("main")
    reasons = [main.staging.compact().reason]
    put(main, a="1")
    reasons += [main.staging.compact().reason, main.staging.compact().reason]
    main.commit("a")
    assert [*reasons, main.staging.compact().reason] == [
        "nothing is staged", "", "all that is staged was compacted before", "nothing is staged",
    ]  # fmt: skip


# -- deletions (26 to 30) -----------------------------------------------------------------------------


@pytest.mark.parametrize("compacted", [False, True])
def test_26_to_30_a_deletion_leaves_a_tombstone_where_a_layer_below_shows_the_path(
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
def test_38_46_47_uncommitted_changes_are_counted_from_the_commit(repository: Repository, *, compacted: bool) -> None:
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
_K67 = {"k6": "k", "k7": "k"}


@pytest.mark.usefixtures("processor")
@pytest.mark.parametrize(
    ("base", "source", "dest", "dest_wins", "source_wins"),
    [
        ({"a": "a", "b": "b"}, {"a": "a1", "b": "b"}, {}, {}, {"a": "a1"}),
        ({"a": "a", "b": "b"}, _CD, {"a": "a1", "b": "b"}, {"a": "a1", **_CD}, _CD),
        (_ABC, {**_ABC, "b": "b1"}, {"a": "a", "c": "c"}, {"a": "a", "c": "c"}, {"a": "a", "b": "b1", "c": "c"}),
        (_ABC, {"a": "a", "c": "c"}, {**_ABC, "b": "b1"}, {**_ABC, "b": "b1"}, {"a": "a", "c": "c"}),
        (_ABC, {**_ABC, "b": "b1"}, {**_ABC, "b": "b2"}, {**_ABC, "b": "b2"}, {**_ABC, "b": "b1"}),
        (
            dict.fromkeys(["k1", "k2", "k3", "k4", "k5"], "k"), {"k3": "k", "k4": "s"}, _K67, _K67,
            {"k4": "s", **_K67},
        ),
        (
            {**_ABC, "d": "d"}, {"a": "a", "c": "c1", "d": "d"}, {"a": "a", "b": "b1", "d": "d"},
            {"a": "a", "b": "b1", "d": "d"}, {"a": "a", "c": "c1", "d": "d"},
        ),
    ],
)  # fmt: skip
def test_40_strategies_decide_conflicts_and_nothing_else(
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
def test_42_three_dots_show_what_the_right_changed(
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
def test_50_expressions_that_are_refs(text: str) -> None:
    assert parse(text).base == "main"


@pytest.mark.parametrize("text", ["main@1", "main^a", "^^^3", "b@^", "b^@", "", "a b", "main~99999999999"])
def test_50_expressions_that_are_none(text: str) -> None:
    with pytest.raises(Invalid) as error:
        parse(text)
    assert error.value.kind == "ref_invalid"


def test_51_refs_resolve_branches_and_tags_before_beginnings_of_commits(repository: Repository) -> None:
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


def put_graph(repository: Repository, edges: dict[str, str]) -> dict[str, Commit]:
    """Commits of the repository by name, made of their parents, which come first."""
    made: dict[str, Commit] = {}
    for name, parents in edges.items():
        made[name] = Commit.make(
            "tree", [made[parent] for parent in parents.split()], committer="", message=name, created=0
        )
    graph = repository.context.graph

    def put(tx: Transaction) -> None:
        for commit in made.values():
            put_commit(tx, graph.commits, commit)

    repository.context.space.write(put)
    return made


@pytest.mark.parametrize("texts", [
    "A A^0", "B A^ A^1 A~1", "C A^2", "D A^^ A^1^1 A~2 B^1 B^", "E B^2 A^^2", "F B^3 A^^3", "G A^^^ A^1^1^1 A~3 D^1",
    "H D^2 B^^2 A^^^2 A~2^2", "I F^ B^3^ A^^3^", "J F^2 B^3^2 A^^3^2", "F C^ A^2^",
])  # fmt: skip
def test_52_steps_from_a_commit_are_those_of_git(repository: Repository, texts: str) -> None:
    edges = {"G": "", "H": "", "I": "", "J": "", "D": "G H", "E": "", "F": "I J", "B": "D E F", "C": "F", "A": "B C"}
    made = put_graph(repository, edges)
    target, *expressions = texts.split()
    for text in expressions:
        ref = f"{made[text[0]].id}{text[1:]}"
        assert repository.ref(ref).head() == made[target], text


def test_51_a_beginning_that_several_commits_share_is_not_found(repository: Repository) -> None:
    made = put_graph(repository, {str(number): "" for number in range(40)})
    ids = [commit.id for commit in made.values()]
    shared = next(id_[:1] for id_ in ids if sum(other[0] == id_[0] for other in ids) > 1)
    with pytest.raises(NotFound):
        repository.ref(shared).head()
    assert repository.ref(ids[0][:16]).head() == made["0"]


def graph(edges: dict[str, str], created: int = 0) -> dict[str, Commit]:
    """Commits by name; generations follow from the parents, which come first."""
    found: dict[str, Commit] = {}
    for name, parents in edges.items():
        generation = max((found[parent].generation for parent in parents.split()), default=0) + 1
        found[name] = Commit(name, "", tuple(parents.split()), created=created, generation=generation)
    return found


def test_53_a_log_of_one_date_shows_children_first() -> None:
    """Of one second and generation the first parents are first: what a merge went into is newer than what it took."""
    commits = graph({"c1": "", "c2": "c1", "c3": "c1", "c4": "c2 c3", "c5": "c4"})
    assert [commit.id for commit in log(commits.__getitem__, "c5")] == ["c5", "c4", "c2", "c3", "c1"]
    first = Window(first_parent=True)
    assert [commit.id for commit in log(commits.__getitem__, "c5", first)] == ["c5", "c4", "c2", "c1"]
    assert [commit.id for commit in log(commits.__getitem__, "c5", Window(stop_at="c2"))] == ["c5", "c4", "c2"]


@pytest.mark.parametrize(
    ("edges", "left", "right", "bases"),
    [
        ({"c0": "", "c1": "c0", "c2": "c0"}, "c1", "c2", {"c0"}),
        ({"c0": "", "c1": "c0", "c2": "c1"}, "c2", "c1", {"c1"}),
        ({"c0": "", "c1": "c0", "d0": "", "d1": "d0"}, "c1", "d1", {None}),
        ({"c0": "", "c1": "c0", "c2": "c0", "c3": "c1 c2", "c4": "c2"}, "c3", "c4", {"c2"}),
        ({"c0": "", "c1": "c0", "c2": "c0", "c3": "c1 c2", "c4": "c2 c1"}, "c3", "c4", {"c1", "c2"}),
        ({"c0": "", "c1": "c0", "c2": "c1", "c3": "c0 c2", "c4": "c3", "c5": "c2"}, "c4", "c5", {"c2"}),
    ],
)  # fmt: skip
def test_54_merge_bases(edges: dict[str, str], left: str, right: str, bases: set[str | None]) -> None:
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


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ({}, ("Revert {}", {})), ({"message": "mine"}, ("mine", {})),
        ({"metadata": {"k": "v"}}, ("Revert {}", {"k": "v"})),
        ({"message": "mine", "metadata": {"k": "v"}}, ("mine", {"k": "v"})),
    ],
)  # fmt: skip
def test_44_a_revert_takes_other_words(
    repository: Repository, words: dict[str, Any], shown: tuple[str, dict[str, str]]
) -> None:
    main = repository.branch("main")
    put(main, a="1")
    first = main.commit("one", metadata={"of": "the commit"})
    reverted = main.revert(first.id, **words)
    assert (reverted.message, reverted.metadata) == (shown[0].format(first.id), shown[1])
    text, metadata = words.get("message"), words.get("metadata")
    picked = main.cherry_pick(first.id, message=text, metadata=metadata)
    assert picked.message == (text or "one")
    assert (metadata or {"of": "the commit"}).items() <= picked.metadata.items()


@pytest.mark.parametrize("layer", ["staged", "sealed", "compacted"])
def test_44_a_dirty_branch_takes_no_revert_and_no_cherry_pick(repository: Repository, layer: str) -> None:
    main = repository.branch("main")
    put(main, a="1")
    first = main.commit("one")
    put(main, b="1")
    if layer == "sealed":
        seal(main)
    if layer == "compacted":
        main.staging.compact()
    for act in (main.revert, main.cherry_pick):
        with pytest.raises(Invalid, match="dirty branch"):
            act(first.id)
    assert main.head() == first


def test_45_reverting_a_commit_leaves_later_ones(repository: Repository) -> None:
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


# -- all of them --------------------------------------------------------------------------------------

_NUMBERS = re.compile(r"def test_(\d+)(?:_to_(\d+))?((?:_\d+)*)a?_")


def test_every_behaviour_has_a_test_with_its_number() -> None:
    tests = Path(__file__).parents[1]
    files = [*tests.glob("unit/test_versions_behaviours*.py"), tests / "models" / "test_versions_races.py"]
    found = set()
    for first, last, more in _NUMBERS.findall("".join(file.read_text() for file in files)):
        found.update(range(int(first), int(last or first) + 1), map(int, filter(None, more.split("_"))))
    assert set(range(1, 64)) - found == set()
