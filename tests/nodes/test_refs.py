"""Branches of maps over a node: as in a folder, by the same names."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pytest

import millpond
from millpond.client.transport import Nodes
from millpond.errors import AlreadyExists, Conflict, Denied, Invalid, MillpondError, NotFound, Uncertain
from millpond.nodes.tokens import hash_token
from millpond.refs.merges import MapMergeConflict
from tests.harness.faulty_proxy import FaultyProxy, Trouble
from tests.harness.rows import canonical_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from millpond.client.pond import RemotePond
    from millpond.maps.loads.load import LoadResult
    from millpond.maps.parts.part import PartFile
    from millpond.maps.protocols import MapLike
    from tests.nodes.conftest import ClusterHere, Served


@pytest.fixture
def pond(node: Served, tmp_path: Path) -> Iterator[RemotePond]:
    with millpond.open(node.url, client_cache=str(tmp_path / "cache")) as opened:
        opened.create_map("m", kind="state", value="long", store="layers")
        yield cast("RemotePond", opened)


def put(target: Any, value: int, *keys: str, **options: object) -> LoadResult:
    return target.load([{"key": key, "value": value} for key in keys], **options)


def values(target: MapLike, *keys: str) -> list[object]:
    return target.lookup(list(keys)).to_pylist()


def test_a_branch_is_loaded_compared_and_merged(pond: RemotePond, node: Served) -> None:
    put(pond.map("m"), 1, "a", "b")
    fix = pond.branch("fix", source="main")
    loaded = put(fix.map("m"), 2, "b", "c")
    assert loaded.commit and loaded.rows == 2
    assert values(fix.map("m"), "a", "b", "c") == [1, 2, 2]
    assert values(pond.map("m"), "a", "b", "c") == [1, 1, None]
    assert fix.map("m").get("c") == 2
    assert pond.map("m").get("c") is None
    assert fix.sql("select sum(value) as total from m").to_pylist() == [{"total": 5}]
    assert sorted(fix.map("m").scan("value = 2").read_all()["key"].to_pylist()) == ["b", "c"]
    messages = [commit.message for commit in pond.refs.log("fix")]
    assert messages == [commit.message for commit in node.pond.refs.log("fix")] and messages[0] == "Load m"
    put(fix.map("m"), 2, "b", "c")
    assert len(list(pond.refs.log("fix"))) == len(messages), "the same data again is no commit"
    assert put(fix.map("m"), 5, "d", load_id="x").rows == 1
    assert put(fix.map("m"), 6, "d", load_id="x").rows == 1
    assert fix.map("m").get("d") == 5
    difference = pond.refs.diff("main", "fix", map="m")
    assert difference.select(["change", "key", "old", "new"]).to_pylist() == [
        {"change": "changed", "key": "b", "old": 1, "new": 2},
        {"change": "added", "key": "c", "old": None, "new": 2},
        {"change": "added", "key": "d", "old": None, "new": 5},
    ]
    assert fix.map("m").snapshot().lookup(["a", "d"]).to_pylist() == [1, 5]
    assert pond.map("m").snapshot().lookup(["a", "d"]).to_pylist() == [1, None]
    assert fix.map("m").snapshot().lookup(["a", "d"]).to_pylist() == [1, 5]
    fix.map("m").delete("key = 'd'")
    assert fix.map("m").info()["rows"] == 3
    fix.alter_map("m", retain="10d")
    fix.create_map("other", kind="state", value="long")
    put(fix.map("other"), 1, "z", commit=False)
    assert [opened.name for opened in fix.maps()] == ["m", "other"]
    fix.commit("staged")
    merged = fix.merge()
    assert values(pond.map("m"), "a", "b", "c") == [1, 2, 2]
    assert pond.map("other").get("z") == 1
    assert pond.at("main~1").map("m").get("b") == 1
    assert pond.history("m")["commit"][0].as_py() == merged.id
    pond.refs.restore("main~1", maps=["m"])
    assert values(pond.map("m"), "a", "b", "c") == [1, 1, None]
    assert node.pond.map("m").get("b") == 1


def test_maps_of_a_branch_are_made_copied_renamed_and_dropped(pond: RemotePond, node: Served) -> None:
    put(pond.map("m"), 1, "a")
    fix = pond.branch("fix", source="main")
    fix.catalogue.copy("m", "twin", commit=False)
    fix.catalogue.rename("m", "n")
    fix.create_map("late", kind="state", value="long", retain_by="update_time", commit=False)
    assert fix.create_map("late", kind="state", value="long", exist_ok=True).definition.retain_by == "update_time"
    put(fix.map("twin"), 2, "b")
    fix.drop_map("late", commit=False)
    assert [opened.name for opened in fix.maps()] == ["n", "twin"]
    assert [opened.name for opened in pond.at("fix").maps()] == ["late", "n", "twin"]
    with pytest.raises(NotFound):
        fix.drop_map("m")
    with pytest.raises(Invalid, match="not done at a ref"):
        fix.alter_map("n", store="shard")
    fix.commit("dropped")
    held = pond.map("m")
    fix.merge()
    assert [opened.name for opened in pond.maps()] == [opened.name for opened in node.pond.maps()] == ["n", "twin"]
    assert (values(pond.map("n"), "a", "b"), values(pond.map("twin"), "a", "b")) == ([1, None], [1, 2])
    with pytest.raises(NotFound):
        held.get("a")
    pond.refs.restore("main~1", maps=["m"])
    assert pond.map("m").get("a") == held.get("a") == 1
    assert not node.pond.verify(full=True).problems


def test_conflicts_come_with_their_keys(pond: RemotePond) -> None:
    put(pond.map("m"), 1, "a")
    fix = pond.branch("fix", source="main")
    put(fix.map("m"), 2, "a")
    put(pond.map("m"), 3, "a")
    with pytest.raises(MapMergeConflict) as refused:
        fix.merge()
    assert refused.value.paths == ("maps/m/a",)
    fix.merge(strategy="source-wins")
    assert pond.map("m").get("a") == 2


def test_errors(pond: RemotePond) -> None:
    with pytest.raises(Invalid, match="main is the pond"):
        pond.branch("main")
    with pytest.raises(NotFound):
        pond.branch("nope")
    pond.branch("fix", source="main")
    with pytest.raises(AlreadyExists):
        pond.branch("fix", source="main")
    with pytest.raises(NotFound):
        pond.at("nope")
    with pytest.raises(Invalid) as refused:
        put(pond.at("main").map("m"), 1, "a")
    assert refused.value.kind == "ref_read_only"
    fix = pond.branch("fix")
    opened = fix.map("m")
    pond.refs.delete_branch("fix")
    with pytest.raises(NotFound):
        opened.get("a")


RIGHTS: dict[str, dict[str, list[str]]] = {
    "admin": {"admin": ["*"]}, "reader": {"read": ["m"]}, "looker": {"read": ["m", "repo:pond"]},
    "fixer": {"write": ["m", "repo:pond/fix*"]}, "merger": {"write": ["m", "repo:pond"]},
    "repository": {"read": ["m"], "write": ["repo:pond"]},
}  # fmt: skip
TOKENS = [{"name": name, "sha256": hash_token(name), "rights": rights} for name, rights in RIGHTS.items()]


@pytest.fixture
def guarded(serve: Callable[..., Served]) -> Served:
    served = serve(server_tokens=TOKENS)
    for name in ("m", "secret"):
        served.pond.create_map(name, kind="state", value="long", store="layers")
        put(served.pond.map(name), 1, "a")
    fix = served.pond.branch("fix", source="main")
    for name in ("m", "secret"):
        put(fix.map(name), 2, "a")
    return served


def as_token(node: Served, name: str) -> RemotePond:
    return cast("RemotePond", millpond.open(node.url, client_token=name))


def refused(act: Callable[[], object]) -> str:
    with pytest.raises(MillpondError) as caught:
        act()
    return caught.value.kind


def test_a_ref_needs_a_right_on_the_repository_of_maps_besides(guarded: Served) -> None:
    with as_token(guarded, "reader") as pond:
        assert pond.map("m").get("a") == 1
        for query in ("branch=fix", "ref=fix", "%62ranch=fix", "branch=fix&branch=fix"):
            for path in (f"/v1/maps?{query}", f"/v1/maps/m?{query}", f"/v1/maps/m/get?key=a&{query}"):
                answer = guarded.get(path, headers={"Authorization": "Bearer reader"})
                assert (answer.status, answer.json()["kind"]) == (403, "right_missing"), path
        assert refused(lambda: pond.branch("fix")) == "right_missing"
        assert refused(lambda: pond.refs.diff("main", "fix")) == "right_missing"
    with as_token(guarded, "looker") as pond:
        fix = pond.branch("fix")
        assert [opened.name for opened in fix.maps()] == ["m"]
        assert fix.map("m").get("a") == 2
        assert pond.refs.diff("main", "fix")["map"].to_pylist() == ["m"]
        assert refused(lambda: pond.refs.diff("main", "fix", map="secret")) == "right_missing"
        assert refused(lambda: pond.sql("from map_diff('secret', 'main', 'fix')")) == "right_missing"
        assert refused(lambda: pond.history("secret")) == "right_missing"
        assert refused(lambda: fix.map("secret")) == "right_missing"
        assert "secret" not in repr(refused(lambda: fix.sql("select * from secret")))
        assert refused(lambda: put(fix.map("m"), 3, "b")) == "right_missing"
        assert refused(lambda: pond.refs.create_branch("other")) == "right_missing"
        assert refused(lambda: pond.refs.restore("fix", "fix", maps=["m"])) == "right_missing"


def test_loads_and_changes_of_a_branch_need_to_write_both(guarded: Served) -> None:
    with as_token(guarded, "fixer") as pond:
        fix = pond.branch("fix")
        assert put(fix.map("m"), 3, "b").rows == 1
        assert refused(lambda: fix.map("secret")) == "right_missing"
        assert refused(lambda: fix.map("m").delete("key = 'b'")) == "right_missing", "that needs admin on main as well"
        assert refused(lambda: pond.refs.merge("fix", "main")) == "right_missing"
        pond.refs.create_branch("fix-2", "main")
        assert refused(lambda: put(pond.branch("other", source="main").map("m"), 1, "z")) == "right_missing"
    with as_token(guarded, "repository") as pond:
        assert refused(lambda: put(pond.branch("fix").map("m"), 3, "b")) == "right_missing"


def test_a_merge_into_main_changes_only_maps_that_its_token_may_write(guarded: Served) -> None:
    for name in ("repository", "merger"):
        with as_token(guarded, name) as pond:
            for act in (
                lambda pond=pond: pond.refs.merge("fix"), lambda pond=pond: pond.refs.cherry_pick("fix"),
                lambda pond=pond: pond.refs.restore("fix"),
            ):  # fmt: skip
                assert refused(act) == "right_missing", name
    assert guarded.pond.map("secret").get("a") == 1
    put(guarded.pond.map("secret"), 7, "a")
    with as_token(guarded, "merger") as pond:
        pond.refs.create_branch("mine", "main")
        put(pond.branch("mine").map("m"), 5, "a")
        pond.refs.merge("mine")
        assert pond.map("m").get("a") == 5
        pond.refs.restore("main~2", maps=["m"])
        assert pond.map("m").get("a") == 1
        with pytest.raises(Denied) as caught:
            pond.refs.merge("main", "fix")
        assert caught.value.values["on"] == "secret", "its conflicts would name keys"
    assert guarded.pond.map("secret").get("a") == 7


@pytest.fixture
def line(node: Served, pond: RemotePond) -> Iterator[FaultyProxy]:
    """The line between the pond and its node, on which things may happen."""
    with FaultyProxy(int(node.url.rpartition(":")[2])) as opened:
        pond.nodes.connections[:] = Nodes(opened.url, pond.settings).connections
        yield opened


@pytest.mark.parametrize("whole", [True, False], ids=["one request", "several"])
def test_a_load_on_a_branch_whose_answer_is_lost_is_entered_once(
    pond: RemotePond, line: FaultyProxy, node: Served, whole: bool
) -> None:
    fix = pond.branch("fix", source="main")
    put(fix.map("m"), 1, "a")
    pond.nodes.take_whole_loads = whole
    cases: list[dict[str, Any]] = [{}, {"load_id": "mine"}, {"commit": False}]
    for options in cases:
        before, commits = fix.map("m").info()["version"], len(list(pond.refs.log("fix")))
        trouble = line.trouble(Trouble("cut", match=b"/v1/loads", down=True))
        result = put(fix.map("m"), 2, "a", **options)
        assert trouble.struck.is_set() and result.rows == 1
        assert bool(result.commit) is options.get("commit", True)
        assert len(list(pond.refs.log("fix"))) == commits + options.get("commit", 1)
        assert fix.map("m").info()["version"] == before + 1
        put(node.pond.branch("fix").map("m"), 1, "a")
    assert put(fix.map("m"), 9, "a", load_id="mine").commit, "it is the commit of then"
    assert fix.map("m").get("a") == 1


@pytest.mark.parametrize("whole", [True, False], ids=["one request", "several"])
def test_a_load_id_is_one_of_main_and_all_branches(pond: RemotePond, tmp_path: Path, whole: bool) -> None:
    pond.nodes.take_whole_loads = whole
    other = pond.create_map("other", kind="state", value="long", store="layers")
    fix, file = pond.branch("fix", source="main"), tmp_path / "rows.csv"
    file.write_text("key,value\na,1\n")
    assert fix.load_files(file, "m", load_id="one").commit == fix.load_files(file, "m", load_id="one").commit
    assert [pond.load_files(file, "m", load_id="two").rows for _ in range(2)] == [1, 1]
    cases: list[tuple[str, Callable[[], object]]] = [
        ("one", lambda: pond.load_files(file, "m", load_id="one")),
        ("one", lambda: fix.load_files(file, "other", load_id="one")),
        ("two", lambda: fix.load_files(file, "m", load_id="two")),
        ("two", lambda: pond.load_files(file, "other", load_id="two")),
    ]
    for load_id, again in cases:
        with pytest.raises(Conflict, match=f"of other maps.*load={load_id} "):
            again()
    assert (pond.map("m").get("a"), other.get("a")) == (1, None)
    pond.loading.void("three")
    assert fix.load_files(file, "m", load_id="three").rows == 0
    assert sum(commit.message.startswith("Load m") for commit in pond.refs.log("fix")) == 1
    with pytest.raises(Invalid) as refused:
        fix.load_files(file, "m", load_id="four", commit=False)
    assert refused.value.kind == "stage_load_id"


def test_a_large_load_goes_on_where_a_connection_was_lost(pond: RemotePond, line: FaultyProxy) -> None:
    texts = [hashlib.sha256(str(number).encode()).hexdigest() for number in range(150_000)]
    large = pond.create_map("large", kind="state", value="string", store="layers")
    table = pa.table({"key": texts, "value": texts})
    large.load(table)
    pond.branch("fix", source="main")
    fix = pond.branch("fix").map("large")
    fix.delete("key < '8'")
    trouble = line.trouble(Trouble("cut", match=b"PUT /v1/parts/", after=5_000_000))
    assert fix.load(table, load_id="again").rows == 150_000
    assert trouble.struck.is_set()
    assert fix.info()["rows"] == 150_000


def test_a_merge_whose_answer_is_lost_is_uncertain(pond: RemotePond, line: FaultyProxy) -> None:
    fix = pond.branch("fix", source="main")
    put(fix.map("m"), 1, "a")
    line.trouble(Trouble("cut", match=b"/merge/", down=True))
    with pytest.raises(Uncertain):
        fix.merge()
    assert pond.map("m").get("a") == 1, "it was made: whoever looks sees it"
    line.trouble(Trouble("cut", match=b"/v1/refs/restore", down=True))
    with pytest.raises(Uncertain):
        pond.refs.restore("main~1", maps=["m"])
    assert pond.map("m").get("a") is None


def test_a_map_on_a_branch_is_another_than_that_of_its_name_on_main(pond: RemotePond) -> None:
    put(pond.map("m"), 1, "a")
    fix = pond.branch("fix", source="main")
    on_branch, dropped = fix.map("m"), pond.map("m")
    pond.drop_map("m")
    pond.create_map("m", kind="state", value="long", store="layers")
    put(pond.map("m"), 7, "a")
    assert (on_branch.get("a"), fix.map("m").get("a"), pond.map("m").get("a")) == (1, 1, 7)
    assert (values(on_branch, "a"), values(pond.map("m"), "a")) == ([1], [7])
    assert on_branch.snapshot().lookup(["a"]).to_pylist() == [1]
    put(on_branch, 2, "b")
    assert values(fix.map("m"), "a", "b") == [1, 2]
    with pytest.raises(NotFound) as gone:
        dropped.get("a")
    assert gone.value.kind == "map_dropped"
    pond.refs.reset("fix", "main")
    with pytest.raises(NotFound) as gone:
        on_branch.get("a")
    assert gone.value.kind == "map_dropped"
    with pytest.raises(Conflict) as other:
        put(on_branch, 3, "a")
    assert other.value.kind == "map_incarnation"
    assert fix.map("m").get("a") == 7


def test_nodes_that_replicate_have_no_branches(cluster: ClusterHere) -> None:
    with millpond.open(cluster.url) as opened:
        pond = cast("RemotePond", opened)
        for act in (
            lambda: pond.branch("fix", source="main"), lambda: pond.at("main"), lambda: pond.history("m"),
            lambda: pond.refs.merge("a", "main"),
        ):  # fmt: skip
            with pytest.raises(Invalid) as refused:
                act()
            assert refused.value.kind == "refs_place"
        answer = cluster[0].get("/v1/maps/m/get?key=a&branch=fix")
        assert answer.json()["kind"] == "refs_place"
        answer = cluster[0].get("/v1/maps?branch=fix&ref=main")
        assert answer.json()["kind"] == "ref_twice"


def test_what_a_branch_or_a_node_cannot_have_is_said_by_name(
    pond: RemotePond, node: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    fix = pond.branch("fix", source="main")
    fix.map("m").load([{"key": f"k{number}", "value": number} for number in range(1_000)])
    by_kind: dict[str, Callable[[], object]] = {
        "stage_load_id": lambda: fix.loading.commit([part_of(pond)], stream=("query", 1), commit=False),
        "stream_epoch": lambda: fix.loading.commit([part_of(pond)], stream=("query", 1 << 40)),
        "request_invalid": lambda: pond.refs.diff("main", "fix", limit=0),
        "map_not_found": lambda: pond.refs.diff("main", "fix", map="nope"),
        "ref_not_found": lambda: pond.refs.diff("main", "nope"),
        "reset_main": lambda: pond.refs.reset("main", "main~1"),
        "branch_name": lambda: pond.branch("../x", source="main"),
        "ref_invalid": lambda: pond.at("main~~x"),
    }
    for kind, act in by_kind.items():
        assert refused(act) == kind
    for act in (fix.map("m").compact, lambda: fix.map("m").snapshot(keys=("a", "b")), lambda: fix.map("m").alerts):
        assert refused(act) == "ref_unsupported"
    answer = node.get("/v1/maps/m/snapshot?entry=1&branch=fix")
    assert answer.json()["kind"] == "ref_unsupported", "an entry of the log is one of main"
    for path in ("branch=..%2Fx", "branch=", "ref=", "ref=%00", "branch=fix%00", "branch=main", "ref=" + "x" * 2_000):
        answer = node.get(f"/v1/maps/m/get?key=a&{path}")
        assert answer.status in (400, 404) and "kind" in answer.json(), (path, answer.body)
    monkeypatch.setattr("millpond.server.routes.refs.DIFF_BYTES_MAX", 200)
    assert refused(lambda: pond.refs.diff("main", "fix")) == "answer_too_large", "all keys were compared at once"
    assert pond.refs.diff("main", "fix", limit=3).num_rows == 3


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Differences of a range, and no fewer, are a page."""
    monkeypatch.setattr("millpond.server.routes.refs.DIFF_BYTES_MAX", 1_000)
    monkeypatch.setattr("millpond.refs.diffs.KEYS_PAGES_MAX", 10_000)
    monkeypatch.setattr("millpond.maps.layered.differences.KEYS_AT_ONCE", 20)


