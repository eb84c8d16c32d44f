"""Behaviours 1 to 6 and 16 to 25: staging, writes that others come between, and reads through the layers."""

from __future__ import annotations

import pytest

from millpond.errors import Conflict, Corrupt, Invalid, NotFound
from millpond.kernel.keys import starting
from millpond.versions.keyspaces import STAGED
from millpond.versions.objects.entries import Entry
from millpond.versions.objects.staged_rows import TOMBSTONE
from millpond.versions.staging.branch_head import collect_tokens
from millpond.versions.staging.writes import Condition
from tests.version_sites import (
    Place,
    entry,
    make,
    put,
    seal,
    staged,
    staged_rows,
    state,
    tokens_with_rows,
    tombstones,
)

# -- staged rows (1 to 6) -----------------------------------------------------------------------------


def test_1_a_change_of_what_is_not_there_changes_nothing() -> None:
    _, repository = make()
    main = repository.branch("main")
    with pytest.raises(NotFound):
        main.staging.set_metadata("none", {"a": "1"})
    with pytest.raises(Conflict):
        main.staging.link(entry("none"), if_match="x")
    assert staged_rows(main) == {}


@pytest.mark.usefixtures("processor")
def test_2_tokens_with_the_same_paths_are_independent() -> None:
    place, repository = make()
    main, side = repository.branch("main"), repository.create_branch("side", "main")
    contents = {f"k{number:04}": "1" for number in range(1_400)}
    for branch in (main, side):
        put(branch, contents)
    token = main.staging.record().staging_token
    main.reset()
    assert token not in tokens_with_rows(place.space)
    assert state(repository, "side") == contents
    assert state(repository, "main") == {}


@pytest.mark.usefixtures("processor")
def test_3_deleting_a_prefix_removes_exactly_what_begins_with_it() -> None:
    _, repository = make()
    main = repository.branch("main")
    put(main, {f"key{number:04}": "1" for number in range(2_400)})
    main.staging.delete_prefix("key1")
    left = state(repository, "main")
    assert len(left) == 1_400
    assert not any(path.startswith("key1") for path in left)


@pytest.mark.parametrize(
    ("prefix", "keys", "left"),
    [
        (b"\xff\xff\xff", [b"\xff\xff\xff\xfe", b"\xff\xff\xfe\xff", b"\xff\xff\xfd", b"\xff\xff\xff\xff"], 2),
        (b"\x01\xff\xff", [b"\x01\xfe\xff\xff", b"\x01\xff", b"\x01\xff\xff", b"\x01\xff\xff\xff", b"\x02\xff"], 3),
        (b"\x01\xff", [b"\x00", b"\x01\xfe", b"\x02"], 3), (b"\x00\xff\xff\xff", [b"\x00\xff\xff", b"\x01"], 2),
        (b"", [b"\x00", b"a", b"\xff"], 0),
    ],
)  # fmt: skip
def test_4_a_prefix_is_compared_byte_by_byte(prefix: bytes, keys: list[bytes], left: int) -> None:
    keys_within = starting_bytes(prefix)
    assert sum(not keys_within(key) for key in keys) == left


def starting_bytes(prefix: bytes) -> object:
    within = starting(prefix)
    return within.holds


@pytest.mark.parametrize(
    ("prefix", "left"),
    [
        ("\U0010ffff", ["a", "a\x00", "a\x01", "a\x01\x01", "b\U0010ffff"]),
        ("a\x00", ["a", "a\x01", "a\x01\x01", "b\U0010ffff", "\U0010ffff", "\U0010ffff\U0010ffff"]),
        ("a\x01", ["a", "a\x00", "b\U0010ffff", "\U0010ffff", "\U0010ffff\U0010ffff"]),
        ("a\x02", ["a", "a\x00", "a\x01", "a\x01\x01", "b\U0010ffff", "\U0010ffff", "\U0010ffff\U0010ffff"]),
        ("b\U0010ffff", ["a", "a\x00", "a\x01", "a\x01\x01", "\U0010ffff", "\U0010ffff\U0010ffff"]),
        ("", []),
    ],
)
@pytest.mark.parametrize("committed", [False, True])
def test_4_deleting_a_prefix_of_odd_paths(prefix: str, left: list[str], *, committed: bool) -> None:
    _, repository = make()
    main = repository.branch("main")
    odd = ["a", "a\x00", "a\x01", "a\x01\x01", "b\U0010ffff", "\U0010ffff", "\U0010ffff\U0010ffff"]
    put(main, dict.fromkeys(odd, "1"))
    if committed:
        main.commit("odd")
    main.staging.delete_prefix(prefix)
    assert sorted(state(repository, "main")) == sorted(left)


