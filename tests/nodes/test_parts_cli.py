"""`millpond jobs` and `millpond parts` as an operator types them: on a folder, on a node, on all nodes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import millpond
from millpond.cli.main import app
from millpond.cli.parts import _full_id
from millpond.errors import Corrupt, Invalid, NotFound
from millpond.kernel.steps import listening
from tests.harness.part_pieces import quarantined_in
from tests.nodes.conftest import ClusterHere, Served
from tests.nodes.following import caught_up
from tests.nodes.test_job_routes import damaged, owner

pytestmark = pytest.mark.sample(3, of="file")


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("MILLPOND_POND", raising=False)
    monkeypatch.chdir(tmp_path)


def typed(*words: str, code: int = 0) -> str:
    """The output of a command."""
    done = CliRunner().invoke(app, list(words), prog_name="millpond")
    assert done.exit_code == code, f"{words} ended with {done.exit_code}\n{done.output}\n{done.exception!r}"
    return done.stdout if code == 0 else done.output


def objects(*words: str, code: int = 0) -> list[Any]:
    return [json.loads(line) for line in typed(*words, code=code).splitlines()]


def cells(text: str) -> list[list[str]]:
    """The rows of a table, each the cells that are not empty."""
    lines = [line for line in text.splitlines() if line.strip() and "──" not in line]
    return [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in lines]


# -- jobs ---------------------------------------------------------------------------------------------


def test_jobs_are_a_table_a_person_can_read(node: Served) -> None:
    owner(node, condense="1d")
    assert typed("jobs", "run", "condense", "--pond", node.url).startswith(
        "condense: condensed 1 of 1 map, 1 row fewer ("
    )
    typed("jobs", "pause", "retain", "--pond", node.url)
    head, *rows = cells(typed("jobs", "--pond", node.url))
    assert head == ["job", "every", "last", "result", "next"]
    by_name = {row[0]: row[1:] for row in rows}
    assert by_name["condense"][0] == "10min"
    assert by_name["condense"][2:] == ["condensed 1 of 1 map, 1 row fewer", "in 10 min"]
    assert by_name["retain"] == ["10min", "paused"]
    assert by_name["verify"] == ["off", "on request"]
    assert typed("jobs", "resume", "retain", "--pond", node.url) == "retain: runs by itself\n"
    assert "deletes what is too old" in typed("jobs", "--explain", "--pond", node.url)


def test_jobs_speak_json(node: Served) -> None:
    by_name = {job["name"]: job for job in objects("jobs", "--pond", node.url, "--json")}
    assert by_name["compact"]["interval_ms"] == 3_600_000
    assert {job["node"] for job in by_name.values()} == {node.url}
    (ran,) = objects("jobs", "run", "orphans", "--pond", node.url, "--json")
    assert ran["last"]["summary"] == "nothing to do"
    (paused,) = objects("jobs", "pause", "orphans", "--pond", node.url, "--json")
    assert paused["paused"]


def test_a_run_that_went_wrong_ends_with_one(node: Served) -> None:
    owner(node)
    (node.pond.map("owner").shard.folder / "current").write_text("astray\n")
    node.pond.open_maps.forget()
    output = typed("jobs", "run", "compact", "--pond", node.url, code=1)
    assert output.startswith(
        "compact: nothing to do in 1 map (0.0 s) · error: map owner: the map's pointer names no generation"
    )
    assert "error: map owner" in typed("jobs", "--pond", node.url)


def test_jobs_of_all_nodes(cluster: ClusterHere) -> None:
    output = typed("jobs", "--all", "--pond", cluster[2].url)
    assert [line for line in output.splitlines() if line.startswith("http")] == cluster.urls
    one = objects("jobs", "--pond", cluster[2].url, "--json")
    assert {job["node"] for job in one} == {cluster[2].url}, "the node that is named, by default"
    ran = typed("jobs", "run", "condense", "--all", "--pond", cluster[2].url).splitlines()
    assert ran[0].startswith(f"{cluster.urls[0]}: condense: nothing to do")
    assert ran[1].startswith(f"{cluster.urls[1]}: condense: follows the log of {cluster.urls[0]}")


def test_a_node_that_is_down_is_named_after_what_the_others_say(cluster: ClusterHere) -> None:
    cluster[1].close()
    output = typed("jobs", "--all", "--pond", cluster[0].url, code=7)
    assert output.count("condense") == 2
    assert f"node={cluster.urls[1]}" in output


def test_a_folder_has_no_jobs_and_an_unknown_one_is_refused(node: Served) -> None:
    assert "jobs run on nodes" in typed("jobs", "--pond", "pond", code=5)
    assert "one of: merge, condense" in typed("jobs", "run", "conden", "--pond", node.url, code=3)


def test_the_threads_of_a_process_are_shown(node: Served) -> None:
    node.until(lambda: "the clock of jobs" in typed("jobs", "--workers", "--pond", node.url))
    head, *rows = cells(typed("jobs", "--workers", "--pond", node.url))
    assert head == ["worker", "state", "last", "last failure"]
    assert "the clock of jobs" in [row[0] for row in rows]
    by_name = {worker["name"]: worker for worker in objects("jobs", "--workers", "--json", "--pond", node.url)}
    clock = by_name["the clock of jobs"]
    assert (clock["node"], clock["failed_ms"], clock["failure"]) == (node.url, None, None)
    assert clock["state"] in ("waiting", "acting")
    assert clock["last_ms"] is not None
    seen = node.get("/healthz").json()
    assert seen["status"] == "ok"
    assert "the clock of jobs" in [worker["name"] for worker in seen["workers"]]
    typed("init", "folder")
    assert {worker["node"] for worker in objects("jobs", "--workers", "--json", "--pond", "folder")} <= {"folder"}


def test_the_node_of_the_configuration_is_used_when_none_is_named(node: Served, tmp_path: Path) -> None:
    (tmp_path / "millpond.toml").write_text(f"server.port = {node.url.rpartition(':')[2]}\n")
    assert {job["node"] for job in objects("jobs", "--json")} == {node.url}


# -- parts --------------------------------------------------------------------------------------------


def test_quarantined_parts_of_a_folder_are_listed_and_taken_again(tmp_path: Path) -> None:
    intact = b""

    def damage(step: str) -> None:
        nonlocal intact
        if step == "load.committed":
            (file,) = (tmp_path / "pond" / "parts").iterdir()
            intact = file.read_bytes()
            file.write_bytes(intact[:5000] + b"\xff" * 100 + intact[5100:])

    with millpond.open(tmp_path / "pond") as pond:
        made = pond.create_map("owner", kind="state", value="string")
        with listening(damage), pytest.raises(Corrupt):
            made.load([{"key": "k", "value": "v"}], source="cars.csv")
        (quarantined,) = pond.parts.list()
    output = typed("parts", "--state", "quarantined")
    assert cells(output)[1][1:4] == ["quarantined", "owner", "1"]
    assert "cars.csv" in output
    assert f"{quarantined.part[:8]} of owner was quarantined: " in output
    assert "when the cause is gone: millpond parts retry" in output
    assert typed("parts", "--map", "owner", "--state", "queued") == "no part waits, and none was quarantined\n"
    again = typed("parts", "retry", quarantined.part[:6])
    assert "quarantined again" in again
    quarantined_in(tmp_path / "pond").write_bytes(intact)
    assert typed("parts", "retry") == f"{quarantined.part[:8]} of owner: merged\n"
    assert typed("parts", "retry") == "no part was quarantined\n"
    assert typed("get", "owner", "k").strip() == "v"


def test_parts_of_a_node_in_every_state(node: Served) -> None:
    with damaged(node) as part:
        node.pond.map("owner").load([{"key": "bus", "effective_time": "2025-01-01T00:00Z", "value": "eve"}])
        output = typed("parts", "--pond", node.url)
        assert f"{part[:8]} of owner was quarantined: " in output
        assert "1 merged part is kept, " in output
        (quarantined,) = objects("parts", "--state", "quarantined", "--pond", node.url, "--json")
        assert (quarantined["part"], quarantined["map"], quarantined["rows"]) == (part, "owner", 2)
        assert [entry["state"] for entry in objects("parts", "--state", "retained", "--pond", node.url, "--json")] == [
            "retained"
        ]
        assert "no part of that id" in typed("parts", "retry", "feed", "--pond", node.url, code=3)
    (again,) = objects("parts", "retry", part[:8], "--pond", node.url, "--json")
    assert again["part"] == part
    node.node.scheduler.run("merge")
    assert typed("parts", "--pond", node.url).startswith(
        "no part waits, and none was quarantined\n2 merged parts are kept"
    )


def test_parts_of_a_cluster_name_their_node(cluster: ClusterHere) -> None:
    owner(cluster[0])
    for node in cluster.nodes:
        caught_up(node, 2)
    table = cells(typed("parts", "--state", "retained", "--pond", cluster[1].url))
    assert table[1] == ["part", "state", "map", "rows", "size", "age", "source"]
    assert [row[0] for row in table if row[0].startswith("http")] == cluster.urls
    assert len(table) == 9
    assert [
        entry["node"] for entry in objects("parts", "--state", "retained", "--pond", cluster[1].url, "--json")
    ] == cluster.urls
    assert typed("parts", "retry", "--pond", cluster[1].url) == "no part was quarantined\n"


def test_parts_of_nodes_that_answer_are_listed_before_the_one_that_does_not(cluster: ClusterHere) -> None:
    owner(cluster[0])
    cluster[1].close()
    output = typed("parts", "--state", "retained", "--pond", cluster[0].url, code=7)
    assert cluster.urls[0] in output.splitlines()
    assert f"node={cluster.urls[1]}" in output


def test_the_beginning_of_an_id_is_enough_when_it_is_one() -> None:
    known = ["aaaa1111", "aabb2222", "cccc3333"]
    assert _full_id(known, "CC") == "cccc3333"
    with pytest.raises(Invalid, match="aaaa1111, aabb2222"):
        _full_id(known, "aa")
    with pytest.raises(NotFound):
        _full_id(known, "dd")