def in_order(table: pa.Table) -> pa.Table:
    return table.sort_by([(name, "ascending") for name in table.column_names if name not in ("old", "new")])


@pytest.mark.usefixtures("small_pages")
def test_differences_by_pages_are_those_of_a_folder(pond: RemotePond, node: Served) -> None:
    pond.create_map("t", kind="temporal_state", value="temp double, code string", store="layers")
    pond.create_map("r", kind="temporal_ranged_state", value="long", store="layers")
    pond.create_map("s", kind="session", store="layers")
    pond.create_map("gone", kind="state", value="long", store="layers")
    keys = [f"k{number:05}" for number in range(30_000)]
    days = [f"2026-01-{day:02}T00:00Z" for day in range(1, 29)]

    def load(target: Any, keys: list[str], value: int, **options: Any) -> None:
        target.map("m").load({"key": keys, "value": [value] * len(keys)}, **options)
        keys = keys[::10]
        many, times = [key for key in keys for _ in range(2)], days[:2] * len(keys)
        numbers = [int(key[1:]) for key in many]
        target.map("t").load({"key": many, "effective_time": times, "temp": [value] * len(many),
                              "code": ["x"] * len(many)}, **options)  # fmt: skip
        target.map("r").load({"key_start": numbers, "key_end": numbers, "effective_time": times,
                              "value": [value] * len(many)}, **options)  # fmt: skip
        target.map("s").load({"key": many, "start": days[value : value + 2] * len(keys),
                              "end": days[value + 2 : value + 4] * len(keys)}, **options)  # fmt: skip

    load(pond, keys[:20_000], 1)
    put(pond.map("gone"), 1, *keys[:100])
    fix = pond.branch("fix", source="main")
    load(fix, keys[10_000:], 2)
    fix.drop_map("gone")
    fix.create_map("gone", kind="temporal_state", value="string")
    fix.map("gone").load({"key": keys[:9], "effective_time": days[:1] * 9, "value": ["x"] * 9})
    load(fix, keys[:50], 3, commit=False)
    pond.map("m").delete("key < 'k00020'")
    sides: list[tuple[str, str | None, bool]] = [("main", "fix", False), ("main", "fix", True), ("fix", "main", True),
                                                 ("fix", None, False)]  # fmt: skip
    for left, right, dots in sides:
        for name in (None, "m", "T", "r", "s", "gone"):
            whole = node.pond.refs.diff(left, right, map=name, three_dots=dots)
            assert pond.refs.diff(left, right, map=name, three_dots=dots).equals(whole), (left, right, dots, name)
            if name is not None:
                refs = ", ".join(f"'{ref}'" for ref in (name, left, right) if ref)
                call = f"map_diff({refs}, three_dots := {str(dots).lower()})"
                text = f"select * from {call} a semi join (select map, change from {call}) b using (map, change)"
                found = pond.sql(text)  # read twice
                assert in_order(found.cast(whole.schema)).equals(in_order(whole)), call
        count = node.pond.refs.diff(left, right, three_dots=dots).num_rows
        assert pond.refs.diff(left, right, three_dots=dots, limit=5_000).num_rows == min(5_000, count)