@pytest.mark.usefixtures("processor")
@pytest.mark.parametrize("size", [1, 2, 99, 1_000, 2_500])
def test_5_listings_are_whole_and_sorted_whatever_the_page(size: int) -> None:
    _, repository = make()
    main = repository.branch("main")
    paths = [f"{number:04}" for number in range(size)]
    put(main, dict.fromkeys(paths, "1"))
    for amount in {1 if size < 100 else 64, 100, size, size + 1}:
        found: list[str] = []
        after = ""
        while True:
            page = main.list(after=after, amount=amount)
            found += [item.path for item in page.results]
            after = page.next_offset
            if not page.has_more:
                break
        assert found == paths
    assert [item.path for item in main.list(after="0060a", amount=1).results] == (["0061"] if size > 61 else [])


def test_6_tombstones_are_staged_and_entries_without_bytes_are_legal() -> None:
    _, repository = make()
    main = repository.branch("main")
    put(main, {"a": "1"})
    main.commit("a")
    main.delete("a")
    assert staged_rows(main) == {"a": TOMBSTONE}
    with pytest.raises(NotFound):
        main.stat("a")
    main.staging.link(Entry("empty", "", 0, 0, ""))
    assert main.stat("empty") == Entry("empty", "", 0, 0, "")
    with pytest.raises(Invalid):
        main.staging.link(Entry("", "data/1"))
    assert staged_rows(main).keys() == {"a", "empty"}


# -- writes that others come between (16 to 19) -------------------------------------------------------


@pytest.mark.usefixtures("processor")
@pytest.mark.parametrize("times", [1, 2, 40])
def test_16_17_a_write_during_commits_is_in_the_token_that_is_current(times: int) -> None:
    place, repository = make()
    main = repository.branch("main")
    other = place.repositories().get("behaviours").branch("main")
    put(main, {"base": "1"})
    main.commit("base")

    def commit() -> None:
        before, place.space.before = place.space.before, []
        other.staging.link(entry(f"other{len(before)}"))
        other.commit("other")
        place.space.before = before

    place.space.before = [commit] * times
    main.staging.link(entry("a"), if_absent=True)  # each commit gives it another index to look at
    assert place.space.before == []
    assert "a" in staged_rows(main)
    assert staged(main) == {"a": "added"}


def test_6_11_16_a_conditional_put_is_made_once_whatever_comes_between() -> None:
    place, repository = make()
    main = repository.branch("main")

    def sealing() -> None:
        place.space.before = []
        seal(main)

    place.space.before = [sealing]
    main.staging.link(entry("a"), if_absent=True)
    with pytest.raises(Conflict):
        main.staging.link(entry("a", "2"), if_absent=True)
    assert state(repository, "main") == {"a": "1"}


def test_18_a_branch_that_is_deleted_during_a_write_is_not_found() -> None:
    place, repository = make()
    side = repository.create_branch("side", "main")

    def delete() -> None:
        place.space.before = []
        repository.delete_branch("side")

    place.space.before = [delete]
    with pytest.raises(NotFound) as error:
        side.put("a", b"1")
    assert error.value.kind == "branch_not_found"
    assert tokens_with_rows(place.space) == set()


@pytest.mark.parametrize("compacted", [False, True])
@pytest.mark.parametrize("committed", [None, "c"])
@pytest.mark.parametrize("there", [None, "s", "tombstone"])
@pytest.mark.parametrize("condition", [Condition(absent=True), Condition(checksum="s"), Condition(checksum="c")])
def test_19_a_condition_sees_the_staged_entry_else_the_one_below(
    condition: Condition, there: str | None, committed: str | None, *, compacted: bool
) -> None:
    _, repository = make()
    main = repository.branch("main")
    put(main, {"other": "1"})
    if committed:
        put(main, {"k": committed})
    main.staging.compact() if compacted else main.commit("base")
    if there == "tombstone":
        main.delete("k")
    elif there:
        put(main, {"k": there})
    visible = None if there == "tombstone" else there or committed
    holds = visible is None if condition.absent else visible == condition.checksum
    link = {"if_absent": True} if condition.absent else {"if_match": condition.checksum}
    if holds:
        main.staging.link(entry("k", "new"), **link)  # type: ignore[arg-type]
    else:
        with pytest.raises(Conflict) as error:
            main.staging.link(entry("k", "new"), **link)  # type: ignore[arg-type]
        assert error.value.kind == "precondition_failed"
    assert state(repository, "main").get("k") == ("new" if holds else visible)


