"""Pages of maps: where loads came from, maps as they are on branches and were at refs, aggregates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.maps.log.log import trim_whole
from millpond.nodes.tokens import hash_token
from millpond.server.console import inventory, key_differences, versions
from millpond.server.console.tables import newest_rows
from tests.nodes.conftest import BEGIN, ClusterHere, Served
from tests.nodes.console_pond import SCRIPT
from tests.nodes.test_console_actions import TOKENS, Visitor, went_to


def test_the_source_of_a_load_is_told_when_the_log_is_gone(serve: Callable[..., Served]) -> None:
    node = serve(events_reports=True)
    ours = node.pond.create_map("ours", kind="state", value="double", store="layers")
    for source in ("first.csv", SCRIPT):
        ours.load([{"key": source, "value": 1.0}], source=source)
    trim_whole(node.pond.space, node.pond.log.position()[0] + 1)

    def sources() -> list[str]:
        return [load["source"] for load in Visitor(node).data("/console/maps/ours")["loads"]]

    node.until(lambda: len(sources()) == 2)
    assert sources() == [SCRIPT, "first.csv"]


def test_loads_that_nobody_reported_and_merges_are_loads(serve: Callable[..., Served]) -> None:
    node = serve(events_reports=False)
    visitor, ours = Visitor(node), node.pond.create_map("ours", kind="state", value="double", store="layers")
    assert visitor.data("/console/maps")["maps"][0]["loaded_ms"] is None
    ours.load([{"key": "a", "value": 1.0}], source=SCRIPT)
    with node.pond.branch("fix", source="main") as fix:
        fix.map("ours").load([{"key": key, "value": 2.0} for key in "ab"])
    node.clock.advance(1_000)
    node.pond.refs.merge("fix")
    for path in ("/console/maps/ours", "/"):
        loads = visitor.data(path)["loads"]
        assert [(load["rows"], load["source"]) for load in loads] == [(0, "Merge 'fix' into 'main'"), (1, SCRIPT)]
    assert visitor.data("/console/maps")["maps"][0]["loaded_ms"] == BEGIN + 1_000
    assert visitor.data("/")["loads_of_day"] == 2


def names_at(visitor: Visitor, ref: str) -> list[str]:
    return [shown["name"] for shown in visitor.data(f"/console/maps?ref={ref}")["maps"]]


def test_maps_on_a_branch_are_made_loaded_copied_renamed_dropped_and_restored(serve: Callable[..., Served]) -> None:
    node = serve(server_tokens=TOKENS)
    owner, maps = Visitor(node, "owner"), "/console/maps"
    node.pond.create_map("ours", kind="state", value="double", store="layers").load([{"key": SCRIPT, "value": 1.0}])
    node.pond.refs.create_branch("fix")

    def press(path: str, act: str, **fields: str) -> str:
        form = f"{path.partition('?')[0]}/{act}" if act else maps
        return went_to(owner.press(path, form, **fields))

    made = press(f"{maps}?ref=fix", "", name="made", kind="state", value="double")
    assert made == f"{maps}/made?ref=fix"
    assert names_at(owner, "fix") == ["made", "ours"] and names_at(owner, "main") == ["ours"]
    assert owner.data(f"{maps}/made")["kind"] == "map_not_found"
    seen = went_to(owner.drop_file(made, f"{maps}/made/load", "new.csv", b"key,value\na,2\n"))
    assert owner.data(seen)["keys"]["rows"] == [["made", "added", "a", None, 2.0]]
    assert owner.data(f"{made}&key=a")["answer"]["shown"] == 2.0
    assert press(made, "copy", what="copy", new="twin") == f"{maps}/twin?ref=fix"
    press(f"{maps}/twin?ref=fix", "copy", what="rename", new="other")
    assert names_at(owner, "fix") == ["made", "other", "ours"]
    assert press(f"{maps}/ours?ref=fix", "drop", typed="ours") == f"{maps}?ref=fix"
    assert names_at(owner, "fix") == ["made", "other"] and names_at(owner, "main") == ["ours"]
    assert press(f"{maps}/ours?ref=fix~1", "restore", branch="fix") == f"{maps}/ours?ref=fix"
    assert owner.data(f"{maps}/ours?ref=fix&key={quote(SCRIPT)}")["answer"]["shown"] == 1.0
    press(f"{maps}/ours?key={quote(SCRIPT)}&ref=fix", "alter", retain="10y")
    assert owner.data(f"{maps}/ours?ref=fix")["settings"]["retain"] == "10y"
    assert owner.press(f"{maps}/ours?key={quote(SCRIPT)}&ref=fix", f"{maps}/ours/delete", typed=SCRIPT).status == 200
    assert node.pond.branch("fix").map("ours").get(SCRIPT) is None
    assert node.pond.map("ours").get(SCRIPT) == 1.0 and owner.data(f"{maps}/ours")["settings"]["retain"] == ""
    press(f"{maps}/ours", "drop", typed="ours")
    press(f"{maps}/ours?ref=main~1", "restore", branch="main")
    assert node.pond.map("ours").get(SCRIPT) == 1.0
    for path in (f"{maps}/ours?ref=nowhere", f"{maps}?ref=nowhere"):
        assert node.get(path, headers=owner.headers).status == 404


def test_the_box_finds_maps_that_main_has_not(serve: Callable[..., Served]) -> None:
    tokens = [
        {"name": name, "sha256": hash_token(name), "rights": {"read": rights}}
        for name, rights in (("both", ["made", "gone", "repo:pond"]), ("map", ["made"]), ("repository", ["repo:pond"]))
    ]
    node = serve(server_tokens=[*TOKENS, *tokens])
    node.pond.create_map("gone", kind="state", value="double", store="layers").load([{"key": SCRIPT, "value": 1.0}])
    node.pond.repository("pond").create_tag("v1", "main")
    node.pond.refs.create_branch("other")
    node.pond.drop_map("gone")
    head = node.pond.refs.states.commit("main~1").id
    with node.pond.branch("fix", source="main") as fix:
        fix.create_map("made", kind="state", value="double")
        fix.map("made").load([{"key": "a", "value": 1.0}], commit=False)

    def found(text: str, token: str = "both") -> list[str]:
        headers = {**Visitor(node, token).headers, "Accept": "application/json"}
        address = f"{node.url}/console/find?q={quote(text)}"
        answer = node.pool.request("GET", address, headers=headers, redirect=False)
        return [answer.headers["location"]] if answer.status == 303 else [at["path"] for at in answer.json()["places"]]

    maps = "/console/maps"
    for text in ("made", "fix/made"):
        assert found(text) == [f"{maps}/made?ref=fix"]
    for text in ("made/a", "fix/made/a"):
        assert found(text) == [f"{maps}/made?ref=fix&key=a"]
    assert found("gone") == [f"{maps}/gone?ref={ref}" for ref in ("other", "v1", head)]
    assert found("main~1/gone") == [f"{maps}/gone?ref=main~1"]
    for text in ("main/made", "none/made", "fix/none", "fix/", "/made"):
        assert found(text) == []
    assert found("made", "map") == found("made", "repository") == found("fix/made", "map") == []
    page = node.get("/console/find?q=gone", headers=Visitor(node, "both").headers).body
    assert b"the map gone at v1" in page
    node.pond.create_map("made", kind="state", store="layers")
    assert found("made") == [f"{maps}/made"]


def test_a_page_at_a_ref_has_the_buttons_that_its_token_may_press_there(serve: Callable[..., Served]) -> None:
    rights = {
        "fixer": {"admin": ["*"], "write": ["repo:pond/fix-*"]}, "reader": {"read": ["*"]}, "maps": {"read": ["ours"]},
        "loader": {"write": ["ours", "repo:pond/fix-*"]},
    }  # fmt: skip
    tokens = [{"name": name, "sha256": hash_token(name), "rights": own} for name, own in rights.items()]
    node = serve(server_tokens=tokens)
    node.pond.create_map("ours", kind="state", value="double", store="layers").load([{"key": "a", "value": 1.0}])
    for branch in ("fix-1", "other"):
        node.pond.refs.create_branch(branch)

    def acts(token: str, ref: str) -> set[str]:
        forms = Visitor(node, token).forms(f"/console/maps/ours?ref={ref}&key=a")
        return {form.rpartition("/")[2] for form in forms}

    assert acts("fixer", "fix-1") == {"load", "alter", "tend", "delete", "drop", "copy", "restore"}
    assert acts("loader", "fix-1") == {"load", "restore"} and acts("loader", "other") == {"restore"}
    assert acts("fixer", "main~0") == {"restore"} and acts("reader", "fix-1") == acts("reader", "main") == set()
    assert node.get("/console/maps/ours?ref=fix-1", headers=Visitor(node, "maps").headers).status == 403
    loader = Visitor(node, "loader")
    [secret] = {form["secret"] for form in loader.forms("/console/maps/ours?ref=fix-1").values()}
    for act, fields in (("restore", {"ref": "fix-1"}), ("load", {})):
        for branch in ("other", "main"):
            if (act, branch) != ("load", "main"):
                sent = {**fields, "secret": secret, "branch": branch}
                answer = loader.send(f"/console/maps/ours/{act}", sent) if act == "restore" else node.pool.request(
                    "POST", f"{node.url}/console/maps/ours/load", headers=loader.headers,
                    fields={**sent, "content": ("new.csv", b"key,value\na,2\n")},
                )  # fmt: skip
                assert answer.status == 403, (act, branch, answer.data)


def test_differences_by_key_come_by_pages_that_stay_what_they_were(
    serve: Callable[..., Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    node = serve()
    for name in "abc":
        node.pond.create_map(name, kind="state", value="double", store="layers").load([{"key": "k0", "value": -1.0}])
    with node.pond.branch("fix", source="main") as branch:
        for name, rows in (("a", 5), ("b", 1), ("c", 4)):
            branch.map(name).load([{"key": f"k{number}", "value": float(number)} for number in range(rows)])
    before = node.pond.refs.states.commit("main").id
    node.pond.map("a").load([{"key": "main", "value": 7.0}])
    expected = [list(row.values()) for row in node.pond.refs.diff(before, "fix").to_pylist()]
    monkeypatch.setattr(key_differences, "ROWS_MAX", 3)
    visitor, seen, sizes = Visitor(node), list[Any](), list[int]()
    page = f"/console/versions/pond/diff?left={before}&right=fix"
    while page:
        assert node.get(page).status == 200
        shown = visitor.data(page)
        sizes.append(len(shown["keys"]["rows"]))
        seen += [dict(zip(shown["keys"]["columns"], row, strict=True)) for row in shown["keys"]["rows"]]
        page = shown["next"]
        node.pond.branch("fix").map("a").load([{"key": "later", "value": float(len(seen))}])
    assert [list(row.values()) for row in seen] == expected and len(expected) > 6 and set(sizes[:-1]) == {3}
    monkeypatch.undo()
    here = "/console/versions/pond/diff?left=main&right=fix&map=a"
    keys = [{row[2] for row in visitor.data(here + dots)["keys"]["rows"]} for dots in ("", "&three_dots=true")]
    assert keys[0] - keys[1] == {"main"} and "later" in keys[1]
    node.pond.branch("fix").map("b").load([{"key": "staged", "value": 1.0}], commit=False)
    staged = visitor.data("/console/versions/pond/diff?left=fix")["keys"]["rows"]
    assert staged == [["b", "added", "staged", None, "1.0"]]


def test_differences_of_a_ref_that_is_no_branch_are_from_it_to_the_default_branch(serve: Callable[..., Served]) -> None:
    node = serve()
    repository = node.pond.repositories.create("files", default_branch="trunk")
    node.pond.create_map("ours", kind="state", value="double", store="layers").load([{"key": "a", "value": 1.0}])
    node.pond.refs.create_branch("v0")
    node.pond.repository("pond").create_tag("v1", "main")
    repository.create_tag("v1", "trunk")
    repository.branch("trunk").put("a.csv", b"a")
    repository.branch("trunk").commit("a")
    node.pond.map("ours").load([{"key": "a", "value": 2.0}])
    visitor, versions = Visitor(node), "/console/versions"
    for ref in ("v1", "main~1"):
        page = f"{versions}/pond/diff?left={ref}"
        shown = visitor.data(page)
        assert (shown["right"], len(shown["keys"]["rows"])) == ("main", 1)
        assert f"From <bdi>{ref}</bdi> to <bdi>main</bdi>".encode() in node.get(page).body
    shown = visitor.data(f"{versions}/files/diff?left=v1")
    assert (shown["right"], [changed["path"] for changed in shown["paths"]]) == ("trunk", ["a.csv"])
    assert visitor.data(f"{versions}/pond/diff?left=v0")["right"] is None
    assert visitor.data(f"{versions}/pond/diff?left=nowhere")["kind"] == "ref_not_found"


def test_aggregates_are_made_by_a_form_and_shown_by_bucket(serve: Callable[..., Served]) -> None:
    node, maps = serve(), "/console/maps"
    visitor = Visitor(node)
    value = "orders long count, most double max, last string latest"
    settings = {"resolution": "1 hour", "time_zone": "Europe/Paris", "retain": "30d", "roll_up": "1 day"}
    page = went_to(visitor.press(maps, maps, name="sales", kind="aggregate", value=value, store="layers", **settings))
    hour = 3_600_000
    node.pond.map("sales").load(
        [{"key": SCRIPT, "time": BEGIN + at, "most": at / hour, "last": SCRIPT} for at in (0, 1, hour, 5 * hour)]
    )
    node.pond.map("sales").alerts.add("orders > 1", name="busy")
    shown = visitor.data(f"{page}?key={quote(SCRIPT)}&at={BEGIN + 5}")
    assert shown["map"]["aggregation"] == {
        "fields": ["orders long count", "most double max", "last string latest"], "resolution": "1 hour",
        "time_zone": "Europe/Paris", "tags": False,
    }  # fmt: skip
    assert shown["settings"]["roll_up"] == "1 day" and [rule["name"] for rule in shown["alerts"]] == ["busy"]
    assert shown["answer"]["shown"]["orders"] == 2
    assert shown["answer"]["shown"]["last_time"] == "2026-01-01T00:00:00.001Z"
    assert [row[2] for row in shown["history"]["rows"]] == [2, 1, 1]
    node.clock.advance(6 * hour)
    body = node.get(f"{page}?key={quote(SCRIPT)}").body.decode()
    assert "orders by bucket, at most 2" in body and 'data-sets="at"' in body and SCRIPT not in body
    assert "No value in the bucket of now" in body
    days = visitor.data(f"{page}?key={quote(SCRIPT)}&resolution=1+day")["history"]["rows"]
    assert [row[2] for row in days] == [4]
    assert visitor.data(f"{page}?key=a&resolution=7+minutes")["problem"] is not None
    went_to(visitor.press(page, f"{page}/alter", overwrite="yes", maintenance_suspended="no", retain="", roll_up=""))
    assert node.pond.map("sales").definition.roll_up is None
    query = "select origin as key, date_trunc('hour', departed) as time, count(*) as n from rows group by 1, 2"
    made = went_to(visitor.press(maps, maps, name="late", kind="state", query=query))
    assert visitor.data(made)["map"]["query"] == query
    for kind, name in (("metric", "cpu"), ("histogram", "calls")):
        own = went_to(visitor.press(maps, maps, name=name, kind=kind, key="tags", resolution="1 minute"))
        node.pond.map(name).load([{"tags": {"host": SCRIPT}, "time": BEGIN, "value": 3.0}])
        facts = visitor.data(f"{own}?key={quote('host=' + SCRIPT)}&at={BEGIN}")
        assert facts["map"]["kind"] == kind and facts["map"]["aggregation"]["tags"] and facts["answer"]["found"]


def test_alerts_are_tried_added_and_removed_by_forms(serve: Callable[..., Served]) -> None:
    node = serve(server_tokens=TOKENS)
    hour, page, owner = 3_600_000, "/console/maps/sales", Visitor(node, "owner")
    sales = node.pond.create_map(
        "sales", kind="aggregate", value="orders long count, last string latest", resolution="1 hour"
    )
    node.pond.create_map("plain", kind="state")
    for at in (0, 1, hour):
        sales.load([{"key": SCRIPT, "time": BEGIN + at, "last": SCRIPT}])
    assert b"No rules yet" in node.get(page, headers=owner.headers).body
    tried = f"{page}?when={quote('orders > 1')}&since=30d&buckets=1"
    trial = Visitor(node, "reader").data(tried)["trial"]
    assert (trial["changes"], [row["key"] for row in trial["alerts"]], trial["since"] != "") == (3, [SCRIPT], True)
    body = node.get(tried, headers=owner.headers).body
    assert (
        b"1 alert of 3 loads" in body
        and b"000+00:00" not in body
        and SCRIPT.encode() not in body
        and b"last &lt;script&gt;" in body
    )
    assert Visitor(node, "reader").forms(tried) == {}
    form = owner.forms(tried)[f"{page}/alert"]
    assert (form["when"], form["buckets"]) == ("orders > 1", "1")
    for field, text, status in (("when", f"{SCRIPT} > 1", 400), ("when", "", 400), ("name", SCRIPT, 400)):
        refused = owner.press(tried, f"{page}/alert", **{field: text})
        assert refused.status == status and SCRIPT.encode() not in refused.data
    assert owner.data(f"{page}?when=missing+%3E+1")["problem"] is not None
    body = node.get(f"{page}?when=missing+%3E+1", headers=owner.headers).body
    assert body.index(b'id="alerts"') < body.index(b'role="alert"')  # it is where the form leads to
    assert owner.data("/console/maps/plain?when=key+%3E+1")["problem"] is not None
    assert went_to(owner.press(tried, f"{page}/alert", name="many")) == f"{page}#alerts"
    assert went_to(owner.press(tried, f"{page}/alert")) == f"{page}#alerts"
    assert owner.press(tried, f"{page}/alert", name="many").status == 409
    assert [rule["name"] for rule in owner.data(page)["alerts"]] == ["alert_1", "many"]
    path = f"{page}/unalert"
    for typed in ("", "other"):
        assert owner.press(page, path, alert="many", typed=typed).status == 400
    assert owner.press(page, path, alert="none", typed="none").status == 404
    assert len(sales.alerts.list()) == 2
    went_to(owner.press(page, path, alert="many", typed="many"))
    assert [rule.name for rule in sales.alerts.list()] == ["alert_1"]
    node.pond.refs.create_branch("fix")
    assert not {"alert", "unalert"} & {*owner.data(f"{page}?ref=fix")["actions"]}
    audit = owner.data("/console/jobs")["audit"]
    assert {entry["alert"] for entry in audit if "alert" in entry} == {"alert_1", "many", "none"}, audit


def test_nodes_that_replicate_ask_for_no_ref(cluster: ClusterHere) -> None:
    visitor = Visitor(cluster[0])
    assert not visitor.data("/console/maps")["branched"]
    assert visitor.data("/console/maps?ref=fix")["kind"] == "refs_place"


def test_of_a_long_history_the_newest_rows_are_shown(
    serve: Callable[..., Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inventory, "_HISTORY_MAX", 3)
    node = serve()
    ours = node.pond.create_map("ours", kind="temporal_state", value="long", store="layers")
    for first in (0, 10, 5):
        ours.load([{"key": "a", "effective_time": BEGIN + at, "value": at} for at in range(first, first + 5)])
    shown = Visitor(node).data("/console/maps/ours?key=a")["history"]
    assert [row[2] for row in shown["rows"]] == [12, 13, 14] and shown["more"]
    body = node.get("/console/maps/ours").body.decode()
    assert "<th>map</th>" not in body and "KiB</td>" in body  # it is the map of the page; layers have sizes
    long = node.pond.create_map("long", kind="state", value="string", store="layers")
    long.load([{"key": "k" * 1_000, "value": "a"}])
    assert f"<summary><bdi>{'k' * 100}</bdi>…".encode() in node.get("/console/maps/long?where=value+%3D+'a'").body
    ranges = node.pond.create_map("ranges", kind="ranged_state", value="long")
    ranges.load([{"key_start": 1, "key_end": 9, "value": 1}])
    assert Visitor(node).data("/console/maps/ranges?key=5")["history"]["rows"] == [[1, 9, 1]]


def test_files_beside_maps_are_seen_and_differ_by_path(
    serve: Callable[..., Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    node, pond = serve(), "/console/versions/pond"
    node.pond.create_map("ours", kind="state", value="long", store="layers").load([{"key": "a", "value": 1}])
    node.pond.refs.create_branch("fix")
    fix = node.pond.repository("pond").branch("fix")
    for name in ("a", "z", SCRIPT):
        fix.put(name, b"x")
    fix.commit("files")
    node.pond.branch("fix").map("ours").load([{"key": "a", "value": 2}])
    monkeypatch.setattr(versions, "PAGE_ROWS", 2)
    visitor, page, seen = Visitor(node), f"{pond}/diff?left=main&right=fix", list[str]()
    while page:
        assert SCRIPT.encode() not in node.get(page).body
        shown = visitor.data(page)
        assert [row[2] for row in shown["keys"]["rows"]] == ["a"]
        seen, page = [*seen, *(changed["path"] for changed in shown["paths"])], shown["next_paths"]
    assert sorted(seen) == sorted(["a", "z", SCRIPT])
    assert visitor.data(f"{pond}/diff?left=main&right=fix&map=ours")["paths"] is None
    fix.put("staged", b"x")
    assert [changed["path"] for changed in visitor.data(f"{pond}/diff?left=fix")["paths"]] == ["staged"]
    body = node.get(f"{pond}?ref=fix").body.decode()
    assert "/console/maps?ref=fix" in body and f"{pond}/objects?ref=fix" in body


@given(st.lists(st.lists(st.integers(0, 50), max_size=8), max_size=6), st.integers(1, 9))
def test_newest_rows_are_the_last_of_all(batches: list[list[int]], limit: int) -> None:
    schema = pa.schema([("time", pa.timestamp("ms")), ("number", pa.int64())])
    made = [pa.record_batch([times, times], schema=schema) for times in batches]
    shown = newest_rows(pa.RecordBatchReader.from_batches(schema, made), "time", limit)
    every = sorted(time for times in batches for time in times)
    assert [row[1] for row in shown["rows"]] == every[-limit:] and shown["more"] is (len(every) > limit)
