"""Contents on pages: objects, rows, histories as drawings, queries as files, and the audit."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import csv, parquet

from millpond.console import Span, steps, strip
from millpond.events.event import NewEvent
from millpond.nodes.audit import TAIL_BYTES, AuditLog
from millpond.server.console import inventory, object_rows, previews, sql, streams, versions
from millpond.server.console.histories import drawn_history
from millpond.server.console.object_rows import first_rows
from millpond.server.console.tables import ROWS_BYTES_MAX, shown_rows
from tests.nodes.conftest import BEGIN, Served
from tests.nodes.console_pond import SCRIPT
from tests.nodes.test_console_actions import TOKENS, Visitor

JSON = {"Accept": "application/json"}
PNG = b"\x89PNG\r\n\x1a\n" + b"0" * 20


def object_page(node: Served, path: str) -> Any:
    return Visitor(node).data(f"/console/versions/files/object?ref=main&path={path}")


def test_objects_show_their_beginning(serve: Callable[..., Served], monkeypatch: pytest.MonkeyPatch) -> None:
    node = serve()
    node.pond.repositories.create("files")
    main = node.pond.repository("files").branch("main")
    table = pa.table({SCRIPT: list(range(200)), "n": [f"{number}" for number in range(200)]})
    contents = {
        "t.parquet": packed(table), "t.csv": b"a,b\n1,x\n2,y\n", "t.jsonl": b'{"a": 1}\n{"a": 2}\n',
        "text": SCRIPT.encode() + "é".encode(), "bytes": b"\0\xff", "logo.png": PNG, "page.png": SCRIPT.encode(),
        "bad.parquet": b"PAR1", "bad.csv": b'a,b\n"1,2\n', "empty": b"", "riff": b"RIFF0000AVI ",
    }  # fmt: skip
    for path, content in contents.items():
        main.put(path, content)
    shown = {path: object_page(node, path) for path in contents}
    assert shown["t.parquet"]["rows"]["columns"] == [SCRIPT, "n"] and shown["t.parquet"]["rows"]["more"]
    assert shown["t.csv"]["rows"]["rows"] == [[1, "x"], [2, "y"]]
    assert shown["t.jsonl"]["rows"]["rows"] == [[1], [2]]
    assert shown["text"]["text"] == SCRIPT + "é" and shown["empty"]["text"] == ""
    for path in ("bytes", "riff", "logo.png"):
        assert shown[path]["rows"] is None and (shown[path]["image"] is not None) is (path == "logo.png"), path
    assert shown["page.png"]["image"] is None and shown["bad.parquet"]["rows"] is None
    for path in ("t.parquet", "text", "page.png", "logo.png", "riff", "bytes", "empty"):
        page = node.get(f"/console/versions/files/object?ref=main&path={path}")
        assert page.status == 200 and SCRIPT.encode() not in page.body, path
    sent = node.get(shown["logo.png"]["image"])
    assert (sent.body, sent.headers["content-type"]) == (PNG, "image/png")
    assert sent.headers["x-content-type-options"] == "nosniff"
    for path in ("page.png", "text", "nothing"):
        assert node.get(f"/console/versions/files/image?ref=main&path={path}").status == 404, path
    monkeypatch.setattr(previews, "ROWS_BYTES", 10)
    assert object_page(node, "t.csv")["rows"]["rows"] == [[1, "x"]]


def test_a_large_object_of_parquet_shows_its_first_rows(
    serve: Callable[..., Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its bytes are no fewer packed: of some 30 MiB less than ten are read."""
    node = serve()
    node.pond.repositories.create("files")
    main = node.pond.repository("files").branch("main")
    numbers = np.random.default_rng(7).random(3 << 20)
    large = packed(pa.table({"n": np.arange(len(numbers)), SCRIPT: numbers}))
    assert len(large) > previews.WHOLE_BYTES_MAX
    wide = packed(pa.table({f"c{number}.x": [number] for number in range(150)}))
    for path, content in {"large": large, "wide": wide, "none": packed(pa.table({"a": pa.array([], "int8")})),
                          "bad": large[:-8] + b"\xff\xff\xff\x7fPAR1", "short": b"PAR1"}.items():  # fmt: skip
        main.put(f"{path}.parquet", content)
    rows = object_page(node, "large.parquet")["rows"]
    assert rows["columns"] == ["n", SCRIPT] and rows["more"]
    assert rows["rows"] == [[number, value] for number, value in enumerate(numbers[:50].tolist())]
    assert object_page(node, "bad.parquet")["rows"] is None
    monkeypatch.setattr(previews, "WHOLE_BYTES_MAX", 1)
    assert object_page(node, "wide.parquet")["rows"]["rows"] == [list(range(100))]
    assert object_page(node, "none.parquet")["rows"]["columns"] == ["a"]
    assert object_page(node, "short.parquet")["rows"] is None
    monkeypatch.setattr(object_rows, "RANGES_BYTES_MAX", 10 << 20)
    assert object_page(node, "large.parquet")["rows"] is not None
    monkeypatch.setattr(object_rows, "RANGES_BYTES_MAX", 1 << 20)
    assert object_page(node, "large.parquet")["rows"] is None


