"""Ponds by URL: what opening tells, which node answers, and every command of the command line over it.

That maps on nodes answer as maps in folders do is the business of `tests/contracts/test_ponds.py`.
"""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

import millpond
from millpond.cli.main import app
from millpond.cli.options import existing_pond
from millpond.errors import AlreadyExists, Closed, Conflict, Corrupt, Denied, Invalid, NotFound, Unavailable
from millpond.maps.parts.part import read_manifest, verify_part
from millpond.nodes.tokens import hash_token
from tests.harness.cluster import free_port
from tests.harness.faulty_proxy import FaultyProxy, Trouble
from tests.nodes.acted import Stage, refuse, say

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.nodes.conftest import ClusterHere, Served

pytestmark = pytest.mark.sample(4, of="file")

QUICK: dict[str, Any] = {"client_synchronise": True}


def rows(count: int = 10) -> pa.Table:
    return pa.table({"key": [f"k{n}" for n in range(count)], "value": list(range(count))})


# -- opening ------------------------------------------------------------------------------------------


def test_any_node_names_all_of_them(cluster: ClusterHere) -> None:
    for url in (cluster.url, cluster.urls[2], f" {cluster.urls[1]}/ , "):
        with millpond.open(url) as pond:
            assert pond.nodes.where == cluster.url
            assert pond.log.pond_id == cluster[0].pond.log.pond_id
            assert pond.log.position() == cluster[0].pond.log.position()


def test_a_pond_that_cannot_be_reached_is_an_error() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(Unavailable) as caught:
        millpond.open(url)
    assert caught.value.kind == "node_unreachable"
    assert caught.value.values["node"] == url


def test_what_is_not_a_node_or_not_a_setting_is_an_error(tmp_path: Path) -> None:
    with Stage(say(200, b"<html></html>")) as stage, pytest.raises(Invalid) as caught:
        millpond.open(stage.url)
    assert caught.value.kind == "not_a_node"
    with pytest.raises(Invalid) as caught:
        millpond.open("http://127.0.0.1:1", tokn="x")
    assert caught.value.kind == "setting_unknown"
    with pytest.raises(Invalid) as caught:
        millpond.open("http://127.0.0.1:x")
    assert caught.value.kind == "node_url"


def test_closing_twice_is_harmless_and_another_query_opens_again(node: Served) -> None:
    pond = millpond.open(node.url, **QUICK)
    made = pond.create_map("m", kind="state", value="long")
    made.close()
    pond.close()
    pond.close()
    assert made.get("k") is None


def test_rights_are_required(serve: Callable[..., Served], tmp_path: Path) -> None:
    tokens = [
        {"name": "all", "sha256": hash_token("all-token"), "rights": {"admin": ["*"]}},
        {"name": "reader", "sha256": hash_token("reader-token"), "rights": {"read": ["open_*"]}},
    ]
    node = serve(server_tokens=tokens, client_token="all-token")
    with millpond.open(node.url, client_token="all-token", **QUICK) as pond:
        for name in ("open_m", "shut_m"):
            pond.create_map(name, kind="state", value="long").load(rows())
    with millpond.open(node.url, client_token="reader-token", **QUICK) as pond:
        assert [pond_map.name for pond_map in pond.maps()] == ["open_m"]
        assert pond.map("open_m").get("k7") == 7
        assert pond.map("open_m").lookup(["k7"]).to_pylist() == [7]
        for refused in (
            lambda: pond.map("shut_m"),
            lambda: pond.map("open_m").load(rows(20)),
            lambda: pond.create_map("mine", kind="state"),
            lambda: pond.drop_map("open_m"),
            lambda: pond.map("open_m").retain(before=0),
        ):
            with pytest.raises(Denied):
                refused()
    with millpond.open(node.url, client_token="wrong", **QUICK) as pond, pytest.raises(Denied):
        pond.maps()
    assert node.pond.map("open_m").info()["rows"] == 10


# -- which node answers -------------------------------------------------------------------------------


def test_questions_go_on_when_a_node_is_gone(cluster: ClusterHere) -> None:
    with millpond.open(cluster.url, **QUICK) as pond:
        made = pond.create_map("m", kind="state", value="long")
        made.load(rows(1000))
        cluster[0].close()
        assert made.get("k7") == 7
        assert made.lookup(["k7", "no"]).to_pylist() == [7, None]
        assert made.scan("value < 5").read_all().num_rows == 5
        assert pond.sql("select sum(value) as n from m").to_pydict() == {"n": [499_500]}
        assert pond.map("m").info()["rows"] == 1000
        assert [pond_map.name for pond_map in pond.maps()] == ["m"]
        with pytest.raises(Unavailable) as caught:
            pond.create_map("other", kind="state")
        assert caught.value.values["node"] == cluster.urls[0]
    with millpond.open(cluster.url, **QUICK) as pond:
        assert pond.map("m").get("k8") == 8