# -- reads (20 to 25) ---------------------------------------------------------------------------------


@pytest.mark.parametrize("compacted", [False, True])
def test_20_a_listing_is_staged_over_committed(*, compacted: bool) -> None:
    _, repository = make()
    main = repository.branch("main")
    put(main, {"foo": "committed", "both": "committed"})
    main.staging.compact() if compacted else main.commit("base")
    put(main, {"bar": "staged", "both": "staged"})
    assert state(repository, "main") == {"bar": "staged", "both": "staged", "foo": "committed"}
    assert [item.path for item in main.list().results] == ["bar", "both", "foo"]


def test_21_the_newest_layer_that_holds_a_path_counts() -> None:
    _, repository = make()
    main = repository.branch("main")
    put(main, {"staged": "committed"})
    main.commit("base")
    put(main, {"foo": "B", "staged": "older"})
    seal(main)
    put(main, {"staged": "A"})
    assert main.stat("staged").checksum == "A"
    seal(main)
    put(main, {"foo": "Z"})
    seal(main)
    assert (main.stat("staged").checksum, main.stat("foo").checksum) == ("A", "Z")


@pytest.mark.parametrize("committed", [False, True])
def test_22_a_tombstone_of_a_sealed_layer_hides_what_is_below(*, committed: bool) -> None:
    _, repository = make()
    main = repository.branch("main")
    if committed:
        put(main, {"k": "C"})
        main.commit("base")
    put(main, {"k": "B"})
    seal(main)
    main.delete("k")
    assert tombstones(main) == ["k"]
    seal(main)
    with pytest.raises(NotFound):
        main.stat("k")
    assert state(repository, "main") == {}


def test_23_a_damaged_row_is_no_missing_entry() -> None:
    place, repository = make()
    main = repository.branch("main")
    put(main, {"k": "1"})
    key = STAGED[main.staging.record().staging_token].pack("k")
    place.space.write(lambda tx: tx.put(key, b"\x01damaged"))
    for read in (lambda: main.stat("k"), lambda: main.list(), lambda: main.diff(), lambda: main.commit("k")):
        with pytest.raises(Corrupt) as error:
            read()
        assert error.value.kind == "staged_damaged"


def test_24_a_compacted_index_stands_for_the_commit() -> None:
    place = Place()
    main = place.repositories().create("behaviours").branch("main")
    put(main, {"gone": "1", "old": "1"})
    main.commit("base")
    main.delete("gone")
    put(main, {"compacted": "1", "both": "compacted", "hidden": "1"})
    main.staging.compact()
    put(main, {"both": "staged"})
    main.delete("hidden")
    main = place.repositories().get("behaviours").branch("main")  # with nothing cached
    record = main.staging.record()
    place.ranges_read()
    assert main.stat("compacted").checksum == "1"
    assert main.stat("both").checksum == "staged"
    for path in ("hidden", "gone", "never"):
        with pytest.raises(NotFound):
            main.stat(path)
    head = main.head().tree
    reads = [name for store in place.stores.values() for name in store.reads]
    assert any(str(record.compacted_index) in name for name in reads)
    assert not any(head in name for name in reads), "the commit was not consulted"


@pytest.mark.parametrize("compacted", [False, True])
def test_25_what_is_equal_to_the_commit_is_not_staged(*, compacted: bool) -> None:
    _, repository = make()
    main = repository.branch("main")
    put(main, {"same": "1", "other": "1"})
    main.commit("base")
    put(main, {"same": "1", "other": "2", "new": "1"})
    if compacted:
        main.staging.compact()
    assert staged(main) == {"new": "added", "other": "changed"}


def test_sweeping_drops_the_rows_of_dropped_tokens_alone() -> None:
    place = Place()
    repository = place.repositories(later=True).create("behaviours")
    main = repository.branch("main")
    put(main, {"a": "1"})
    main.commit("a")
    put(main, {"b": "1"})
    assert len(tokens_with_rows(place.space)) == 2
    assert collect_tokens(place.space) == 1
    assert tokens_with_rows(place.space) == {main.staging.record().staging_token}