def packed(table: pa.Table) -> bytes:
    file = io.BytesIO()
    parquet.write_table(table, file, compression="zstd")
    return file.getvalue()


def test_a_hostile_object_has_no_rows() -> None:
    """Each would end the node: by nesting, by columns, by what it unpacks to."""
    deep = 100_000
    assert first_rows("json", b'{"a":' + b"[" * deep + b"]" * deep + b"}\n", 50) is None
    assert first_rows("parquet", b"PAR1" + b"\xff" * 50 + b"\x30\0\0\0PAR1", 50) is None
    values = packed(pa.table({"a": ["x" * (8 << 20)] * 60}))
    assert len(values) < 4_000 and first_rows("parquet", values, 50) is None


@pytest.mark.full
def test_an_object_of_many_columns_has_no_rows() -> None:
    assert first_rows("csv", b"," * 1_000_000 + b"\n", 50) is None
    shown = first_rows("csv", b",".join(b"%d" % column for column in range(500)) + b"\n" + b"," * 499 + b"\n", 50)
    assert shown is not None and len(shown["columns"]) == 100 == len(shown["rows"][0])


def test_cells_that_python_has_not_are_shown() -> None:
    text = pa.Array.from_buffers(pa.string(), 2, pa.array([b"\xff", b"b"]).buffers())
    columns = {
        "day": pa.array([2**23, 1], pa.date32()), "at": pa.array([2**60, 0], pa.timestamp("us")), "text": text,
        "list": pa.array([[2**60], [0]], pa.list_(pa.timestamp("us"))),
    }  # fmt: skip
    first, second = shown_rows(pa.table(columns), 50)["rows"]
    assert first == [
        "24937-03-25",
        "<value out of range: 1152921504606846976>",
        "�",
        "a value of list<item: timestamp[us]>",
    ]
    assert second == ["1970-01-02", "1970-01-01T00:00:00", "b", ["1970-01-01T00:00:00"]]


@pytest.mark.usefixtures("processor")
@given(st.lists(st.lists(st.integers(0, 90), max_size=4), max_size=4), st.integers(1, 8), st.integers(50, 200))
def test_a_page_shows_no_row_behind_its_bytes(batches: list[list[int]], limit: int, bytes_max: int) -> None:
    schema = pa.schema([("text", pa.string())])
    made = [pa.record_batch({"text": ["a" * size for size in sizes]}, schema) for sizes in batches]
    every = [["a" * size] for sizes in batches for size in sizes]
    for source in (pa.Table.from_batches(made, schema), pa.RecordBatchReader.from_batches(schema, made)):
        shown = shown_rows(source, limit, bytes_max)
        rows = shown["rows"]
        assert rows == every[: len(rows)] and shown["more"] is (len(rows) < len(every))
        assert sum(len(text) for [text] in rows[:-1]) < bytes_max
        large = sum(len(text) + 8 for [text] in every[: len(rows) + 1]) > bytes_max
        assert len(rows) == min(limit, len(every)) or large