def test_a_scan_that_loses_its_node_says_so(node: Served) -> None:
    with millpond.open(node.url, **QUICK) as pond:
        made = pond.create_map("m", kind="state", value="string")
        made.load(pa.table({"key": [f"k{n}" for n in range(60_000)], "value": [f"{n:060d}" for n in range(60_000)]}))
        with FaultyProxy(int(node.url.rpartition(":")[2])) as line:
            pond.nodes.connections[:] = type(pond.nodes)(line.url, pond.settings).connections
            line.trouble(Trouble("cut", match=b"POST /v1/maps/m/scan", after=400_000, down=True))
            with pytest.raises(Unavailable) as caught:
                made.scan().read_all()
            assert caught.value.kind == "node_unreachable"
            assert made.scan().read_all().num_rows == 60_000


def test_changes_through_a_replica_reach_the_primary(cluster: ClusterHere) -> None:
    with Stage() as liar:
        # somebody who believes the wrong node to be the primary is led to the right one
        node_info = {"pond": "p", "nodes": [cluster.urls[1]], "primary": cluster.urls[1]}
        liar.acts = [say(200, node_info)]
        with millpond.open(liar.url, **QUICK) as pond:
            assert pond.nodes.urls == (cluster.urls[1],)
            pond.create_map("m", kind="state", value="long")
            assert pond.map("m").kind == "state"
    assert cluster[0].pond.map("m").definition == cluster[1].pond.map("m").definition


