"""Behaviours 48, 49 and 56 to 63: comparisons, settings, and what clients build on repositories; and races of 6.11."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from millpond.errors import AlreadyExists, Conflict, Denied, Invalid, NotFound
from millpond.kernel.space import Transaction
from millpond.ranges import diff, write
from millpond.versions.merges import MergeConflict
from millpond.versions.objects.entries import ENTRIES, IDENTITY, batch_of
from millpond.versions.paging import CommonPrefix
from millpond.versions.repository import Repository
from millpond.versions.repository_context import ProtectedBranches
from millpond.versions.staging.branches import get_branch, put_branch
from millpond.versions.staging.reads import at, visible
from tests.unit.test_versions_behaviours_commits import PAIRS, at_step, paths_of
from tests.version_sites import CountedObjects, Place, entry, make, put, seal, shown, staged, state

# -- comparisons (48, 49) -----------------------------------------------------------------------------


@pytest.mark.parametrize("layer", ["staged", "sealed", "compacted"])
def test_48_two_dots_with_staging_compare_with_what_is_staged(layer: str) -> None:
    _, repository = make()
    main, right = repository.branch("main"), repository.create_branch("right", "main")
    put(main, {"a": "1", "b": "1", "c": "1", "d": "1"})
    main.commit("left")
    put(right, {"a": "2", "b": "2", "c": "2", "d": "1", "e": "2"})
    right.commit("right")
    assert shown(repository, "main", "right$", three_dots=False) == {
        "a": "changed", "b": "changed", "c": "changed", "e": "added",
    }  # fmt: skip
    put(right, {"a": "1", "b": "2", "f": "3"})  # as on the left; as it is; new
    right.staging.delete_many(["c", "e"])
    put(right, {"d": "3"})
    if layer == "sealed":
        seal(right)
    if layer == "compacted":
        right.staging.compact()
    assert shown(repository, "main", "right$", three_dots=False) == {
        "b": "changed", "c": "removed", "d": "changed", "f": "added",
    }  # fmt: skip
    assert shown(repository, "main", "right", three_dots=False)["a"] == "changed"


@pytest.mark.parametrize(
    ("left", "right", "read", "found"),
    [
        ("a b c d e f", "a b c d e f", 0, 0), ("a b c d e f", "a b c d", 1, 2), ("c d", "a b c d", 1, 2),
        ("a b c d e f", "a b e f", 1, 2), ("a b c d e f", "a b x y", 4, 6), ("a b", "c d", 2, 4),
    ],
)  # fmt: skip
def test_49_a_difference_reads_no_range_that_both_have(left: str, right: str, read: int, found: int) -> None:
    objects = CountedObjects()
    indexes = [write(objects, [batch_of([entry(p) for p in t.split()])], PAIRS, schema=ENTRIES) for t in (left, right)]
    objects.ranges_read()
    assert sum(len(part) for part in diff(objects, *indexes, same=IDENTITY)) == found
    assert objects.ranges_read() <= read


# -- settings, records (56, 57) -----------------------------------------------------------------------


def test_56_protection_is_a_union_of_globs_and_a_stale_tag_is_refused() -> None:
    _, repository = make()
    first = repository.set(ProtectedBranches(("main*", "stable_*")))
    for name, protected in (("main", True), ("main2", True), ("stable_1", True), ("fix", False)):
        branch = repository.branch(name) if name == "main" else repository.create_branch(name, "main")
        if protected:
            with pytest.raises(Denied):
                branch.put("a", b"1")
        else:
            branch.put("a", b"1")
    second = repository.set(ProtectedBranches(("main*", "m?in")), expected=first)
    with pytest.raises(Conflict) as error:
        repository.set(ProtectedBranches(), expected=first)
    assert error.value.kind == "setting_changed"
    assert repository.setting(ProtectedBranches) == (ProtectedBranches(("main*", "m?in")), second)
    repository.branch("stable_1").put("a", b"1")


def test_57_a_branch_whose_change_fails_stays_as_it_was() -> None:
    place, repository = make()
    main = repository.branch("main")
    before = main.staging.record()

    def fail(tx: Transaction) -> None:
        record = get_branch(tx, repository.context.uid, "main")
        put_branch(tx, repository.context.uid, "main", record)
        raise ValueError("on purpose")

    with pytest.raises(ValueError, match="on purpose"):
        place.space.write(fail)
    assert main.staging.record() == before
    put(main, {"a": "1"})
    with at_step("versions.built", lambda: 1 / 0), pytest.raises(ZeroDivisionError):
        main.commit("fails")
    assert main.staging.record().commit_id == before.commit_id
    assert state(repository, "main") == {"a": "1"}


# -- clients (58 to 63) -------------------------------------------------------------------------------


@pytest.mark.usefixtures("processor")
def test_58_a_log_of_many_commits_differences_and_merges_of_equals() -> None:
    place, repository = make()
    main = repository.branch("main")
    messages = []
    for number in range(60):
        place.clock.advance(1_000)
        put(main, {"a": str(number)})
        messages.append(main.commit(f"c{number}").message)
    assert [commit.message for commit in main.log()] == [*messages[::-1], "Repository created"]
    assert [commit.message for commit in main.log(limit=5)] == messages[:-6:-1]
    side = repository.create_branch("side", "main")
    with pytest.raises(Invalid, match="no changes"):
        main.merge("side")
    main.merge("side", allow_empty=True)
    put(side, {"away": "1"})
    there = side.commit("there")
    side.delete("away")
    back = side.commit("and back")
    assert side.head().tree == main.head().tree, "commits that main lacks, and no change"
    assert main.merge("side").parents[1] == back.id
    assert there.id in [commit.id for commit in main.log()]
    with pytest.raises(Invalid, match="no changes"):
        main.merge("side")
    put(side, {"b": "1"})
    place.clock.advance(1_000)
    side.commit("b")
    put(main, {"c": "1"})
    place.clock.advance(1_000)
    main.commit("c")
    assert shown(repository, "main", "side") == {"b": "added"}
    assert shown(repository, "main", "side", three_dots=False) == {"b": "added", "c": "removed"}
    place.clock.advance(1_000)
    merged = main.merge("side", "my merge")
    assert [commit.message for commit in main.log(limit=3)] == ["my merge", "c", "b"]
    assert merged.parents == tuple(repository.ref(ref).head().id for ref in ("main~1", "side"))


def test_59_a_delimiter_shows_folders_and_deleting_twice_is_no_error() -> None:
    _, repository = make()
    main = repository.branch("main")
    put(main, dict.fromkeys(["a", "b", "bar/a", "bar/b", "bar/c", "c", "foo/a", "foo/b"], "1"))
    for committed in (False, True):
        if committed:
            main.commit("all")
        page = main.list(delimiter="/")
        assert [item.path for item in page.results] == ["a", "b", "bar/", "c", "foo/"]
        assert [isinstance(item, CommonPrefix) for item in page.results] == [False, False, True, False, True]
    assert [main.delete("a"), main.delete("a")] == [True, False]
    repository.create_tag("v1", "main")
    with pytest.raises(AlreadyExists):
        repository.create_tag("v1", "main")
    repository.delete_tag("v1")
    with pytest.raises(NotFound):
        repository.delete_tag("v1")


def test_60_reverts_cherry_picks_and_hidden_branches() -> None:
    _, repository = make()
    main = repository.branch("main")
    main.put("a", b"old")
    main.commit("old")
    main.put("a", b"new")
    head = main.commit("new")
    assert main.revert("main").message.startswith("Revert")
    assert main.get("a") == b"old"
    side = repository.create_branch("side", "main~1", hidden=True)
    side.put("b", b"1")
    picked = main.cherry_pick(side.commit("words", metadata={"k": "v"}).id)
    assert (picked.message, picked.metadata["k"]) == ("words", "v")
    assert picked.metadata["cherry-pick-origin"] == side.head().id
    assert [named.name for named in repository.branches().results] == ["main"]
    assert [named.name for named in repository.branches(hidden=True).results] == ["main", "side"]
    with pytest.raises(Invalid, match="no changes"):
        main.revert(head.id)


def test_61_a_transaction_on_a_hidden_branch() -> None:
    place, repository = make()
    main = repository.branch("main")
    put(main, {"a": "1"})
    main.commit("base")

    def transact(number: int) -> str:
        name = f"tx-{number}"
        repository.create_branch(name, "main", hidden=True)
        return name

    name = transact(1)
    put(repository.branch(name), {"b": "1"})
    place.clock.advance(1_000)
    repository.branch(name).commit("mine", metadata={"k": "v"})
    place.clock.advance(1_000)
    main.merge(name, f"Merge transaction {name} to branch")
    log = list(main.log(limit=2))
    assert [commit.message for commit in log] == [f"Merge transaction {name} to branch", "mine"]
    assert log[1].metadata == {"k": "v"}
    repository.delete_branch(name)
    with pytest.raises(NotFound):
        repository.branch(name).head()
    name = transact(2)
    with pytest.raises(Invalid, match="no changes"):
        repository.branch(name).commit("nothing")
    put(repository.branch(name), {"a": "2"})
    repository.branch(name).commit("a")
    put(main, {"a": "3"})
    with pytest.raises(Invalid, match="dirty branch"):
        main.merge(name)
    main.commit("a")
    with pytest.raises(MergeConflict, match="conflict found"):
        main.merge(name)
    repository.create_tag("v1", main.merge(name, strategy="source-wins").id)
    assert state(repository, "v1") == {"a": "2", "b": "1"}


def test_62_an_import_that_cannot_read_its_source_stages_nothing() -> None:
    _, repository = make()
    main = repository.branch("main")

    def batches() -> Iterator[object]:
        yield batch_of([entry("a")])
        raise OSError("the source is gone")

    head = main.head()
    with pytest.raises(OSError, match="gone"):
        main.staging.push(batches())  # type: ignore[arg-type]
    assert (main.head(), state(repository, "main"), staged(main)) == (head, {}, {})
    assert main.staging.push([]) == 0
    assert main.commit("an import of nothing", allow_empty=True).tree == head.tree


def test_63_bytes_are_read_from_any_place_to_any_other() -> None:
    _, repository = make()
    main = repository.branch("main")
    body = bytes(range(256)) * 10
    main.put("a", iter([body[:7], b"", body[7:]]))
    main.put("empty", b"")
    for start, stop in ((0, None), (1, 2), (0, 0), (2_559, 2_560), (5, 9_999), (9_999, None)):
        assert b"".join(main.read("a", start, stop)) == body[start:stop]
    assert b"".join(b"".join(main.read("a", at, at + 1)) for at in range(300)) == body[:300]
    assert main.get("empty") == b""
    with pytest.raises(Conflict) as error:
        main.put("a", b"2", if_absent=True)
    assert error.value.kind == "precondition_failed"

    def broken() -> Iterator[bytes]:
        yield b"1"
        raise OSError("the client is gone")

    with pytest.raises(OSError, match="gone"):
        main.put("b", broken())
    assert state(repository, "main").keys() == {"a", "empty"}


# -- what others do not test (6.11) -------------------------------------------------------------------


def test_6_11_a_reader_that_spans_a_commit_and_its_dropped_tokens_sees_one_state() -> None:
    place, repository = make()
    main = repository.branch("main")
    contents = {f"{number:03}": "1" for number in range(300)}
    put(main, contents)
    with main._reading() as (tx, view):
        main.commit("all")
        place.repositories().sweep()
        put(main, {"later": "1"})
        seen = [row for batch in visible(repository.context, at(tx), view) for row in batch.column("key").to_pylist()]
    assert seen == [path.encode() for path in contents]


@pytest.mark.parametrize("act", ["commit", "reset", "merge into", "delete", "compact", "reset prefix"])
def test_6_11_a_compaction_that_something_overtakes_fails_harmlessly(act: str) -> None:
    place, repository = make()
    main = repository.branch("main")
    put(main, {"a": "1"})
    main.commit("a")
    side = repository.create_branch("side", "main")
    put(side, {"a": "2", "b": "1"})
    other = place.repositories().get("behaviours")
    acts = {
        "commit": lambda: other.branch("side").commit("overtakes"),
        "reset": lambda: other.branch("side").reset(),
        "merge into": lambda: (other.branch("side").commit("b"), other.branch("main").merge("side")),
        "delete": lambda: other.delete_branch("side"),
        "compact": lambda: other.branch("side").staging.compact(),
        "reset prefix": lambda: other.branch("side").reset(prefix="b"),
    }
    with at_step("compaction.folded", acts[act]):
        if act == "delete":
            with pytest.raises(NotFound):
                side.staging.compact()
            return
        outcome = side.staging.compact()
    assert (outcome.done, outcome.reason) == (False, "the sealed layers changed")
    expected = {"reset": {"a": "1"}, "reset prefix": {"a": "2"}}.get(act, {"a": "2", "b": "1"})
    left = {"compact": {"a": "changed", "b": "added"}, "reset prefix": {"a": "changed"}}.get(act, {})
    assert (state(repository, "side"), staged(side)) == (expected, left)


def test_6_11_a_commit_on_a_compacted_base_has_the_state_of_the_branch() -> None:
    place = Place(PAIRS)
    repository = place.repositories().create("behaviours")
    main = repository.branch("main")
    put(main, {"a": "1", "b": "1", "c": "1"})
    main.commit("base")
    main.delete("b")
    put(main, {"d": "1"})
    main.staging.compact()
    put(main, {"b": "2"})
    main.delete("d")
    main.commit("on it")
    assert main.staging.record().compacted_index is None
    assert state(repository, "main@") == {"a": "1", "b": "2", "c": "1"}
    assert not paths_of_other_branches(repository)


def paths_of_other_branches(repository: Repository) -> list[str]:
    """The paths of branches that were made from a state with nothing in it."""
    fresh = repository.create_branch("fresh", "main~2")
    return paths_of(repository.context.ranges, repository.context.index(fresh.head().tree))  # type: ignore[arg-type]


@pytest.mark.parametrize("layers", range(4))
def test_6_11_changes_are_those_of_the_state_whatever_its_layers(layers: int) -> None:
    """Compacted changed a path, staging puts back what is committed; compacted added one, staging deletes it."""
    _, repository = make()
    main = repository.branch("main")
    put(main, {"k": "1"})
    main.commit("base")
    put(main, {"k": "2", "added": "1"})
    if layers & 1:
        main.staging.compact()
    put(main, {"k": "1"})
    main.delete("added")
    if layers & 2:
        seal(main)
    assert staged(main) == {}
    assert main.diff(delimiter="/").results == ()