def test_the_differences_of_a_load_are_bounded_in_bytes(serve: Callable[..., Served]) -> None:
    node = serve()
    held = node.pond.create_map("m", kind="state", value="string", store="layers")
    held.load([{"key": "a", "value": "x"}])
    node.pond.branch("fix", source="main").map("m").load(
        [{"key": f"k{number}", "value": "y" * (1 << 20)} for number in range(8)]
    )
    shown = Visitor(node).data("/console/versions/pond/diff?left=main&right=fix")["keys"]
    assert shown["more"] and 1 <= len(shown["rows"]) <= 3
    assert len(node.get("/console/versions/pond/diff?left=main&right=fix").body) < 2 * ROWS_BYTES_MAX


def test_a_branch_shows_what_is_not_committed(serve: Callable[..., Served], monkeypatch: pytest.MonkeyPatch) -> None:
    node = serve()
    node.pond.repositories.create("files")
    main, page = node.pond.repository("files").branch("main"), "/console/versions/files"
    main.put("old", b"1")
    main.commit("first")
    assert Visitor(node).data(page)["uncommitted"] == []
    main.put(SCRIPT, b"a")
    main.delete("old")
    shown = Visitor(node).data(page)
    assert [(own["type"], own["path"]) for own in shown["uncommitted"]] == [("added", SCRIPT), ("removed", "old")]
    assert SCRIPT.encode() not in node.get(page).body and not shown["more_uncommitted"]
    assert Visitor(node).data(f"{page}?ref=main~0")["uncommitted"] == []
    monkeypatch.setattr(versions, "PAGE_ROWS", 1)
    shown = Visitor(node).data(page)
    assert len(shown["uncommitted"]) == 1 and shown["more_uncommitted"]


def test_rows_are_browsed_by_a_condition(serve: Callable[..., Served]) -> None:
    node = serve()
    node.pond.create_map("m", kind="state", value="double").load(
        [{"key": key, "value": float(number)} for number, key in enumerate(("a", "b", SCRIPT))]
    )
    visitor = Visitor(node)
    assert visitor.data("/console/maps/m?where=value+%3E+0")["rows"]["rows"] == [[SCRIPT, 2.0], ["b", 1.0]]
    assert visitor.data("/console/maps/m?where=nonsense")["problem"] is not None
    assert SCRIPT.encode() not in node.get("/console/maps/m?where=value+%3E+0").body


def test_histories_are_drawn() -> None:
    def at(minute: int) -> str:
        return f"2026-01-01T00:{minute:02}:00+00:00"

    temporal = {"columns": ["key", "effective_time", "value"], "rows": [["a", at(2), 5.0], ["a", at(1), SCRIPT]]}
    [drawing] = drawn_history(temporal, BEGIN)
    assert drawing.count("<rect") == 2 and SCRIPT not in drawing and "2 values" in drawing
    numbers: dict[str, Any] = {
        "columns": ["key", "effective_time", "temp"],
        "rows": [["a", at(1), None], ["a", at(2), 1.0]],
    }
    assert len(drawn_history({**numbers, "rows": [*numbers["rows"], ["a", at(3), 2.0]]}, BEGIN)) == 2
    assert len(drawn_history({**numbers, "rows": numbers["rows"][:1]}, BEGIN)) == 1
    sessions: dict[str, Any] = {"columns": ["key", "start", "end"], "rows": [["a", at(1), at(2)], ["a", at(5), at(9)]]}
    ranges: dict[str, Any] = {"columns": ["key_start", "key_end", "value"], "rows": [[1, 9, "x"]]}
    assert [drawn_history(own, BEGIN)[0].count("<rect") for own in (sessions, ranges)] == [2, 1]
    assert "2 sessions" in drawn_history(sessions, BEGIN)[0] and "1 range<" in drawn_history(ranges, BEGIN)[0]
    columns = [*ranges["columns"], "effective_time"]
    [by_time] = drawn_history({"columns": columns, "rows": [[1, 9, "x", at(1)], [1, 9, "y", at(3)]]}, BEGIN)
    assert "2 values" in by_time and "00:01:00" in by_time
    for none in (None, {"columns": ["key", "value"], "rows": [["a", 1]]}, {"columns": ["key"], "rows": []}):
        assert drawn_history(none, BEGIN) == []
    assert 'width="0.50"' in strip([Span(1, 1, "at once")], 1, 1, "one moment")
    assert steps([(1, 2.0)], 1, "one").count("path") == 1