def test_one_pond_may_be_used_by_many_threads(node: Served) -> None:
    with millpond.open(node.url, **QUICK) as pond:
        made = pond.create_map("m", kind="state", value="long")
        made.load(rows(1000))
        wrong: list[object] = []

        def ask(offset: int) -> None:
            numbers = range(offset, 1000, 97)
            wrong.extend(n for n in numbers if made.get(f"k{n}") != n or made.lookup([f"k{n}"]).to_pylist() != [n])

        threads = [threading.Thread(target=ask, args=(offset,)) for offset in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not wrong


# -- the log and the parts ----------------------------------------------------------------------------


def test_the_log_and_its_parts_can_be_read(cluster: ClusterHere, tmp_path: Path) -> None:
    with millpond.open(cluster.url, **QUICK) as pond:
        made = pond.create_map("m", kind="state", value="long")
        result = made.load(rows())
        entries = pond.log.entries(0)
        assert [entry.kind for entry in entries] == ["create", "load"]
        assert (entries[-1].position, entries[-1].chain) == pond.log.position()
        assert result.position == pond.log.position()[0]
        assert pond.log.applied("m") == result.position
        (part,) = entries[-1].body["parts"]
        manifest = pond.parts.fetch(part["id"], tmp_path / "part")
        assert verify_part(tmp_path / "part") == manifest == read_manifest(tmp_path / "part")
        assert manifest.id == part["id"]
        with pytest.raises(NotFound):
            pond.parts.fetch("0" * 32, tmp_path / "other")
        assert {part.state for part in pond.parts.list()} <= {"retained"}


def test_damage_on_one_node_is_found_and_named(cluster: ClusterHere) -> None:
    with millpond.open(cluster.url, **QUICK) as pond:
        pond.create_map("m", kind="state", value="long").load(rows(5000))
        assert pond.verify(full=True).ok
        cluster[2].close()
        report = pond.verify()
        assert [problem.place for problem in report.problems] == [cluster.urls[2]]


# -- the command line ---------------------------------------------------------------------------------


def said(*words: str, code: int = 0) -> str:
    done = CliRunner().invoke(app, list(words), prog_name="millpond")
    assert done.exit_code == code, f"{words} ended with {done.exit_code}\n{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr
    return done.stdout if code in (0, 1) else done.stderr


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("MILLPOND_CLIENT_SYNCHRONISE", "true")
    monkeypatch.setenv("MILLPOND_CLIENT_CACHE", str(tmp_path / "cache"))


@pytest.mark.usefixtures("typed")
def test_every_command_speaks_to_nodes(cluster: ClusterHere, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLPOND_POND", cluster.urls[1])
    Path("weather.csv").write_text(
        "airport,time,temp\nJFK,2013-02-08T17:00Z,33.1\nJFK,2013-02-08T18:00Z,33.1\nLGA,2013-02-08T17:00Z,34.0\n"
    )
    assert "created weather" in said("create", "weather", "--kind", "temporal_state", "--value", "temp double")
    assert "loaded 3 rows into weather" in said("load", "weather", "weather.csv", "--key", "airport")
    assert "the same data was loaded before" in said("load", "weather", "weather.csv", "--key", "airport")
    assert json.loads(said("load", "weather", "weather.csv", "--key", "airport", "--again", "--json"))["parts"] == 1
    assert "weather" in said("maps")
    shown = json.loads(said("maps", "weather", "--json"))
    assert (shown["rows"], shown["value"]) == (3, "temp double")
    assert "33.1" in said("get", "weather", "JFK", "--at", "2013-02-08T18:42Z")
    said("get", "weather", "EWR", code=1)
    assert json.loads(said("scan", "weather", "--where", "key = 'LGA'", "--json"))["temp"] == 34.0
    assert json.loads(said("query", "select count(*) as n from weather", "--json")) == {"n": 3}
    assert "changed weather" in said("alter", "weather", "--retain", "10y")
    report = json.loads(said("maintenance", "condense", "weather", "--before", "2014-01-01T00:00Z", "--json"))
    assert (report["rows_before"], report["rows_removed"]) == (3, 1)
    assert json.loads(said("maintenance", "retain", "--all", "--json"))["rows_after"] == 0
    assert json.loads(said("maintenance", "compact", "weather", "--json"))["rows_after"] == 0
    assert [node.pond.map("weather").info()["rows"] for node in cluster.nodes] == [0, 0, 0]
    assert "dropped weather" in said("drop", "weather", "--yes")
    assert "no maps yet" in said("maps")


@pytest.mark.usefixtures("typed")
def test_a_load_is_waited_for_on_request(cluster: ClusterHere, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MILLPOND_CLIENT_SYNCHRONISE")
    monkeypatch.setenv("MILLPOND_POND", cluster.urls[0])
    said("create", "planes", "--kind", "state", "--value", "long")
    Path("planes.csv").write_text("key,value\nN14228,1999\n")
    assert "the nodes are merging them" in said("load", "planes", "planes.csv")
    assert "merging" not in said("load", "planes", "planes.csv", "--again", "--synchronise")
    assert [node.pond.map("planes").get("N14228") for node in cluster.nodes] == [1999] * 3


@pytest.mark.usefixtures("typed")
def test_a_node_that_is_not_there_is_a_sentence_that_names_it() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    for words in (["maps"], ["get", "weather", "JFK"], ["query", "select 1"], ["maintenance", "condense", "weather"]):
        output = said(*words, "--pond", url, code=7)
        assert output.startswith("error: the node cannot be reached after 3 attempts")
        assert url in output
        assert "Connection refused" in output
    output = json.loads(said("maps", "--json", "--pond", url, code=7))["error"]
    assert (output["kind"], output["values"]["node"]) == ("node_unreachable", url)


@pytest.mark.usefixtures("typed")
def test_a_folder_is_made_by_init_and_a_node_by_serve(node: Served) -> None:
    assert "millpond serve --data FOLDER" in said("init", "--pond", node.url, code=5)
    with existing_pond(node.url) as pond:
        assert pond.maps() == []


@pytest.mark.usefixtures("typed")
def test_an_upload_shows_how_far_it_is(node: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    from millpond.cli.terminal import console

    shown: list[tuple[str, int | None, str]] = []
    counted: dict[str, int] = {}
    real = console.progress

    def progress(what: str, *, total: int | None = None, unit: str = "rows", quiet: bool = False) -> Any:
        from contextlib import contextmanager

        shown.append((what, total, unit))

        @contextmanager
        def bar() -> Any:
            with real(what, total=total, unit=unit, quiet=quiet):
                yield lambda count, part=None: counted.update({what: counted.get(what, 0) + count})

        return bar()

    monkeypatch.setattr(console, "progress", progress)
    Path("m.csv").write_text("key,value\n" + "".join(f"k{n},{n}\n" for n in range(2000)))
    said("create", "m", "--kind", "state", "--value", "long", "--pond", node.url)
    said("load", "m", "m.csv", "--pond", node.url)
    assert [what for what, _, _ in shown] == ["loading", "uploading"]
    assert shown[1][2] == "bytes"
    assert counted == {"loading": 2000, "uploading": shown[1][1]}


def test_errors_of_every_class_reach_the_caller_as_themselves(node: Served) -> None:
    for cls in (AlreadyExists, Closed, Conflict, Corrupt, Denied, Invalid, NotFound, Unavailable):
        with Stage(say(200, {"pond": "p", "nodes": []}), refuse(418, cls.__name__, "some_kind", n=1)) as stage:
            pond = millpond.open(stage.url, **QUICK)
            with pytest.raises(cls) as caught:
                pond.map("m")
            assert (caught.value.kind, caught.value.values) == ("some_kind", {"n": 1})
