"""Rights to read the log, parts and copies, and to repair."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import millpond

if TYPE_CHECKING:
    from tests.nodes.conftest import Served


def token(name: str, **rights: list[str]) -> dict[str, object]:
    """A token that is called as its secret."""
    return {"name": name, "sha256": hashlib.sha256(name.encode()).hexdigest(), "rights": rights}


TOKENS = [token("all", admin=["*"]), token("reader", read=["m"]), token("writer", write=["m"])]


def status(node: Served, method: str, path: str, who: str | None, body: object = None) -> int:
    headers = {} if who is None else {"Authorization": f"Bearer {who}"}
    return node.request(method, path, body=body, headers=headers).status


@pytest.mark.settings(server_tokens=TOKENS)
def test_rights(node: Served) -> None:
    for name in ("m", "other"):
        node.pond.create_map(name, kind="state", value="long").load(pa.table({"key": [name], "value": [1]}))
    parts = {part.map: part.part for part in node.pond.parts.list()}
    ours, theirs = (f"/v1/parts/{parts[name]}/stream" for name in ("m", "other"))
    allowed = {
        ("GET", "/v1/log"): ["all"],
        ("GET", "/v1/log?map=m"): ["all", "reader", "writer"],
        ("GET", "/v1/log?map=other"): ["all"],
        ("GET", "/v1/log/state"): ["all"],
        ("GET", "/v1/log/quarantine"): ["all"],
        ("GET", "/v1/maps/m/digest"): ["all", "reader", "writer"],
        ("GET", "/v1/maps/m/shard"): ["all"],
        ("GET", ours): ["all", "reader", "writer"],
        ("GET", "/v1/repair"): ["all"],
        ("POST", "/v1/repair"): ["all"],
        ("POST", "/v1/verify"): ["all"],
        ("POST", "/v1/log/replication"): ["all", "writer"],
    }
    for name, expected in (("all", 200), ("reader", 404), ("writer", 404)):
        assert status(node, "GET", theirs, name) == expected, "of a map one may not read, there is no part"
    for (method, path), who in allowed.items():
        body = None if method == "GET" else {"position": 1} if path.endswith("replication") else {}
        assert status(node, method, path, None, body) == 401, path
        assert status(node, method, path, "nobody", body) == 401, path
        for name in ("all", "reader", "writer"):
            found = status(node, method, path, name, body)
            assert (found < 300) if name in who else (found == 403), (method, path, name, found)


@pytest.mark.settings(server_tokens=TOKENS)
def test_to_verify_without_the_right_is_refused_not_a_finding(node: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLPOND_CLIENT_TOKEN", "reader")
    with millpond.open(node.url) as pond, pytest.raises(millpond.Denied, match="right=admin"):
        pond.verify()
    monkeypatch.setenv("MILLPOND_CLIENT_TOKEN", "all")
    with millpond.open(node.url) as pond:
        assert pond.verify().ok


def test_what_the_routes_take_is_written_down(node: Served) -> None:
    paths = node.get("/openapi.json").json()["paths"]
    for path in ("/v1/log", "/v1/log/replication", "/v1/maps/{name}/shard", "/v1/parts/{part_id}/stream", "/v1/repair"):
        assert all(operation["summary"] for operation in paths[path].values())


ORIGINS = [token("one", read=["copy", "moved"]), token("both", read=["copy", "moved", "first"])]


@pytest.mark.settings(server_tokens=ORIGINS)
def test_a_copy_names_its_origin_to_whoever_may_read_it(node: Served) -> None:
    node.pond.create_map("first", kind="state", value="double", store="layers").load([{"key": "a", "value": 1.0}])
    node.pond.catalogue.copy("first", "copy")
    node.pond.catalogue.rename("first", "moved")
    for name, part in (("copy", "copied_from"), ("moved", "renamed_from")):
        for who, origin in (("both", "first"), ("one", None)):
            shown = node.get(f"/v1/log?map={name}", headers={"Authorization": f"Bearer {who}"}).json()
            assert shown["entries"][0]["body"].get(part) == origin, who
