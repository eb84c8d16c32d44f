"""Jobs, maintenance and parts over HTTP: what they answer, and to whom."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from millpond.maps.loads.load import seal_data
from tests.harness.part_pieces import quarantined_in
from tests.nodes.conftest import ClusterHere, Served

SECONDS = 30
ROWS = [
    {"key": "car", "effective_time": "2025-01-01T00:00Z", "value": "ann"},
    {"key": "car", "effective_time": "2025-02-01T00:00Z", "value": "ann"},
]


def owner(node: Served, **settings: Any) -> None:
    node.pond.create_map("owner", kind="temporal_state", value="string", **settings).load(ROWS)


@contextmanager
def damaged(node: Served) -> Iterator[str]:
    """A part of map `owner` that was quarantined because its data were damaged while it waited; its id."""
    made = node.pond.create_map("owner", kind="temporal_state", value="string", exist_ok=True)
    node.node.merger.stop()
    (part,), _ = seal_data(made.definition, ROWS, node.pond.folder / "writer" / "by-hand", source="cars.csv")
    node.pond.commit_load([part], source="cars.csv", wait=False)
    (file,) = (node.pond.folder / "parts").iterdir()
    intact = file.read_bytes()
    file.write_bytes(intact[:5000] + b"\xff" * 100 + intact[5100:])
    node.node.merger.start()
    node.node.scheduler.run("merge")
    quarantined = quarantined_in(node.pond.folder)
    yield part.manifest.id
    quarantined.write_bytes(intact)


def test_a_job_is_run_on_demand_and_says_what_it_did(node: Served) -> None:
    owner(node, condense="1d")
    called = node.post(f"/v1/jobs/condense/run?wait={SECONDS}").json()
    assert called["run"] == called["runs"] == 1
    assert called["last"]["summary"] == "condensed 1 of 1 map, 1 row fewer"
    assert called["last"]["numbers"] == {"maps": 1, "ordered": 1, "rows_removed": 1}
    assert called["last"]["error"] is None


def test_a_run_that_is_not_waited_for_can_be_waited_for_later(node: Served) -> None:
    run = node.post("/v1/jobs/orphans/run").json()["run"]
    response = node.get(f"/v1/jobs/orphans?run={run}&wait={SECONDS}").json()
    assert response["runs"] >= run
    assert response["last"]["summary"] == "nothing to do"


def test_every_job_of_a_node_is_listed(node: Served) -> None:
    response = node.get("/v1/jobs").json()
    assert response["node"] == node.url
    assert [job["name"] for job in response["jobs"]] == [
        "merge", "condense", "retain", "compact", "snapshot", "cleanup", "events", "orphans", "replicate", "compare",
        "verify",
    ]  # fmt: skip
    scheduled = [job["name"] for job in response["jobs"] if job["next_ms"] is not None]
    assert "verify" not in scheduled
    assert len(scheduled) == 10


def test_a_pause_survives_a_restart(serve: Callable[..., Served]) -> None:
    first = serve()
    assert first.post("/v1/jobs/retain/pause").json()["paused"]
    data = str(first.pond.folder)
    first.close()
    again = serve(server_data=data)
    assert again.get("/v1/jobs/retain").json()["paused"]
    assert not again.post("/v1/jobs/retain/resume").json()["paused"]


def test_an_unknown_job_is_not_found(node: Served) -> None:
    answer = node.post("/v1/jobs/mergge/run")
    assert (answer.status, answer.json()["kind"]) == (404, "job_not_found")
    assert node.get("/v1/jobs/merge?wait=31").status == 400


def test_maintenance_runs_now_and_is_reported(node: Served) -> None:
    owner(node)
    condensed = node.post("/v1/maps/OWNER/maintenance", {"what": "condense", "before": "2025-03-01T00:00Z"}).json()
    assert condensed["position"] == 3
    assert condensed["report"]["rows_removed"] == 1
    assert node.pond.log.entries(2)[0].kind == "condense"
    retained = node.post("/v1/maps/owner/maintenance", {"what": "retain", "before": 1_800_000_000_000}).json()
    assert retained["report"]["rows_after"] == 0
    compacted = node.post("/v1/maps/owner/maintenance", {"what": "compact"}).json()
    assert compacted["report"]["bytes_after"] <= compacted["report"]["bytes_before"]
    assert compacted["position"] == retained["position"], "compacting changes no content"


def test_maintenance_without_a_setting_or_a_time_is_refused(node: Served) -> None:
    owner(node)
    answer = node.post("/v1/maps/owner/maintenance", {"what": "condense"})
    assert (answer.status, answer.json()["kind"]) == (400, "maintenance_setting")
    assert node.post("/v1/maps/owner/maintenance", {"what": "polish"}).json()["kind"] == "request_invalid"
    assert node.post("/v1/maps/nowhere/maintenance", {"what": "compact"}).status == 404


def test_a_replica_sends_maintenance_to_the_primary_but_compacts_its_own_pond(cluster: ClusterHere) -> None:
    cluster[0].pond.create_map("owner", kind="temporal_state", value="string", condense="1d")
    replica = cluster[1]
    assert replica.while_time_passes(lambda: replica.pond.log.wait_position(1, SECONDS))
    answer = replica.post("/v1/maps/owner/maintenance", {"what": "condense"})
    assert (answer.status, answer.json()["values"]["primary"]) == (421, cluster[0].url)
    assert replica.post("/v1/maps/owner/maintenance", {"what": "compact"}).status == 200
    summary = replica.post(f"/v1/jobs/condense/run?wait={SECONDS}").json()["last"]["summary"]
    assert summary == f"follows the log of {cluster[0].url}"


def test_parts_are_listed_and_taken_again(node: Served) -> None:
    with damaged(node) as part:
        (listed,) = node.get("/v1/parts?map=owner&state=quarantined").json()["parts"]
        assert (listed["part"], listed["rows"], listed["source"]) == (part, 2, "cars.csv")
        assert "piece=data" in listed["reason"] or "checksum" in listed["reason"], listed["reason"]
        assert node.get("/v1/parts?state=retained").json()["parts"] == []
        assert node.post("/v1/parts/retry", {"parts": ["nothing"]}).json()["kind"] == "part_not_found"
    (again,) = node.post("/v1/parts/retry", {}).json()["parts"]
    assert again["state"] in ("queued", "merging", "retained")
    node.node.scheduler.run("merge")
    (listed,) = node.get("/v1/parts").json()["parts"]
    assert listed["state"] == "retained"
    assert node.pond.map("owner").get("car", at="2025-06-01T00:00Z") == "ann"


def _token(text: str, **rights: list[str]) -> dict[str, Any]:
    return {"name": text, "sha256": hashlib.sha256(text.encode()).hexdigest(), "rights": rights}


@pytest.mark.settings(
    server_tokens=[
        _token("looks", read=["owner"]),
        _token("watches", read=["*"]),
        _token("tends", admin=["owner"]),
        _token("rules", admin=["*"]),
    ]
)
def test_who_may_read_sees_and_who_may_administer_acts(node: Served) -> None:
    owner(node)
    node.pond.create_map("secret", kind="state").load([{"key": "k", "value": "v"}])

    def status(method: str, path: str, who: str | None, body: Any = None) -> int:
        headers = {} if who is None else {"Authorization": f"Bearer {who}"}
        return node.request(method, path, body=body, headers=headers).status

    compact = {"what": "compact"}
    assert status("GET", "/v1/jobs", None) == 401
    assert status("GET", "/v1/jobs", "looks") == 403, "jobs name all maps"
    assert status("GET", "/v1/jobs", "watches") == 200
    assert status("POST", "/v1/jobs/orphans/run", "looks") == 403
    assert status("POST", "/v1/jobs/orphans/run", "tends") == 403
    assert status("POST", "/v1/jobs/orphans/run", "rules") == 200
    assert status("POST", "/v1/maps/owner/maintenance", "looks", compact) == 403
    assert status("POST", "/v1/maps/owner/maintenance", "tends", compact) == 200
    assert status("POST", "/v1/maps/secret/maintenance", "tends", compact) == 403
    assert status("POST", "/v1/parts/retry", "tends", {}) == 403
    assert status("POST", "/v1/parts/retry", "rules", {}) == 200
    seen = node.get("/v1/parts", headers={"Authorization": "Bearer looks"}).json()["parts"]
    assert {part["map"] for part in seen} == {"owner"}
