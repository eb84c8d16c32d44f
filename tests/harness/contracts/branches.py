"""The contract of branches: objects, staging, commits, merges. See `repositories.py`."""

from __future__ import annotations

from array import array
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
import pytest

from millpond.errors import Conflict, Invalid, MillpondError, NotFound
from millpond.versions.diffs import DIFFERENCES
from millpond.versions.imports.locations import PrefixLocation
from millpond.versions.merges import MergeConflict, Resolution, Take
from millpond.versions.objects.entries import ENTRIES, entries_of
from millpond.versions.paging import CommonPrefix

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from millpond.maps.protocols import PondLike
    from millpond.versions.protocols import BranchLike, RepositoryLike

__all__ = ("BranchesContract", "raised")

E = TypeVar("E", bound=MillpondError)
ODD = ("ä/ö ü", "a?b=c&d", "100%", "#1", "a+b", "//x", "..", "a//b", "\x01", '"quoted"', "日本/語")
"""Paths that no URL holds as they are."""


def raised(kind: type[E], act: Callable[[], object]) -> E:
    """The error that an act raises."""
    with pytest.raises(kind) as caught:
        act()
    return caught.value


class BranchesContract:
    """The promises of `BranchLike`, `ReferenceLike` and `StagingLike`."""

    @pytest.fixture
    def flights(self, pond: PondLike) -> Iterator[RepositoryLike]:
        """A new repository."""
        name = f"flights-{pond.clock.random_id()}"
        yield pond.repositories.create(name)
        pond.repositories.delete(name)

    @pytest.fixture
    def main(self, flights: RepositoryLike) -> BranchLike:
        """Its only branch."""
        return flights.branch("main")

    # -- objects --------------------------------------------------------------------------------------

    def test_bytes_come_back_whole_and_in_pieces(self, main: BranchLike) -> None:
        body = bytes(range(256)) * 12_000  # three megabytes: streamed in pieces
        pieces = (body[start : start + 500_000] for start in range(0, len(body), 500_000))
        entry = main.put("a/ä", pieces, content_type="text/plain; charset=utf-8", metadata={"Größe": "ü\n"})
        assert main.stat("a/ä") == entry
        assert (entry.size, entry.content_type) == (len(body), "text/plain; charset=utf-8")
        assert entry.metadata == {"Größe": "ü\n"}
        assert main.get("a/ä") == body
        for start, stop in ((0, 1), (5, 5), (len(body) - 3, None), (1_000, 2_500_000), (10, len(body) + 10)):
            assert b"".join(main.read("a/ä", start, stop)) == body[start:stop]
        assert b"".join(main.read("a/ä", len(body) + 1)) == b""
        assert main.put("empty", b"").size == 0
        assert main.get("empty") == b""
        assert raised(NotFound, lambda: main.read("nope")).kind == "entry_not_found"
        assert raised(Invalid, lambda: main.put("", b"")).kind == "path_invalid"
        assert raised(Invalid, lambda: main.put("\udce4", b"")).kind == "path_invalid"

    def test_bodies_are_bytes_of_any_form(self, main: BranchLike) -> None:
        numbers: Any = array("i", [1, 2, 3])
        whole, some = bytes(numbers), memoryview(numbers)[::2]
        wholes: list[Any] = [memoryview(numbers), bytearray(whole), [numbers], [bytearray(whole[:5]), b"", whole[5:]]]
        bodies = [(body, whole) for body in wholes] + [(body, bytes(some)) for body in (some, [some], [b"", some])]
        for body, stored in bodies:
            assert (main.put("a", body).size, main.get("a")) == (len(stored), stored)
        wrongs: list[Any] = ["text", ["text"], 5, [5], None, Path("text")]
        for wrong in wrongs:
            assert raised(Invalid, partial(main.put, "a", wrong)).kind == "object_body"
        assert main.get("a") == bytes(some), "what was refused changed nothing"

    @pytest.mark.parametrize("after", [b"longer than before", b"0", b""])
    def test_what_is_read_is_of_one_object(self, main: BranchLike, after: bytes) -> None:
        main.put("a", b"before")
        chunks, tail = main.read("a"), main.read("a", 3)
        main.put("a", after)
        assert b"".join(chunks) in (b"before", after)
        assert b"".join(tail) in (b"ore", after[3:])

    def test_paths_are_any_text(self, main: BranchLike) -> None:
        for path in ODD:
            main.put(path, path.encode())
        found = [entry.path for entry in main.list().results]
        assert found == sorted(ODD, key=str.encode)
        for path in ODD:
            assert main.get(path) == path.encode()
            assert main.delete(path)
        assert not main.list().results

    def test_writes_hold_to_their_conditions(self, main: BranchLike) -> None:
        first = main.put("a", b"1", if_absent=True)
        assert raised(Conflict, lambda: main.put("a", b"2", if_absent=True)).kind == "precondition_failed"
        assert raised(Conflict, lambda: main.put("a", iter([b"2"]), if_match="0")).kind == "precondition_failed"
        main.put("a", b"2", if_match=first.checksum)
        linked = main.staging.link(first, if_match=main.stat("a").checksum)
        assert (linked, main.get("a")) == (first, b"1")
        assert raised(Conflict, lambda: main.staging.link(first, if_absent=True)).kind == "precondition_failed"

    def test_listings_are_paged(self, flights: RepositoryLike, main: BranchLike) -> None:
        paths = [f"{letter}/{number:02}" for letter in "abc" for number in range(20)] + ["z"]
        main.staging.stage(pa.table({"path": paths, "address": ["data/x"] * len(paths)}))
        page = main.list(amount=25)
        assert (len(page.results), page.has_more, page.next_offset) == (25, True, "b/04")
        assert [entry.path for entry in main.list(after="b/04", amount=100).results] == paths[25:]
        assert [entry.path for entry in main.list(reverse=True, amount=2).results] == ["z", "c/19"]
        tops = main.list(delimiter="/")
        assert [entry.path for entry in tops.results] == ["a/", "b/", "c/", "z"]
        assert isinstance(tops.results[0], CommonPrefix)
        batches = list(main.entries("b/", after="b/09"))
        assert batches[0].schema == ENTRIES
        assert [entry for batch in batches for entry in entries_of(batch)] == [main.stat(path) for path in paths[30:40]]
        assert not list(main.entries("nothing"))
        with pytest.raises(NotFound):
            list(flights.ref("nope").entries())

    # -- staging --------------------------------------------------------------------------------------

    def test_rows_are_staged_all_or_none(self, flights: RepositoryLike, main: BranchLike) -> None:
        count = 3_000  # more than a page, and than a call of other clients may delete
        paths = [f"p/{number:05}" for number in range(count)]
        rows = {"path": paths, "address": ["data/x"] * count, "size": list(range(count))}
        batches = pa.table(rows).to_batches(max_chunksize=700)
        assert main.staging.push(batches) == count
        assert main.staging.stage([]) == 0
        assert main.staging.delete_many(paths[:1_500]) == 1_500
        assert main.staging.delete_many(["p/00000", "p/01500"]) == 1
        assert main.staging.state().staged
        assert len(main.list(amount=10_000).results) == 1_499
        table = pa.Table.from_batches(list(main.staging.uncommitted("p/")))
        assert table.schema == DIFFERENCES
        assert table.column("path").to_pylist() == paths[1_501:]
        assert raised(Invalid, lambda: main.staging.stage(pa.table({"path": ["a"], "no": [1]}))).kind == "stage_columns"
        a_row = pa.table({"path": ["a"], "address": ["data/x"]})
        for name, values in {
            "metadata": pa.array(["hello"]), "size": pa.array([-1]), "deleted": pa.array(["x"]),
            "checksum": pa.array([b"\xff"]), "path": pa.array(["a"]),
        }.items():  # fmt: skip
            with pytest.raises(Invalid):
                main.staging.stage(a_row.append_column(name, values))
        no_text = pa.array([b"\xff"]).view(pa.string())
        for name in ("path", "address"):
            table = a_row.set_column(a_row.schema.get_field_index(name), name, no_text)
            with pytest.raises(Invalid):
                main.staging.push(table.to_batches())
        assert main.staging.stage(a_row.append_column("deleted", pa.nulls(1))) == 1
        assert main.delete("a")
        assert main.staging.copy_prefix("p/", "q/r/") == 1_499
        assert main.stat("q/r/02999").size == 2_999
        main.staging.delete_prefix("p/")
        assert not main.list("p/").results
        main.commit("q")
        assert not main.staging.state().staged
        assert main.staging.copy_prefix("q/", "s/", ref="main~1") == 0
        assert len(main.list(amount=10_000).results) == 1_499

    def test_what_is_staged_is_taken_back(self, flights: RepositoryLike, main: BranchLike) -> None:
        for path in ("a/1", "a/2", "b"):
            main.put(path, b"old")
        main.commit("old")
        flights.create_tag("v1", "main")
        for path in ("a/1", "a/2", "b", "c"):
            main.put(path, b"new")
        main.reset(path="c")
        main.reset(prefix="a/")
        assert [change.path for change in main.diff().results] == ["b"]
        main.reset()
        assert not main.diff().results
        main.staging.delete_prefix("a/")
        main.commit("gone")
        assert main.staging.restore("a/", "v1") == 2
        assert main.staging.restore("a/", "v1") == 0
        assert raised(Invalid, lambda: main.staging.reset_hard("v1")).kind == "branch_dirty"
        main.reset(prefix="")
        assert main.staging.reset_hard("v1") == flights.ref("v1").head() == main.head()
        assert main.copy("a/1", "d").size == 3
        assert main.staging.move("d", "e").path == "e" and main.get("e") == main.get("a/1")
        assert raised(NotFound, lambda: main.staging.move("d", "f")).kind == "entry_not_found"
        main.staging.move("e", "d")
        assert main.staging.set_metadata("d", {"a": "ü"}).metadata == {"a": "ü"}
        assert raised(NotFound, lambda: main.staging.set_metadata("e", {})).kind == "entry_not_found"
        done = main.staging.compact()
        state = main.staging.state()
        assert (done.done, state.sealed_layers, state.compacted_index is not None) == (True, 0, True)
        assert main.get("d") == b"old"

    def test_objects_elsewhere_are_imported(self, main: BranchLike, tmp_path: Path) -> None:
        for number in range(3):
            (tmp_path / f"{number}.csv").write_text(f"of {number}")
        imported = main.imports.commit([PrefixLocation(f"local://{tmp_path}/", "in/")], "take in", created=77)
        assert imported.entries == 3
        assert imported.commit == main.head()
        assert (main.head().message, main.head().created) == ("take in", 77)
        assert main.get("in/2.csv") == b"of 2"
        assert main.imports.stage([PrefixLocation(f"local://{tmp_path}/", "more/")]).commit is None
        assert len(main.diff().results) == 3
        assert main.stat("more/0.csv").address == f"local://{tmp_path}/0.csv"

    # -- commits --------------------------------------------------------------------------------------

    def test_commits_name_what_was_there(self, main: BranchLike) -> None:
        main.put("a", b"1")
        main.put("b/1", b"1")
        made = main.commit("Ä", committer="ann", metadata={"n": "ü"}, created=77, prefixes=["b/"])
        assert (made.message, made.committer, made.metadata, made.created) == ("Ä", "ann", {"n": "ü"}, 77)
        assert main.head() == made
        assert [change.path for change in main.diff().results] == ["a"]
        rest = main.commit()
        nothing = raised(Invalid, main.commit)
        assert (nothing.kind, nothing.values["commit"]) == ("no_changes", rest.id)
        assert main.commit("empty", allow_empty=True).parents == (rest.id,)

    def test_a_merge_is_right_or_names_its_conflicts(self, flights: RepositoryLike, main: BranchLike) -> None:
        main.put("x", b"0")
        base = main.commit("base")
        fix = flights.create_branch("fix", "main")
        for branch in (main, fix):
            branch.put("x", branch.name.encode())
            branch.commit(branch.name)
        refused = raised(MergeConflict, lambda: main.merge("fix"))
        assert (refused.paths, refused.kind, refused.values["conflicts"]) == (("x",), "merge_conflict", 1)
        assert "paths" not in refused.values
        made = main.merge("fix", "joined", committer="ann", resolutions=[Resolution(Take.SOURCE, prefix="x")])
        assert (main.get("x"), made.committer, made.message) == (b"fix", "ann", "joined")
        assert raised(Invalid, lambda: main.merge("fix")).kind == "no_changes"
        assert raised(Invalid, lambda: main.merge("fix", strategy="mine")).kind == "merge_strategy"
        assert raised(Conflict, lambda: main.revert("main")).kind == "revert_parent"
        undone = main.revert("main", parent_number=1, committer="bob", message="undo")
        assert (main.get("x"), undone.committer, undone.message) == (b"main", "bob", "undo")
        other = flights.create_branch("other", base.id)
        picked = other.cherry_pick("fix", committer="eve", metadata={"of": "fix"})
        assert (other.get("x"), picked.committer, picked.metadata["of"]) == (b"fix", "eve", "fix")
        assert raised(Invalid, lambda: other.cherry_pick("fix", parent_number=4)).kind == "parent_number"
        main.merge("other", resolutions={"x": "source"})
        assert main.get("x") == b"fix"
