"""Behaviours 31 to 45a: commits, merges, imports and resets, and what is read and written by them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pyarrow as pa
import pytest

from millpond.errors import Denied, Invalid
from millpond.kernel.steps import listening
from millpond.ranges import Boundaries, Index, fold, scan, write
from millpond.stores.objects import MemoryObjects
from millpond.versions.keyspaces import DROPPED
from millpond.versions.merges import Merging, Strategy, merge_trees
from millpond.versions.objects.entries import CHANGES, ENTRIES, IDENTITY, batch_of, entries_of
from millpond.versions.repository import Repository
from millpond.versions.repository_context import ProtectedBranches
from tests.version_sites import TINY, CountedObjects, Place, entry, make, put, seal, staged, state, tokens_with_rows

PAIRS = Boundaries(rows_min=2, rows_max=2)
"""Two entries a range, whatever their keys: so that tests may say which ranges there are."""


@contextmanager
def at_step(name: str, act: Callable[[], object], times: int = 1) -> Iterator[None]:
    """Do something when a step is taken, the first times."""
    left = [times]

    def listener(taken: str) -> None:
        if taken == name and left[0] > 0:
            left[0] -= 1
            act()

    with listening(listener):
        yield


def dropped(place: Place) -> set[str]:
    with place.space.read() as tx:
        return {str(DROPPED.unpack(key)[0]) for key in tx.keys(DROPPED.range())}


# -- commits (31 to 37) -------------------------------------------------------------------------------


def test_31_a_commit_seals_then_moves_the_head_then_drops_the_tokens() -> None:
    place = Place()
    repository = place.repositories(later=True).create("behaviours")
    main = repository.branch("main")
    seen = []
    for path in "abc":
        put(main, {path: "1"})
        if path != "c":
            with at_step("versions.built", lambda: 1 / 0), pytest.raises(ZeroDivisionError):
                main.commit("fails after the seal")
    before = main.staging.record()
    assert len(before.sealed) == 2
    with at_step("versions.sealed", lambda: seen.append(main.staging.record())):
        commit = main.commit("all")
    (during,) = seen
    assert [layer.id for layer in during.sealed] == [before.staging_token, *(layer.id for layer in before.sealed)]
    assert during.staging_token != before.staging_token
    after = main.staging.record()
    assert (after.commit_id, after.sealed, after.staging_token) == (commit.id, (), during.staging_token)
    assert dropped(place) == {layer.id for layer in during.sealed} <= tokens_with_rows(place.space)
    assert state(repository, "main@") == {"a": "1", "b": "1", "c": "1"}  # its tokens are dropped by others, later
    place.repositories().get("behaviours")
    assert tokens_with_rows(place.space) == dropped(place) == set()


def test_32_a_commit_without_changes_is_refused_and_an_empty_one_is_made_on_request() -> None:
    _, repository = make()
    main = repository.branch("main")
    put(main, {"a": "1"})
    head = main.commit("a")
    put(main, {"a": "1"})
    with pytest.raises(Invalid, match="no changes") as error:
        main.commit("again")
    assert error.value.values["commit"] == head.id
    assert len(main.staging.record().sealed) == 1
    assert main.commit("empty", allow_empty=True).tree == head.tree
    assert main.staging.record().sealed == ()


@pytest.mark.parametrize("times", [1, 12])
def test_33_a_commit_that_others_overtake_is_built_again(times: int) -> None:
    place, repository = make()
    main = repository.branch("main")
    other = place.repositories().get("behaviours").branch("main")
    put(main, {"a": "1"})

    def compact() -> None:
        other.staging.link(entry("b"))
        assert other.staging.compact().done

    with at_step("versions.built", compact, times):
        main.commit("a")
    assert state(repository, "main@") == {"a": "1", "b": "1"}
    assert staged(main) == {}


@pytest.mark.parametrize("how", ["staged", "sealed", "compacted"])
def test_34_a_tree_is_committed_to_a_clean_branch_alone(how: str) -> None:
    _, repository = make()
    main = repository.branch("main")
    tree = main.head().tree
    put(main, {"a": "1"})
    if how == "sealed":
        seal(main)
    if how == "compacted":
        main.staging.compact()
    with pytest.raises(Invalid) as error:
        main.commit("tree", source_tree=tree)
    assert error.value.kind == "branch_dirty"
    main.commit("a")
    assert main.commit("tree", source_tree=tree).tree == tree
    assert state(repository, "main") == {}


def test_35_a_protected_branch_is_refused_before_anything_is_sealed() -> None:
    _, repository = make()
    main = repository.branch("main")
    put(main, {"a": "1"})
    repository.set(ProtectedBranches(("ma*",)))
    before = main.staging.record()
    with pytest.raises(Denied):
        main.commit("refused")
    assert main.staging.record() == before
    repository.set(ProtectedBranches())
    repository.alter(read_only=True)
    with pytest.raises(Denied):
        main.commit("refused")
    assert main.staging.record() == before
    main.commit("forced", force=True)


def folded(base: str, changes: str) -> tuple[list[str], tuple[int, int, int], int, int]:
    """Fold changes (`b` puts, `-b` deletes, `=b` puts what is there) onto two-entry ranges.

    The paths then, the counts, the ranges read and those written.
    """
    objects = CountedObjects()
    index = write(objects, [batch_of([entry(path) for path in base.split()])], PAIRS, schema=ENTRIES)
    known = set(objects._held)
    objects.ranges_read()
    rows = sorted((word.lstrip("-="), word[0] == "-", word[0] == "=") for word in changes.split())
    batch = batch_of([entry(path, "1" if same else "2") for path, _, same in rows])
    mask = pa.array([gone for _, gone, _ in rows], pa.bool_())
    table = pa.RecordBatch.from_arrays([*batch.columns, mask], schema=CHANGES)
    done = fold(objects, index, [table], same=IDENTITY)
    read, written = objects.ranges_read(), sum(name.startswith("ranges/") for name in set(objects._held) - known)
    return paths_of(objects, done.index), (done.added, done.changed, done.removed), read, written


def paths_of(objects: MemoryObjects, index: Index) -> list[str]:
    return [row.path for batch in scan(objects, index) for row in entries_of(batch)]


@pytest.mark.parametrize(
    ("base", "changes", "paths", "counts", "read"),
    [
        ("a c d e", "b f", "a b c d e f", (2, 0, 0), 2),
        ("a c d e f g", "b b2", "a b b2 c d e f g", (2, 0, 0), 1),  # whole ranges behind the change
        ("k1 k2 k3 k4 l1 l2", "k2 k3", "k1 k2 k3 k4 l1 l2", (0, 2, 0), 2),
        ("k2 k3 k4 k5", "k1 k1b k6", "k1 k1b k2 k3 k4 k5 k6", (3, 0, 0), 1),
        ("a b d e g h", "-b -a", "d e g h", (0, 0, 2), 1),
        ("a b", "=a =b", "a b", (0, 0, 0), 1), ("", "-a -b", "", (0, 0, 0), 0),
        ("c d", "a -e -f", "a c d", (1, 0, 0), 1),
    ],
)  # fmt: skip
def test_36_a_commit_opens_the_ranges_that_its_changes_meet(
    base: str, changes: str, paths: str, counts: tuple[int, int, int], read: int
) -> None:
    found, counted, opened, _ = folded(base, changes)
    assert (found, counted) == (paths.split(), counts)
    assert opened <= read


@pytest.mark.usefixtures("processor")
def test_37_commits_in_mixed_order() -> None:
    _, repository = make(TINY)
    main = repository.branch("main")
    late, early = (({f"{run}/foo{number}": "1" for number in range(100)}) for run in ("run2", "run1"))
    put(main, late)
    main.commit("late")
    put(main, early)
    main.commit("early")
    assert state(repository, "main@") == late | early


def test_37_a_commit_with_a_tombstone_before_all_that_is_committed() -> None:
    _, repository = make(TINY)
    main = repository.branch("main")
    put(main, {"objb": "1", "objc": "1"})
    main.commit("b, c")
    put(main, {"obja": "1", "objd": "1"})
    main.delete("obja")
    main.commit("d")
    assert state(repository, "main@") == {"objb": "1", "objc": "1", "objd": "1"}


# -- merges, imports, resets (39 to 45a) --------------------------------------------------------------


@pytest.mark.parametrize("times", [9, 20])
def test_39_a_merge_that_others_overtake_is_built_again(times: int) -> None:
    place, repository = make()
    main, side = repository.branch("main"), repository.create_branch("side", "main")
    put(side, {"a": "1"})
    side.commit("a")
    other = place.repositories().get("behaviours").branch("main")
    with at_step("versions.built", lambda: (other.staging.link(entry("x")), seal(other), other.reset()), times):
        main.merge("side")
    assert state(repository, "main") == {"a": "1"}


def test_39_a_write_that_slips_in_before_the_seal_makes_the_branch_dirty() -> None:
    place, repository = make()
    main, side = repository.branch("main"), repository.create_branch("side", "main")
    put(side, {"a": "1"})
    side.commit("a")

    def slip_in() -> None:
        place.space.before = []
        main.staging.link(entry("b"))

    place.space.before = [slip_in]
    with pytest.raises(Invalid, match="dirty branch"):
        main.merge("side")
    assert state(repository, "main") == {"b": "1"}
    assert state(repository, "main@") == {}


def test_41_a_merge_takes_whole_ranges_by_their_names() -> None:
    place = Place(PAIRS)
    repository = place.repositories().create("behaviours")
    context = repository.context
    base = tree(repository, "b1 b2 d1 d2 f1 f2")
    cases = {
        ("b1 b2 d1 d2 f1 f2", "a1 a2 b1 b2 d1 d2 f1 f2"): "a1 a2 b1 b2 d1 d2 f1 f2",  # added by the source
        ("b1 b2 d1 d2 f1 f2 g1 g2", "a1 a2 b1 b2 d1 d2 f1 f2"): "a1 a2 b1 b2 d1 d2 f1 f2 g1 g2",
        ("b1 b2 d1 d2 f1 f2 g1 g2", "b1 b2 f1 f2"): "b1 b2 f1 f2 g1 g2",  # deleted by the source
        ("b1 b2 f1 f2", "b1 b2 d1 d2 f1 f2 g1 g2"): "b1 b2 f1 f2 g1 g2",
    }
    for (ours, theirs), expected in cases.items():
        trees = (tree(repository, text) for text in (ours, theirs))
        place.ranges_read()
        merged = merge_trees(place.repositories().get("behaviours").context, base, *trees)
        assert place.ranges_read() <= 1, "one of a deleted range at most"
        assert paths_of(context.ranges, context.index(merged)) == expected.split()  # type: ignore[arg-type]
    assert merge_trees(context, base, base, tree(repository, "x")) == tree(repository, "x")
    assert merge_trees(context, base, tree(repository, "x"), base) == tree(repository, "x")


def tree(repository: Repository, paths: str) -> str:
    context = repository.context
    return write(context.ranges, [batch_of([entry(path) for path in paths.split()])], PAIRS, schema=ENTRIES).id


def test_41_a_source_that_is_the_base_is_no_change() -> None:
    _, repository = make()
    main = repository.branch("main")
    repository.create_branch("side", "main")
    put(main, {"a": "1"})
    main.commit("a")
    with pytest.raises(Invalid, match="no changes"):
        main.merge("side")
    assert main.merge("side", allow_empty=True).parents[1] == repository.branch("side").head().id


def test_43_an_import_replaces_its_prefixes_and_opens_no_range_within_them() -> None:
    place = Place(PAIRS)
    main = place.repositories().create("behaviours").branch("main")
    others = [f"{folder}/{number}" for folder in "be" for number in range(4)]
    replaced = [f"{folder}/{number}" for folder in "ac" for number in range(4)]
    put(main, dict.fromkeys([*others, *replaced], "1"))
    main.commit("before")
    imported = ["a/x", "a/y", "c/1", "c/z"]
    repository = place.repositories().get("behaviours")
    main = repository.branch("main")
    place.ranges_read()
    for prefix in ("a/", "c/"):
        main.staging.delete_prefix(prefix)
    main.staging.push([batch_of([entry(path, "2") for path in imported])])
    main.commit("import")
    assert place.ranges_read() <= 4, "those of the import, and a pair to see that something changed"
    assert state(repository, "main@") == dict.fromkeys(others, "1") | dict.fromkeys(imported, "2")


def test_45_resets_take_back_an_object_a_prefix_or_all() -> None:
    _, repository = make()
    main = repository.branch("main")
    committed = {"a/1": "1", "a/2": "1", "b": "1"}
    put(main, committed)
    first = main.commit("base")

    def change() -> None:
        put(main, {"a/1": "2", "a/3": "2", "b": "2", "c": "2"})
        main.delete("a/2")

    change()
    main.reset(path="b")
    assert state(repository, "main") == {"a/1": "2", "a/3": "2", "b": "1", "c": "2"}
    main.reset(prefix="a/")
    assert state(repository, "main") == {**committed, "c": "2"}
    main.reset()
    assert (state(repository, "main"), staged(main)) == (committed, {})
    change()
    second = main.commit("changed")
    main.staging.reset_hard(first.id)
    assert state(repository, "main") == committed
    main.staging.reset_hard(second.id)
    put(main, {"x": "1"})
    with pytest.raises(Invalid, match="dirty"):
        main.staging.reset_hard(first.id)
    main.staging.reset_hard(first.id, force=True)
    assert (state(repository, "main"), staged(main)) == (committed, {})
    main.staging.delete_prefix("a/")
    main.staging.compact()
    put(main, {"y": "1"})
    main.staging.reset_hard(second.id, force=True)
    assert (main.head(), staged(main)) == (second, {})


def test_45a_merges_with_strategies_and_listings_after_them() -> None:
    _, repository = make()
    main, feature = repository.branch("main"), repository.create_branch("feature", "main")
    put(main, {"README": "1"})
    main.commit("readme")
    feature.merge("main")
    for strategy, content in (("source-wins", "1"), ("dest-wins", "2")):
        put(feature, {f"file{number}": content for number in range(10)})
        feature.commit(content)
        commit = main.merge("feature", strategy=strategy)
        assert commit.metadata[".lakefs.merge.strategy"] == strategy
        assert len(state(repository, "main")) == 11


def test_6_11_merges_compare_identities_of_one_path_at_a_time() -> None:
    """Two empty files have one identity, and are two files."""
    _, repository = make()
    context = repository.context

    def of(**contents: str) -> str:
        batch = batch_of([entry(path, contents[path]) for path in sorted(contents)])
        return write(context.ranges, [batch], TINY, schema=ENTRIES).id

    added = merge_trees(context, of(b="1"), of(), of(a="1", b="1"))
    assert paths_of(context.ranges, context.index(added)) == ["a"]  # type: ignore[arg-type]
    with pytest.raises(Exception, match="conflict"):
        merge_trees(context, of(b="1"), of(a="2"), of(a="1"))
    taken = merge_trees(context, of(b="1"), of(a="2"), of(a="1"), Merging(Strategy.SOURCE_WINS))
    assert [row.checksum for batch in scan(context.ranges, context.index(taken)) for row in entries_of(batch)] == ["1"]