@pytest.mark.usefixtures("small_pages")
def test_pages_of_a_difference_are_of_two_states(pond: RemotePond, node: Served) -> None:
    keys = [f"k{number:05}" for number in range(20_000)]
    pond.create_map("t", kind="state", value="long", store="layers")
    fix = pond.branch("fix", source="main")
    put(fix.map("m"), 2, *keys)
    put(fix.map("t"), 2, *keys[:9])

    def page(**query: str) -> pa.Table:
        parts = "&".join(f"{name}={text}" for name, text in query.items())
        answer = node.get(f"/v1/refs/diff?{parts}")
        assert answer.status == 200, answer.body
        return pa.ipc.open_stream(answer.body).read_all()

    whole, first = pond.refs.diff("main", "fix", map="m"), page(left="main", right="fix", map="m")
    put(fix.map("m"), 9, *keys[:100])
    said = {name.decode(): text.decode() for name, text in first.schema.metadata.items()}
    rows = first.to_pylist()
    while "bookmark" in said:
        following = page(map="m", **said)
        assert following.num_rows < len(keys)
        rows += following.to_pylist()
        said = {name.decode(): text.decode() for name, text in following.schema.metadata.items()}
    assert sorted(rows, key=lambda row: row["key"]) == whole.to_pylist(), "what was loaded meanwhile is not in it"
    mark = page(left="main", right="fix", map="m").schema.metadata[b"bookmark"].decode()
    for query in (f"left=main&right=fix&map=t&bookmark={mark}", "left=main&right=fix&map=m&bookmark=x"):
        answer = node.get(f"/v1/refs/diff?{query}")
        assert (answer.status, answer.json()["kind"]) == (400, "search_bookmark"), query


