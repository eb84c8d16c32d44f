"""The first acts of a repository, over every kind of space."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from millpond.clock import ManualClock
from millpond.errors import AlreadyExists, Conflict, Denied, Invalid, NotFound
from millpond.kernel.space import Space, WouldBlock
from millpond.stores.lmdb.space import LmdbSpace
from millpond.stores.memory import MemorySpace
from millpond.stores.objects import MemoryObjects, ObjectStore
from millpond.versions.merges import MergeConflict
from millpond.versions.repositories import Repositories
from millpond.versions.repository import Repository
from millpond.versions.repository_context import CompactionRules, ProtectedBranches, Retention
from millpond.versions.staging.branches import LayerCount, count_layers
from tests.version_spaces import SPACES, open_space


def open_repositories(space: Space) -> Repositories:
    places: dict[str, ObjectStore] = {}
    return Repositories(space, ManualClock(1_600_000_000_000), lambda where: places.setdefault(where, MemoryObjects()))


@pytest.fixture(params=SPACES)
def repository(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Repository]:
    space = open_space(request.param, tmp_path)
    yield open_repositories(space).create("flights")
    space.close()


def paths(repository: Repository, ref: str, **options: object) -> list[str]:
    return [found.path for found in repository.ref(ref).list(**options).results]  # type: ignore[arg-type]


def test_what_is_put_is_read_and_committed(repository: Repository) -> None:
    main = repository.branch("main")
    entry = main.put("a/b", [b"12", b"3"], content_type="text/plain", metadata={"k": "v"})
    assert (entry.size, entry.checksum) == (3, "202cb962ac59075b964b07152d234b70")
    assert main.get("a/b") == b"123"
    assert main.stat("a/b") == entry
    assert paths(repository, "main@") == []
    commit = main.commit("one")
    assert paths(repository, "main@") == ["a/b"]
    assert main.head() == commit
    assert repository.ref(commit.id[:9]).get("a/b") == b"123"
    with pytest.raises(NotFound) as error:
        main.stat("a")
    assert error.value.kind == "entry_not_found"


def test_common_prefixes_stand_for_what_lies_below(repository: Repository) -> None:
    main = repository.branch("main")
    for path in ("a", "b", "bar/a", "bar/b", "bar/c", "c", "foo/x", "foo/y"):
        main.put(path, b"")
    for ref in ("main", "main@"):
        assert paths(repository, ref, delimiter="/") == ["a", "b", "bar/", "c", "foo/"]
        assert paths(repository, ref, delimiter="/", reverse=True) == ["foo/", "c", "bar/", "b", "a"]
        assert paths(repository, ref, delimiter="/", after="bar/") == ["c", "foo/"]
        assert paths(repository, ref, delimiter="/", after="bar/a") == ["bar/", "c", "foo/"]
        page = repository.ref(ref).list(delimiter="/", amount=3)
        assert (page.has_more, page.next_offset) == (True, "bar/")
        if ref == "main":
            main.commit("all")


def test_a_commit_without_changes_is_refused_and_names_the_head(repository: Repository) -> None:
    main = repository.branch("main")
    main.put("a", b"1")
    head = main.commit("one")
    main.put("a", b"1")  # the same bytes again
    with pytest.raises(Invalid) as error:
        main.commit("two")
    assert (error.value.kind, error.value.values["commit"]) == ("no_changes", head.id)
    assert main.commit("two", allow_empty=True).tree == head.tree


def test_conditions_hold_in_the_write(repository: Repository) -> None:
    main = repository.branch("main")
    first = main.put("a", b"1", if_absent=True)
    with pytest.raises(Conflict):
        main.put("a", b"2", if_absent=True)
    main.commit("one")
    with pytest.raises(Conflict):
        main.put("a", b"2", if_absent=True)
    main.put("a", b"2", if_match=first.checksum)
    with pytest.raises(Conflict):
        main.put("a", b"3", if_match=first.checksum)
    main.delete("a")
    main.put("a", b"4", if_absent=True)
    assert main.get("a") == b"4"


@pytest.mark.usefixtures("processor")
def test_a_merge_is_right_or_refused(repository: Repository) -> None:
    main = repository.branch("main")
    main.put("b", b"same")
    main.commit("base")
    source = repository.create_branch("source", "main")
    source.put("a", b"same")  # the bytes of another path
    source.commit("add a")
    main.delete("b")
    main.commit("drop b")
    main.merge("source")
    assert paths(repository, "main") == ["a"]


def test_conflicts_carry_their_paths_and_take_resolutions(repository: Repository) -> None:
    main = repository.branch("main")
    main.commit("base", allow_empty=True)
    repository.create_branch("source", "main")
    for branch in ("main", "source"):
        for path in ("x/1", "x/2", "y"):
            repository.branch(branch).put(path, f"{branch} {path}".encode())
        repository.branch(branch).commit(branch)
    with pytest.raises(MergeConflict) as error:
        main.merge("source")
    assert error.value.paths == ("x/1", "x/2", "y")
    assert [found.type for found in repository.diff("main", "source").results] == ["conflict"] * 3
    rules = {"x/2": "delete", "x/": "source", "y": "destination"}
    for odd in ({"a": "source-wins"}, ["a"], "a"):
        with pytest.raises(Invalid, match="such as resolutions=") as no_side:
            main.merge("source", resolutions=odd)  # type: ignore[arg-type]
        assert no_side.value.kind == "merge_take"
    main.merge("source", resolutions=rules)
    assert paths(repository, "main") == ["x/1", "y"]
    assert (main.get("x/1"), main.get("y")) == (b"source x/1", b"main y")


def test_a_prefix_is_deleted_by_one_range_tombstone(repository: Repository) -> None:
    main = repository.branch("main")
    for number in range(20):
        main.put(f"p/{number:02}", b"")
    main.commit("all")
    main.staging.delete_prefix("p/")
    main.put("p/07", b"new")
    assert paths(repository, "main") == ["p/07"]
    assert main.delete("p/08") is False
    main.staging.compact()
    assert paths(repository, "main") == ["p/07"]
    assert len(main.diff().results) == 20
    main.reset(prefix="p/1")
    assert len(paths(repository, "main")) == 11
    main.commit("some")
    assert len(paths(repository, "main@")) == 11


def test_a_table_is_staged_whole(repository: Repository) -> None:
    main = repository.branch("main")
    count = 5_000
    table = pa.table({"path": [f"t/{number % count:05}" for number in range(count + 7)], "size": range(count + 7)})
    main.staging.stage(table)
    assert main.stat("t/00003").size == count + 3
    assert len(main.staging.record().sealed) == 1
    main.commit("table")
    assert sum(batch.num_rows for batch in main.entries()) == count


def test_some_paths_are_committed_and_the_rest_stays_staged(repository: Repository) -> None:
    main = repository.branch("main")
    for path in ("a/1", "b/1", "c"):
        main.put(path, b"1")
    main.commit("some", prefixes=["b/"])
    assert paths(repository, "main@") == ["b/1"]
    assert paths(repository, "main") == ["a/1", "b/1", "c"]
    assert [change.path for change in main.diff().results] == ["a/1", "c"]


def test_a_prefix_is_restored_without_copying_bytes(repository: Repository) -> None:
    main = repository.branch("main")
    first = main.put("a/1", b"old")
    main.put("b", b"b")
    main.commit("one")
    main.put("a/1", b"new")
    main.put("a/2", b"more")
    main.put("b", b"b2")
    main.commit("two")
    assert main.staging.restore("a/", "main~1") == 2
    assert main.stat("a/1") == first
    assert paths(repository, "main") == ["a/1", "b"]
    assert main.get("b") == b"b2"


def test_protection_holds_at_once(repository: Repository) -> None:
    main = repository.branch("main")
    repository.create_branch("side", "main").put("a", b"1")
    repository.branch("side").commit("a")
    repository.set(ProtectedBranches(("ma*",)))
    for act in (lambda: main.put("a", b""), lambda: main.commit("x", allow_empty=True), lambda: main.delete("a")):
        _refused(act)
    main.merge("side")  # the way into a protected branch
    assert main.get("a") == b"1"


def _refused(act: Callable[[], object]) -> None:
    with pytest.raises(Denied) as error:
        act()
    assert error.value.kind == "branch_protected"


def test_names_are_unique_and_deleted_branches_gone(repository: Repository) -> None:
    with pytest.raises(AlreadyExists):
        repository.create_branch("main", "main")
    repository.create_branch("tx", "main", hidden=True)
    assert [named.name for named in repository.branches().results] == ["main"]
    with pytest.raises(Denied):
        repository.delete_branch("main")
    repository.delete_branch("tx")
    with pytest.raises(NotFound):
        repository.branch("tx").put("a", b"")
    repository.create_tag("v1", "main")
    with pytest.raises(AlreadyExists):
        repository.create_tag("v1", "main")
    assert repository.tag("v1") == repository.branch("main").head().id


def test_sealed_layers_and_deletions_are_counted(repository: Repository) -> None:
    repository.set(CompactionRules(deletions=100))
    main = repository.branch("main")
    main.put("a", b"1")
    main.commit()
    repository.create_branch("other", "main").staging.push([pa.record_batch({"path": ["b"]})])
    main.delete("a")
    with repository.context.space.read() as tx:
        assert count_layers(tx) == LayerCount(branches=2, sealed=1, sealed_max=1)
    assert repository.context.tombstones.total() == 1
    main.commit("gone")
    assert repository.context.tombstones.total() == 0


def test_a_table_committed_alone_makes_the_tree_that_its_rows_make(repository: Repository) -> None:
    table = pa.record_batch({"path": [f"d/{number:03}" for number in range(300)], "checksum": ["c"] * 300})
    main, rows = repository.branch("main"), repository.create_branch("rows", "main")
    main.staging.push([table])
    rows.staging.stage(table)
    assert main.commit("segment").tree == rows.commit("rows").tree
    assert len(paths(repository, "main@", amount=1_000)) == 300


def test_reads_at_once_never_wait(tmp_path: Path) -> None:
    """Rows and held ranges are read at once; a file that is not held is for a thread that may wait."""
    space = LmdbSpace(tmp_path / "space", durable=False)
    repositories = open_repositories(space)
    main = repositories.create("flights").branch("main")
    main.put("staged", b"1")
    at_once = repositories.get_at_once("flights")
    assert at_once.branch("main").stat("staged") == main.stat("staged")
    main.commit("one")
    fresh = Repositories(space, repositories.clock, repositories._open_store)
    with pytest.raises(WouldBlock):
        fresh.get_at_once("flights").ref("main@").stat("staged")
    with pytest.raises(WouldBlock):
        fresh.get_at_once("flights").branch("main").delete("staged")
    assert fresh.get("flights").ref("main@").stat("staged") == main.stat("staged")
    assert fresh.get_at_once("flights").ref("main@").stat("staged") == main.stat("staged")
    repositories.get("flights").alter(metadata={"k": "v"})
    assert fresh.get_at_once("flights").record.metadata == {"k": "v"}
    repositories.delete("flights")
    with pytest.raises(NotFound):
        fresh.get_at_once("flights")
    repositories.create("flights", "local://another")
    assert fresh.get_at_once("flights").record.namespace == "local://another"
    with pytest.raises(WouldBlock):
        Repositories(MemorySpace(), repositories.clock, repositories._open_store).get_at_once("flights")
    space.close()


def test_what_could_not_be_read_again_is_not_stored(repository: Repository) -> None:
    main = repository.branch("main")
    main.put("a", b"1")
    main.put("b", b"2")
    acts: list[Callable[[], object]] = [
        lambda: repository.alter(read_only=odd(5)), lambda: repository.alter(metadata=odd({"a": 1})),
        lambda: repository.set(ProtectedBranches(odd("main"))), lambda: repository.set(Retention(odd("7"))),
        lambda: repository.set(CompactionRules(odd(1.5))), lambda: repository.set("main"),
        lambda: main.put("a", b"", metadata=odd({"a": 1})), lambda: main.put("a", b"", metadata={"a": "\ud800"}),
        lambda: main.put("a", b"", content_type=odd(None)), lambda: main.uploads.create("a", metadata=odd({"a": 1})),
        lambda: main.commit(odd(None)), lambda: main.commit("\ud800"), lambda: main.commit(metadata=odd({"a": 1})),
        lambda: main.commit(created=True), lambda: main.commit(created=1 << 63), lambda: main.commit(created=odd("1")),
        lambda: main.staging.delete_many("ab"), lambda: main.commit(prefixes="ab"), lambda: main.log(paths="a"),
        lambda: repository.ref(odd(None)).head(), lambda: main.merge(odd(5)), lambda: main.put(odd(None), b""),
        lambda: main.staging.stage(odd({"path": ["a"]})),
        lambda: list(main.read("a", -1)), lambda: main.list("\ud800"), lambda: main.list(after="\ud800"),
    ]  # fmt: skip
    for number, act in enumerate(acts):
        with pytest.raises(Invalid):
            act()
            pytest.fail(f"act {number}")
    assert repository.setting(ProtectedBranches)[0] is None
    assert paths(repository, "main") == ["a", "b"] and main.uploads.pending() == []
    assert main.commit("one").generation == 2


def odd(value: object) -> Any:
    """A value of another type than is asked for."""
    return value
