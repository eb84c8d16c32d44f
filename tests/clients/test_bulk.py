"""Rows in bulk over HTTP: streams of Arrow and of lines, all staged or none."""

from __future__ import annotations

import json
import struct

import pyarrow as pa
import pytest

from tests.clients.conftest import Answer, Server, basic

ARROW = "application/vnd.apache.arrow.stream"
LINES = "application/x-ndjson"


def stage(server: Server, repository: str, body: bytes, kind: str, branch: str = "main") -> Answer:
    where = f"/repositories/{repository}/branches/{branch}/stage"
    return server.call("POST", where, body, headers={"Content-Type": kind})


def listed(server: Server, repository: str) -> list[str]:
    found = server.call("GET", f"/repositories/{repository}/refs/main/objects/ls?amount=1000").json()
    return [row["path"] for row in found["results"]]


def stream(*batches: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


def rows(*paths: str, **columns: list[object]) -> pa.RecordBatch:
    return pa.record_batch({"path": list(paths), "address": [f"data/0/{n}" for n in range(len(paths))], **columns})


def test_a_stream_of_columns_is_staged(server: Server, repository: str) -> None:
    assert stage(server, repository, stream(rows("b", "a", metadata=['{"z": "1", "a": "2"}', None])), ARROW).json() == {
        "staged": 2
    }
    stat = server.call("GET", f"/repositories/{repository}/refs/main/objects/stat?path=b").json()
    assert (stat["physical_address"], stat["metadata"]) == (f"local://{repository}/data/0/0", {"a": "2", "z": "1"})
    again = stream(rows("a", "c", deleted=[True, False]), rows("b", "b", deleted=[True, False]))
    assert stage(server, repository, again, ARROW).json() == {"staged": 4}
    assert listed(server, repository) == ["b", "c"]
    bare = stream(pa.record_batch({"path": ["b"], "deleted": [True]}))
    assert stage(server, repository, bare, ARROW).status == 200
    assert listed(server, repository) == ["c"]


def test_lines_are_staged(server: Server, repository: str) -> None:
    lines: list[dict[str, object]] = [
        {"path": "b", "address": "data/0/1", "size": 3, "metadata": {"k": "v"}, "mtime": 7},
        {"path": "a", "address": "s3://elsewhere/a", "checksum": "x", "content_type": "text/plain"},
        {"path": "never", "deleted": True},
    ]
    body = b"\n".join(json.dumps(line).encode() for line in lines) + b"\n\n"
    assert stage(server, repository, body, LINES).json() == {"staged": 3}
    stat = server.call("GET", f"/repositories/{repository}/refs/main/objects/stat?path=b").json()
    assert (stat["size_bytes"], stat["metadata"], stat["mtime"]) == (3, {"k": "v"}, 7)
    stat = server.call("GET", f"/repositories/{repository}/refs/main/objects/stat?path=a").json()
    assert (stat["physical_address"], stat["content_type"]) == ("s3://elsewhere/a", "text/plain")


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (ARROW, b""), (ARROW, b"no arrow"), (ARROW, stream(rows("a"))[:-40]), (ARROW, stream(rows("a", ""))),
        (ARROW, stream(rows("a", colour=["red"]))), (ARROW, stream(rows("a", metadata=["[1]"]))),
        (ARROW, stream(rows("a", metadata=['{"a": 1}']))), (ARROW, stream(rows("a", size=[-1]))),
        (ARROW, stream(rows("a", deleted=["x"]))), (ARROW, stream(rows("a", metadata=[b"\xff"]))),
        (ARROW, stream(pa.record_batch({"path": ["a"]}))),
        (ARROW, stream(pa.record_batch({"path": ["a"], "address": ["_millpond/repository"]}))),
        (ARROW, stream(pa.record_batch({"path": ["a"], "address": ["data/../x"]}))),
        (ARROW, stream(pa.record_batch({"path": ["a"], "address": ["local:///etc/passwd"]}))),
        (ARROW, stream(pa.record_batch({"path": [1], "address": ["data/x"]}))),
        (LINES, b'{"path": "fine", "address": "data/x"}\n{"path": 1}'), (LINES, b"[]"), (LINES, b"{"), (LINES, b"\xff"),
        (LINES, b'{"path": "a", "address": "data/x", "colour": 1}'), (LINES, b'{"path": "a"}'),
        (LINES, b'{"path": "a", "address": "data/x", "size": 99999999999999999999}'),
        (LINES, b'{"path": "a", "address": "data/x", "metadata": {"a": 1}}'), ("application/json", b"{}"),
    ],
)  # fmt: skip
def test_rows_that_cannot_be_are_refused_whole(server: Server, repository: str, kind: str, body: bytes) -> None:
    found = stage(server, repository, body, kind)
    assert 400 <= found.status < 500, found.body
    assert found.json()["message"]
    assert listed(server, repository) == []