def test_a_query_is_saved_as_a_file(serve: Callable[..., Served], monkeypatch: pytest.MonkeyPatch) -> None:
    node = serve()
    node.pond.create_map("m", kind="state", value="double").load([{"key": key, "value": 1.5} for key in "abc"])
    ask = "q=select+key,+value,+[1,2]+as+pair,+'ab'::blob+as+raw+from+m+order+by+key"
    read = csv.read_csv(io.BytesIO(node.get(f"/console/sql/export?{ask}").body))
    assert read.to_pydict() == {"key": [*"abc"], "value": [1.5] * 3, "pair": ["[1,2]"] * 3, "raw": [6162] * 3}
    packed = node.get(f"/console/sql/export?{ask}&format=parquet")
    assert packed.headers["content-disposition"] == 'attachment; filename="query.parquet"'
    assert parquet.read_table(io.BytesIO(packed.body)).num_rows == 3
    page = node.get(f"/console/sql?{ask}").body
    assert b"/console/sql/export?" in page and b'aria-label="value by row"' in page
    assert b"<title>b: 1.5</title>" in page
    day = node.get("/console/sql?q=select+date+'20000-01-01'", headers=JSON).json()["result"]["rows"]
    assert day == [["20000-01-01"]]
    span = "q=select+timestamp+'2020-01-02'+-+timestamp+'2020-01-01'+as+span"
    assert node.get(f"/console/sql/export?{span}").body == b'"span"\n"[0,1,0]"\n'
    for wrong in (f"{ask}&format=exe", "q=drop+table+m", "q=select", f"{span}&format=parquet"):
        assert node.get(f"/console/sql/export?{wrong}").status == 400, wrong
    monkeypatch.setattr(sql, "EXPORT_ROWS_MAX", 2)
    assert (
        node.get(f"/console/sql/export?{ask}", headers={"Accept": "application/json"}).json()["kind"] == "export_rows"
    )


def test_a_saved_file_has_no_formulas(serve: Callable[..., Served]) -> None:
    node = serve()
    ours = node.pond.create_map("m", kind="state", value="string")
    texts = ["=1+1", "+a", "-a", "-1+a", "@a", "\t=a", "\r=a", "a=b", "", "-2.5e3", "+7"]
    ours.load([{"key": str(number), "value": text} for number, text in enumerate(texts)])
    ask = "q=select+value+as+%22=a%22,+-1+as+n,+['=']+as+l,+{'-':-2}+as+s+from+m+order+by+key::int"
    saved = csv.read_csv(
        io.BytesIO(node.get(f"/console/sql/export?{ask}").body),
        parse_options=csv.ParseOptions(newlines_in_values=True),
        convert_options=csv.ConvertOptions(column_types={"'=a": pa.string()}, strings_can_be_null=False),
    )
    quoted = [f"'{text}" for text in texts[:7]]
    assert saved.to_pydict() == {"'=a": quoted + texts[7:], "n": [-1] * 11, "l": ['["="]'] * 11, "s": ['{"-":-2}'] * 11}


