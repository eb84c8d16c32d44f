"""Errors of a node tell a caller nothing of its disk, and nothing of maps that the caller may not read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from millpond.errors import Corrupt
from millpond.maps.parts.tail import MANIFEST
from millpond.nodes.replication.log_agreement import Finding
from millpond.nodes.tokens import TokenFile, hash_token
from millpond.server.wire import relative
from tests.harness.part_pieces import put_pieces
from tests.nodes.conftest import Served
from tests.nodes.test_job_routes import damaged

pytestmark = pytest.mark.sample(2, of="file")

TOKENS = [
    {"name": name, "sha256": hash_token(name), "rights": {"read": [pattern]}}
    for name, pattern in (("some", "our*"), ("all", "*"))
]  # fmt: skip


def test_an_absent_map_names_no_map_of_others(serve: Callable[..., Served]) -> None:
    node = serve(server_tokens=TOKENS)
    for name in ("ours", "oursecret_payroll", "payroll"):
        node.pond.create_map(name, kind="state", value="long")
    paths = (
        "/v1/maps/ourz",
        "/v1/maps/ourz/get?key=a",
        "/v1/maps/ourz/snapshot",
        "/v1/parts?map=ourz",
        "/v1/log?map=ourz",
    )
    for path in paths:
        answer = node.get(path, headers={"Authorization": "Bearer some"})
        assert b"payroll" not in answer.body, (path, answer.body)
    whole = node.get("/v1/maps/ourz", headers={"Authorization": "Bearer all"})
    assert (whole.status, "ours" in whole.json()["hint"]) == (404, True)


def test_no_error_names_a_place_on_the_disk(node: Served) -> None:
    """A file of tokens that cannot be read, a part whose manifest is damaged."""
    node.pond.create_map("m", kind="state", value="long")
    folder = str(node.pond.folder).encode()
    part = "0" * 32
    put_pieces(node.pond.folder / "uploads" / part, {MANIFEST: b"["})
    answer = node.post("/v1/loads", {"load_id": "l", "parts": [part]})
    assert answer.status == 500
    assert folder not in answer.body
    assert answer.json()["values"]["file"] == f"uploads/{part}", "the operator finds it"
    TokenFile(node.pond.folder).path.write_text("[")
    answer = node.get("/v1/maps")
    assert (answer.json()["kind"], answer.json()["values"]["file"]) == ("tokens_damaged", "tokens.json")
    assert folder not in answer.body


def test_the_name_of_a_folder_that_is_a_word_changes_no_message(
    serve: Callable[..., Served], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder is `./map`, as the settings say it."""
    monkeypatch.chdir(tmp_path)
    answer = serve(server_data="map").get("/v1/maps/mapped").json()
    assert answer["values"]["map"] == "mapped"
    assert "map" in answer["message"].split()


ROUTES = (
    "/v1/jobs", "/v1/jobs/merge", "/v1/jobs/verify", "/v1/jobs/cleanup", "/v1/repair", "/v1/parts", "/readyz",
    "/v1/node",
)  # fmt: skip


@pytest.mark.parametrize("path", ROUTES)
def test_no_report_names_a_place_on_the_disk(troubled: Served, path: str) -> None:
    answer = troubled.get(path)
    assert str(troubled.pond.folder).encode() not in answer.body
    assert str(troubled.pond.folder.parent).encode() not in answer.body


def test_reports_of_orders_name_no_place_on_the_disk(troubled: Served) -> None:
    answers = [
        troubled.post("/v1/verify", {"full": True}), troubled.post("/v1/jobs/verify/run?wait=30"),
        troubled.post("/v1/jobs/snapshot/run?wait=30"), troubled.post("/v1/repair", {}),
        troubled.post("/v1/parts/retry", {}),
    ]  # fmt: skip
    assert any(b"data.mdb" in answer.body for answer in answers), "they name the file, from the folder on"
    for answer in answers:
        assert str(troubled.pond.folder).encode() not in answer.body, answer


@pytest.fixture
def troubled(node: Served) -> Served:
    """A node with a quarantined part, a damaged shard and snapshot, jobs and a repair that failed, and reasons."""
    with damaged(node):
        pass
    made = node.pond.create_map("m", kind="state", value="long")
    made.load([{"key": "a", "value": 1}])
    made.freeze()
    for file in (node.pond.folder / "snapshots").rglob("*.json"):
        file.write_text("[")
    node.pond.open_maps.forget()
    for file in (node.pond.folder / "shards").rglob("data.mdb"):
        file.write_bytes(b"\0" * file.stat().st_size)
    for job in ("verify", "snapshot", "cleanup", "compact"):
        node.node.scheduler.run(job)
    node.node.repairs.begin(None)
    assert node.node.repairs.wait(60)
    node.node.merger.worker.failure = Corrupt("x", kind="y", file=node.pond.folder / "shards" / "m" / "data.mdb")
    return node


def test_reasons_name_no_map_where_there_are_tokens(serve: Callable[..., Served]) -> None:
    """They can be seen without a token."""
    node = serve(server_tokens=TOKENS)
    finding = Finding(map="payroll", node=node.url, state="differs", rows=1)
    node.node.comparing.differing = (finding,)
    assert b"maps that differ from the primary's: 1" in node.get("/readyz").body
    merger = node.node.merger.worker
    merger.failure = Corrupt("the rows are damaged", kind="y", map="payroll")
    merger._failed = (1, str(merger.failure))
    assert b"the rows are damaged" in node.get("/readyz").body
    paths = ("/healthz", "/readyz", "/v1/node", "/v1/maps/ours/get?key=a")
    for path in paths:
        answer = node.get(path, headers={"Authorization": "Bearer some"})
        assert b"payroll" not in answer.body, (path, answer.body)
    assert any("payroll" in reason for reason in node.node.comparing.reasons()), "the log of the node does"


def test_texts_and_places_are_relative() -> None:
    folder = Path("/srv/pond")
    error = Corrupt("x", kind="y", file=folder / "a", reason="'/srv/pond/a' and /srv/pond", other=Path("/etc/x"), n=1)
    assert relative(dict(error.values), folder) == {"file": "a", "reason": "'a' and .", "other": "x", "n": 1}