def part_of(pond: RemotePond) -> PartFile:
    """A part of one row."""
    writer = pond.part_writer("m")
    writer.write(canonical_of(pond.map("m").definition, [(("a",), 1)]))
    (part,) = writer.finish()
    return part


def test_main_is_answered_where_nobody_names_a_ref(pond: RemotePond, node: Served) -> None:
    """Quick answers, and those from snapshots that are open, are about main; a key may be called as a ref is."""
    sharded = pond.create_map("s", kind="state", value="long", store="shard")
    put(sharded, 1, "branch=fix", "ref=main~1")
    put(pond.map("m"), 1, "a", "branch=fix")
    pond.branch("fix", source="main")
    put(pond.branch("fix").map("m"), 2, "a", "branch=fix")
    for _ in range(3):
        assert node.get("/v1/maps/s/get?key=branch%3Dfix").json()["value"] == 1
        assert node.get("/v1/maps/s/get?key=a&branch=fix").json()["kind"] == "refs_store"
        assert node.get("/v1/maps/m/get?key=branch%3Dfix").json()["value"] == 1
        assert node.get("/v1/maps/m/get?key=branch%3Dfix&branch=fix").json()["value"] == 2
        assert values(pond.branch("fix").map("m"), "a") == [2]
        assert values(pond.map("m"), "a") == [1]
    assert (sharded.get("branch=fix"), sharded.get("ref=main~1")) == (1, 1)