def test_owners_see_tokens_without_secrets_and_who_did_what(serve: Callable[..., Served]) -> None:
    node = serve(server_tokens=TOKENS)
    node.pond.create_map("ours", kind="state")
    owner, reader = Visitor(node, "owner"), Visitor(node, "reader")
    owner.press("/console/maps/ours", "/console/maps/ours/drop", typed="ours")
    reader.send("/console/maps/ours/drop", {"typed": SCRIPT})
    shown = owner.data("/console/jobs")
    assert [(line["token"], line["status"]) for line in shown["audit"]] == [("reader", 403), ("owner", 303)]
    assert {token["name"] for token in shown["tokens"]} == {token["name"] for token in TOKENS}
    page = node.get("/console/jobs", headers=owner.headers).body
    assert all(str(token["sha256"]) not in page.decode() + json.dumps(shown) for token in TOKENS)
    hidden = reader.data("/console/jobs")
    assert (hidden["audit"], hidden["tokens"]) == ([], [])


def test_the_newest_lines_of_the_audit_are_read_from_its_end(serve: Callable[..., Served]) -> None:
    node = serve()
    folder = node.pond.folder / "other"
    folder.mkdir()
    audit = AuditLog(folder, node.clock)
    assert audit.newest(3) == []
    for number in range(300):
        audit.write("é" * 100, "POST", "/", number)
    assert (folder / "audit.jsonl").stat().st_size > TAIL_BYTES
    assert [line["status"] for line in audit.newest(3)] == [299, 298, 297]
    lines = audit.newest(1_000)
    assert [line["status"] for line in lines] == list(range(299, 299 - len(lines), -1)) and 100 < len(lines) < 300
    audit.close()


def test_job_sets_have_their_jobs_by_state(serve: Callable[..., Served], monkeypatch: pytest.MonkeyPatch) -> None:
    node = serve()
    jobs = [("a", "submitted"), ("b", "submitted"), ("a", "running"), ("c", "queued"), ("c", "succeeded"), ("x", "y")]
    events = [NewEvent(BEGIN, b"", kind, {"job_id": job}) for job, kind in jobs]
    for job_set in (SCRIPT, "z"):
        node.pond.events.append("etl", job_set, events)
    monkeypatch.setattr(streams, "EVENTS_COUNTED", 6)
    counted = {"queued": 1, "running": 1, "succeeded": 1}

    def shown() -> list[Any]:
        listed = node.get("/console/events?queue=etl", headers=JSON).json()["streams"]
        return [stream["jobs"] for stream in listed]

    assert shown() == [counted, None]  # the page that follows goes on
    assert shown() == [counted, counted]
    page = node.get("/console/events?queue=etl").body.decode()
    assert page.count("1 running") == 2 and SCRIPT not in page
    own = f"/console/events/stream?{urlencode({'queue': 'etl', 'job_set': SCRIPT})}"
    assert node.get(own, headers=JSON).json()["jobs"] == counted
    assert "1 succeeded" in node.get(own).body.decode()