def test_a_branch_that_takes_no_rows(server: Server, repository: str) -> None:
    body = stream(rows("a"))
    assert stage(server, repository, body, ARROW, "nope").status == 404
    server.call("PUT", f"/repositories/{repository}/settings/branch_protection", [{"pattern": "main"}])
    assert stage(server, repository, body, ARROW).status == 403


def test_a_stream_that_contradicts_itself_is_refused(server: Server, repository: str) -> None:
    """Offsets that lead out of its buffers would be read wherever they lead to."""
    body = stream(rows("a", "b", "c", checksum=["x" * 73] * 3))
    offsets = struct.pack("<4i", 0, 73, 146, 219)
    assert body.count(offsets) == 1
    for wild in (2_000, 2_000_000_000, -1):
        answer = stage(server, repository, body.replace(offsets, struct.pack("<4i", 0, wild, 146, 219)), ARROW)
        assert answer.status == 400, answer.body
    assert listed(server, repository) == []


@pytest.mark.parametrize("form", ["compressed", "dictionary", "nulls"])
def test_little_that_decodes_to_much_is_refused(server: Server, repository: str, form: str) -> None:
    path, rows = pa.array(["x" * 1_000_000]), pa.array([0] * 4_000, pa.int32())
    column = {
        "compressed": lambda: path.take(rows[:300]), "nulls": lambda: pa.nulls(1 << 23),
        "dictionary": lambda: pa.DictionaryArray.from_arrays(rows, path),
    }[form]()  # fmt: skip
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(sink, pa.schema([("path", column.type)]), options=options) as writer:
        writer.write_batch(pa.record_batch([column], names=["path"]))
    answer = stage(server, repository, sink.getvalue().to_pybytes(), ARROW)
    assert answer.status == 400, answer.body
    assert "a batch of the stream is too large" in answer.json()["message"]


def test_many_rows_in_any_order_stream(server: Server, repository: str) -> None:
    """Half a million rows, whose batches come backwards."""
    sink = pa.BufferOutputStream()
    schema = pa.schema([("path", pa.string()), ("address", pa.string())])
    with pa.ipc.new_stream(sink, schema) as writer:
        for start in range(400_000, -1, -100_000):
            numbers = [f"{number:07}" for number in range(start, start + 100_000)]
            writer.write_batch(pa.record_batch([pa.array(numbers), pa.repeat("data/0/x", len(numbers))], schema=schema))
    body = sink.getvalue().to_pybytes()
    where = f"{server.url}/api/v1/repositories/{repository}/branches/main/stage"
    headers = {"Authorization": basic(server.access_key, server.secret), "Content-Type": ARROW}
    chunks = (body[at : at + 1_000_003] for at in range(0, len(body), 1_000_003))
    answer = server.pool.request("POST", where, body=chunks, headers=headers, chunked=True)
    assert (answer.status, answer.json()) == (200, {"staged": 500_000})
    listed = server.call("GET", f"/repositories/{repository}/refs/main/objects/ls", headers={"Accept": ARROW})
    table = pa.ipc.open_stream(listed.body).read_all()
    assert table["path"].to_pylist() == [f"{number:07}" for number in range(500_000)]