def test_maps_tell_the_branches_that_they_differ_on(
    serve: Callable[..., Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    node = serve(server_tokens=TOKENS)
    for name in ("ours", "theirs", "still"):
        node.pond.create_map(name, kind="state", value="double", store="layers")
    visitor, loader = Visitor(node, "reader"), Visitor(node, "loader")

    def branches(of: Visitor = visitor) -> dict[str, list[str]]:
        return {shown["name"]: shown["branches"] for shown in of.data("/console/maps")["maps"]}

    assert branches() == {"ours": [], "theirs": [], "still": []}  # nothing was ever branched
    for branch, name in (("a", "ours"), ("b", "ours"), ("c", "theirs"), ("d", "ours")):
        with node.pond.branch(branch, source="main") as opened:
            opened.map(name).load([{"key": branch, "value": 1.0}])
            if branch == "d":
                opened.map("theirs").load([{"key": branch, "value": 1.0}])
    with node.pond.branch("e", source="main") as staged:
        staged.map("still").load([{"key": "e", "value": 1.0}], commit=False)
    node.pond.map("still").load([{"key": "main", "value": 1.0}])  # main alone moves on: no branch differs by that
    expected = {"ours": ["a", "b", "d"], "theirs": ["c", "d"], "still": ["e"]}
    assert branches() == expected
    assert branches(loader) == {"ours": [], "theirs": []}
    page = node.get("/console/maps", headers=visitor.headers).body
    assert b"left=main&amp;right=c&amp;map=theirs" in page
    monkeypatch.setattr(inventory, "PAGE_ROWS", 2)
    path, seen = "/console/maps/theirs", list[str]()
    while path:
        shown = visitor.data(path)
        seen += shown["branches"]
        path = shown["next_branches"]
    assert seen == ["c", "d"]
    assert visitor.data("/console/maps")["more_branches"]
    node.pond.refs.merge("a", "main")
    assert branches()["ours"] == ["b"]


def test_the_first_page_counts_lookups_and_events_by_hour(serve: Callable[..., Served]) -> None:
    node = serve(server_tokens=TOKENS)
    node.pond.create_map("ours", kind="state", value="double").load([{"key": "JFK", "value": 1.0}])
    reader, loader = Visitor(node, "reader"), Visitor(node, "loader")
    owner = {"Authorization": "Bearer owner"}

    def by_hour() -> list[list[int]]:
        shown = reader.data("/")
        return [shown[name][-3:] for name in ("lookups_by_hour", "events_by_hour")]

    assert by_hour() == [[0, 0, 0], [0, 0, 0]]
    for key in ("JFK", "nothing"):
        assert node.get(f"/v1/maps/ours/get?key={key}", headers=owner).status == 200
    assert node.get("/v1/maps/nothing/get?key=a", headers=owner).status == 404
    body = b"".join(b'{"kind": "submitted", "payload": "a"}\n' for _ in range(3))
    answer = node.post(
        "/v1/events?queue=etl&job_set=night", body, headers=owner | {"Content-Type": "application/x-ndjson"}
    )
    assert answer.status == 200, answer.body
    assert by_hour() == [[0, 0, 2], [0, 0, 3]]
    assert b"2 lookups of the last day" in node.get("/", headers=reader.headers).body
    node.clock.advance(3_600_000)
    assert by_hour() == [[0, 2, 0], [0, 3, 0]]
    shown = loader.data("/")  # totals of all maps are for who may read all of them
    assert shown["lookups_by_hour"] is None and shown["events_by_hour"] is None


def test_what_a_writer_says_of_an_object_adds_no_header(serve: Callable[..., Served]) -> None:
    """Its bytes come from the place that serves the console: a header more would make a page of them."""
    node = serve()
    node.pond.repositories.create("files")
    main, objects = node.pond.repository("files").branch("main"), "/api/v1/repositories/files/refs/main/objects?path="
    kinds = {
        "split": f"text/plain;\r\nContent-Type: text/html\r\n\r\n{SCRIPT}", "arrow": "text/→", "line": "text/plain\n",
        "plain": 'text/plain; charset="utf-8"',
    }  # fmt: skip
    for path, kind in kinds.items():
        main.put(path, b"hello", content_type=kind)
        for answer in (node.get(objects + path), node.request("HEAD", objects + path)):
            said = kind if path == "plain" else "application/octet-stream"
            assert (answer.status, answer.headers["content-type"]) == (200, said), path
            assert answer.body in (b"hello", b"")
        assert node.get(objects + path).headers["content-disposition"] == (
            "inline" if path == "plain" else "attachment"
        )
    sent = {"physical_address": "data/x", "checksum": "x", "size_bytes": 0, "mtime": 1 << 60}
    assert node.request("PUT", "/api/v1/repositories/files/branches/main/objects?path=old", body=sent).status < 500
    assert node.request("HEAD", f"{objects}old").status in (200, 404)
