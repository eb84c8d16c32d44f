"""Queries over the wire: every answer is what the map answers locally, by whichever way it comes."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import millpond
from millpond.arrays.xxh3 import hash_keys
from millpond.client.lookup import Questions
from millpond.client.snapshots.fetch import manifest_in
from millpond.client.snapshots.pin import SnapshotPin
from millpond.client.snapshots.planned import open_pinned, pinned_objects
from millpond.client.snapshots.reader import bounds_query
from millpond.client.transport import Nodes
from millpond.errors import Invalid, NotFound, Unavailable
from millpond.maps.snapshots.manifest import SnapshotManifest
from millpond.maps.snapshots.partition_filter import HashShare, shares_of
from millpond.nodes.lookup_service import arrow_stream
from millpond.nodes.tokens import TokenFile
from millpond.ranges.files import content_id
from millpond.ranges.index import read_index
from millpond.settings import Settings, load_settings
from millpond.testing.faults import STEPS_LOG
from tests.docs.snippets import snippets

pytestmark = pytest.mark.sample(6, of="file")

KEYS = 50_000


def as_stream(**columns: Any) -> bytes:
    batch = pa.RecordBatch.from_pydict(columns)
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue()


# -- over HTTP ----------------------------------------------------------------------------------------


@pytest.fixture
def weather(node: Any) -> Any:
    """A node with a map whose values are structs."""
    pond_map = node.pond.create_map("weather", kind="temporal_state", value="temp double, code string")
    rows = {
        "key": [f"k{key:05d}" for key in range(KEYS)], "effective_time": pa.array([1_000] * KEYS, pa.int64()),
        "temp": [float(key) for key in range(KEYS)], "code": ["x"] * KEYS,
    }  # fmt: skip
    load(node, pond_map, pa.table(rows))
    return node


def load(node: Any, pond_map: Any, table: pa.Table) -> None:
    result = pond_map.load(table, zone="UTC")
    node.pond.log.wait_applied(result.position, timeout=30)


@pytest.fixture
def reading(weather: Any, tmp_path: Path) -> Settings:
    return load_settings(client_cache=str(tmp_path / "cache"), maps_memory_max="32MiB")


def pin_snapshot(where: SnapshotPin, settings: Settings, keys: tuple[str, str] | None = None) -> SnapshotManifest:
    """Choose the snapshot of a map as it is now, and have the node keep its files."""
    path, query = f"/v1/maps/{where.map}/snapshot", dict(bounds_query(keys, None)) | {"fresh": "1", "pin": "600"}
    with closing(Nodes(where.nodes, settings)) as nodes:
        return manifest_in(nodes.first(lambda node: node.request("GET", path, query=query)))


@pytest.fixture
def questions(weather: Any, reading: Settings) -> Iterator[Questions]:
    made = Questions(Nodes(weather.url, reading), None, reading, weather.clock)
    yield made
    made.close()


def test_one_value_comes_with_its_type(weather: Any, questions: Questions) -> None:
    definition = weather.pond.map("weather").definition
    assert questions.get(definition, b"k00007", 1_000) == {"temp": 7.0, "code": "x"}
    assert questions.get(definition, b"k00007") == {"temp": 7.0, "code": "x"}
    assert questions.get(definition, b"k00007", 999) is None
    assert questions.get(definition, b"\xff\xfe", 1_000) is None
    response = weather.get("/v1/maps/weather/get?key=k00007&at=1970-01-01T00:00:01Z")
    assert response.json()["value"]["temp"] == {"type": "double", "value": 7.0}
    assert weather.get("/v1/maps/weather/get?key=none").json() == {"found": False, "type": "null", "value": None}


@pytest.mark.parametrize(
    ("path", "status", "kind"),
    [
        ("/v1/maps/weather/get", 400, "key_missing"),
        ("/v1/maps/weather/get?key_hex=zz", 400, "key_missing"),
        ("/v1/maps/weather/get?key=a&at=2013-01-01", 400, "time_naive"),
        ("/v1/maps/nothing/get?key=a", 404, "map_not_found"),
        ("/v1/maps/nothing/snapshot", 404, "map_not_found"),
        ("/v1/maps/weather/snapshot?key_from=b&key_to=a", 400, "snapshot_bounds"),
        ("/v1/maps/weather/snapshot?pin=-1", 400, "request_invalid"),
        ("/v1/maps/weather/objects/ranges/none.arrow", 404, "snapshot_not_found"),
        ("/v1/maps/weather/objects/../../pond.json", 404, None),
        ("/v1/maps/weather/objects/%2e%2e/%2e%2e/pond.json", 404, "snapshot_not_found"),
        ("/v1/maps/weather/objects/ranges/..%2f..%2f..%2f..%2fpond.json", 404, "snapshot_not_found"),
        ("/v1/maps/weather/objects//etc/passwd", 404, "snapshot_not_found"),
        ("/v1/maps/weather/objects/leases/x.lock", 404, "snapshot_not_found"),
    ],
)
def test_what_cannot_be_answered_is_said(weather: Any, path: str, status: int, kind: str | None) -> None:
    response = weather.get(path)
    assert response.status == status
    assert kind is None or response.json()["kind"] == kind


def test_every_question_needs_the_right_to_read(weather: Any) -> None:
    weather.pond.create_map("other", kind="state")
    tokens = TokenFile(weather.pond.folder)
    tokens.add("reader", "secret", {"read": ["weather"]})
    asks: list[tuple[str, str, Any]] = [
        ("GET", "get?key=a", None), ("GET", "snapshot", None), ("GET", "objects/ranges/x.arrow", None),
        ("POST", "lookup", as_stream(key=["a"])), ("POST", "scan", {"where": "key = 'a'"}),
    ]  # fmt: skip
    for method, path, body in asks:
        statuses = {
            (name, token): weather.request(
                method, f"/v1/maps/{name}/{path}", body=body, headers={"Authorization": token} if token else {}
            ).status
            for name in ("weather", "other")
            for token in ("", "Bearer wrong", "Bearer secret")
        }
        assert statuses["weather", "Bearer secret"] in (200, 404)
        assert statuses["other", "Bearer secret"] == 403
        assert {status for (_, token), status in statuses.items() if token != "Bearer secret"} == {401}


@pytest.mark.parametrize("via", ["remote", "snapshot", "auto"])
def test_many_keys_by_any_way(weather: Any, questions: Questions, via: Any) -> None:
    pond_map = weather.pond.map("weather")
    keys = pa.chunked_array([["k00001", None], ["nothing", "k19999"]])
    at = pa.array([1_000, 1_000, 1_000, None], pa.int64())
    assert questions.lookup(pond_map.definition, keys, at, via).equals(pond_map.lookup(keys, at))
    assert questions.lookup(pond_map.definition, keys.combine_chunks().dictionary_encode(), 1_000, via).equals(
        pond_map.lookup(keys, 1_000)
    )
    assert questions.lookup(pond_map.definition, keys, via=via).equals(pond_map.lookup(keys))
    assert questions.lookup(pond_map.definition, [], at=5, via=via).equals(pond_map.lookup([], 5))
    with pytest.raises(Invalid):
        questions.lookup(pond_map.definition, [1.5], 1_000, via)
    with pytest.raises(Invalid, match="zone"):
        questions.lookup(pond_map.definition, ["a"], "2013-01-01", via)


def test_large_questions_go_in_pieces(weather: Any, questions: Questions, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millpond.client.lookup.REQUEST_ROWS", 300)
    pond_map = weather.pond.map("weather")
    keys = pa.array([f"k{key:05d}" for key in range(1_000)])
    at = pa.array([1_000, 999] * 500, pa.int64())
    assert questions.lookup(pond_map.definition, keys, at, "remote").equals(pond_map.lookup(keys, at))


@pytest.mark.settings(client_min_time_to_keep_snapshots="10min")
def test_few_keys_are_looked_up_remotely_until_a_snapshot_pays(weather: Any, reading: Settings) -> None:
    made = Questions(Nodes(weather.url, reading), None, reading, weather.clock)
    made.remote_rows_max = 10
    pond_map = weather.pond.map("weather")
    for _ in range(3):
        made.lookup(pond_map.definition, ["a", "b", "c"], 1_000)
        assert not made.reader("weather").cached
    made.lookup(pond_map.definition, ["a", "b", "c"], 1_000)
    assert made.reader("weather").cached
    # Its own changes it sees at once, those of others when the snapshot is due.
    load(weather, pond_map, pa.table({"key": ["k00001"], "effective_time": [5], "temp": [-1.0], "code": ["new"]}))
    assert made.lookup(pond_map.definition, ["k00001"], 6).to_pylist() == [None]
    made.changed("weather")
    assert made.lookup(pond_map.definition, ["k00001"], 6).to_pylist() == [{"temp": -1.0, "code": "new"}]
    made.close()


def test_rows_come_as_a_stream(weather: Any, questions: Questions) -> None:
    pond_map = weather.pond.map("weather")
    found = questions.scan(pond_map.definition, "temp < 3", ["key", "temp"]).read_all()
    assert found.sort_by("key").equals(pond_map.scan("temp < 3", ["key", "temp"]).read_all().sort_by("key"))
    assert questions.scan(pond_map.definition, [["key", "=", "k00005"]], None).read_all().num_rows == 1
    assert questions.scan(pond_map.definition, None, None).read_all().num_rows == KEYS
    assert questions.scan(pond_map.definition, "key = 'nobody'", None).read_all().num_rows == 0
    for where, columns in (("nonsense", None), (None, ["nothing"]), ("temp > 'a'", None)):
        with pytest.raises(Invalid):
            questions.scan(pond_map.definition, where, columns).read_all()


def test_a_scan_that_nobody_reads_on_ends(weather: Any, questions: Questions, monkeypatch: pytest.MonkeyPatch) -> None:
    pond_map = weather.pond.map("weather")
    # More than the buffers of both ends hold, so that the node must wait for the reader.
    many = pa.table(
        {
            "key": [f"z{key:06d}" for key in range(200_000)],
            "effective_time": pa.array([1] * 200_000, pa.int64()),
            "temp": [1.0] * 200_000,
            "code": ["y" * 200] * 200_000,
        }
    )
    load(weather, pond_map, many)
    ended = threading.Event()
    with monkeypatch.context() as patched:
        patched.setattr("millpond.server.routes.questions.arrow_stream", lambda reader: _watched(reader, ended))
        reader = questions.scan(pond_map.definition, None, None)
        assert reader.read_next_batch().num_rows > 0
        # Nothing of the shard is held for who reads slowly: it may grow meanwhile.
        assert not pond_map.shard._opened().env._open
        assert not ended.wait(0.1)
        del reader
        assert ended.wait(20)


def _watched(reader: pa.RecordBatchReader, ended: threading.Event) -> Iterator[bytes]:
    try:
        yield from arrow_stream(reader)
    finally:
        ended.set()


# -- snapshots ----------------------------------------------------------------------------------------


def test_a_manifest_is_named_by_its_content_and_confirmed_by_its_name(weather: Any) -> None:
    response = weather.get("/v1/maps/weather/snapshot")
    tag = response.headers["ETag"]
    assert content_id(response.body) == tag.strip('"')
    manifest = SnapshotManifest.from_bytes(response.body)
    assert manifest.map == "weather"
    assert response.headers["Millpond-Pond"] == weather.pond.log.pond_id
    for held in (tag, f"W/{tag}", f'"other", {tag}', "*"):
        same = weather.get("/v1/maps/weather/snapshot", headers={"If-None-Match": held})
        assert (same.status, same.body, same.headers["ETag"]) == (304, b"", tag)
    assert weather.get("/v1/maps/weather/snapshot", headers={"If-None-Match": '"other"'}).status == 200


def test_files_never_change_and_come_in_pieces(weather: Any) -> None:
    manifest = SnapshotManifest.from_bytes(weather.get("/v1/maps/weather/snapshot").body)
    path = f"/v1/maps/weather/objects/indexes/{manifest.layers[0].index}.arrow"
    whole = weather.get(path)
    assert read_index(pa.py_buffer(whole.body), manifest.layers[0].index).id == manifest.layers[0].index
    assert "immutable" in whole.headers["Cache-Control"]
    some = weather.get(path, headers={"Range": "bytes=10-19"})
    assert (some.status, some.body) == (206, whole.body[10:20])
    assert weather.get(path, headers={"If-None-Match": whole.headers["ETag"]}).status == 304


def test_a_snapshot_is_frozen_when_it_is_due_or_when_one_insists(weather: Any) -> None:
    first = weather.get("/v1/maps/weather/snapshot").headers["ETag"]
    pond_map = weather.pond.map("weather")
    load(weather, pond_map, pa.table({"key": ["k00001"], "effective_time": [5], "temp": [-1.0], "code": ["new"]}))
    assert weather.get("/v1/maps/weather/snapshot").headers["ETag"] == first
    fresh = weather.get("/v1/maps/weather/snapshot?fresh=1").headers["ETag"]
    assert fresh != first
    assert weather.get("/v1/maps/weather/snapshot").headers["ETag"] == fresh


def test_maps_here_and_there_give_snapshot_subsets(weather: Any, tmp_path: Path) -> None:
    with millpond.open(weather.url, client_cache=str(tmp_path / "cache")) as remote:
        for pond_map in (remote.map("weather"), weather.pond.map("weather")):
            with pond_map.snapshot(keys=("k00010", None), window=(None, "1970-01-01T00:00:02Z")) as snapshot:
                assert snapshot.lookup(["k00010", "none"], 1_999).to_pylist() == [{"temp": 10.0, "code": "x"}, None]
                for key, at in (("k00009", 1_999), ("k00010", 2_000)):
                    with pytest.raises(Invalid, match="outside of the bounds"):
                        snapshot.lookup([key], at)
            with pond_map.snapshot(keys=(None, None)) as snapshot:
                assert snapshot.manifest.bounds is None


def test_a_snapshot_subset_over_the_wire(weather: Any, questions: Questions) -> None:
    reader = questions.reader("weather", keys=("k00010", "k00020"), window=(500, 2_000))
    assert reader.snapshot().lookup(["k00010", "k00019"], 1_500).to_pylist()[1] == {"temp": 19.0, "code": "x"}
    with pytest.raises(Invalid, match="upper=k00020"):
        reader.snapshot().lookup(["k00020"], 1_500)
    with pytest.raises(Invalid, match="lower=500 upper=2000"):
        reader.snapshot().lookup(["k00010"], 2_000)


def test_a_job_reads_the_snapshot_it_was_planned_on(weather: Any, reading: Settings) -> None:
    where = SnapshotPin((weather.url,), "weather")
    manifest = pin_snapshot(where, reading)
    pond_map = weather.pond.map("weather")
    load(weather, pond_map, pa.table({"key": ["k00001"], "effective_time": [5], "temp": [-1.0], "code": ["new"]}))
    weather.get("/v1/maps/weather/snapshot?fresh=1")
    with open_pinned(where, manifest.id, settings=reading) as snapshot:
        assert snapshot.lookup(["k00001"], 6).to_pylist() == [None]
    later = pin_snapshot(where, reading)
    with open_pinned(where, later.id, settings=reading) as snapshot:
        assert snapshot.lookup(["k00001"], 6).to_pylist() == [{"temp": -1.0, "code": "new"}]
    with pytest.raises(NotFound):
        open_pinned(where, "0" * 40, settings=reading)


def test_a_task_fetches_the_files_of_its_share_alone(
    weather: Any, reading: Settings, questions: Questions, tmp_path: Path
) -> None:
    where = SnapshotPin((weather.url,), "weather")
    manifest = pin_snapshot(where, reading)
    keys = pa.array([f"k{key:05d}" for key in range(KEYS)])
    first = keys.filter(pa.array(shares_of(hash_keys(keys), 4) == 0))
    with open_pinned(where, manifest.id, share=HashShare(0, 4), settings=reading) as share:
        assert share.lookup(first, 1_000).null_count == 0
        fetched = len(list((tmp_path / "cache").rglob("ranges/*.arrow")))
    with open_pinned(where, manifest.id, settings=reading) as whole:
        read = questions.reader("weather").snapshot()
        finders = [snapshot.finder for snapshot in (share, whole, read) if snapshot.finder is not None]
        assert [finder.memory_max for finder in finders] == [32 << 20] * 2  # the share is closed
        assert whole.lookup(keys, 1_000).null_count == 0
    assert 0 < fetched < len(list((tmp_path / "cache").rglob("ranges/*.arrow")))


READER = """
import sys
from millpond.clock import SystemClock
from millpond.client.snapshots.reader import SnapshotCache
from millpond.client.transport import Nodes
from millpond.settings import load_settings
from millpond.testing import faults

armed, settings = faults.arm(), load_settings()
cache = SnapshotCache(sys.argv[2], Nodes(sys.argv[1], settings), settings, SystemClock())
print(cache.reader("weather").snapshot().lookup(["k00003"], 1_000).to_pylist())
"""


@pytest.mark.full
def test_processes_of_a_machine_fetch_once(weather: Any, tmp_path: Path) -> None:
    def read(number: int) -> str:
        environment = {**os.environ, STEPS_LOG: str(tmp_path / f"log{number}")}
        argv = [sys.executable, "-c", READER, weather.url, str(tmp_path / "cache")]
        return subprocess.run(argv, env=environment, capture_output=True, text=True, check=True).stdout

    with ThreadPoolExecutor(4) as threads:
        assert set(threads.map(read, range(4))) == {"[{'temp': 3.0, 'code': 'x'}]\n"}
    steps = [log.read_text().count("ranges.one_fetched") for log in tmp_path.glob("log*")]
    assert sorted(steps)[:-1] == [0] * (len(steps) - 1)
    assert max(steps) == len(list((tmp_path / "cache").rglob("ranges/*.arrow")))


def test_copies_of_old_jobs_go_when_new_ones_come(weather: Any, reading: Settings, tmp_path: Path) -> None:
    where, clock = SnapshotPin((weather.url,), "weather"), weather.clock
    pond_map = weather.pond.map("weather")
    names: list[set[str]] = []
    for number in range(3):
        load(
            weather, pond_map, pa.table({"key": ["k00001"], "effective_time": [number], "temp": [1.5], "code": ["new"]})
        )
        manifest = pin_snapshot(where, reading)
        open_pinned(where, manifest.id, settings=reading, clock=clock).close()
        names.append({file.stem for file in (tmp_path / "cache").rglob("manifests/*.json")})
        clock.advance(reading.client.min_time_to_keep_snapshots if number else 0)
    assert [len(group) for group in names] == [1, 2, 1]
    files = {file.name for file in (tmp_path / "cache").rglob("ranges/*.arrow")}
    assert len(files) < 12


def test_a_task_fetches_only_the_ranges_it_reads(weather: Any, reading: Settings, tmp_path: Path) -> None:
    from millpond.maps.snapshots.rows_of_groups import GroupSpan, spans, thaw

    where = SnapshotPin((weather.url,), "weather")
    manifest = pin_snapshot(where, reading, keys=("k00000", "k45000"))
    there = where.of(manifest)
    assert there != where
    objects = pinned_objects(where, manifest, settings=reading)
    pieces = spans(objects, manifest, GroupSpan(), 1)
    assert not list((tmp_path / "cache").rglob("ranges/*.arrow"))
    assert len(pieces) > 1
    some = sum(batch.num_rows for batch in thaw(objects, manifest, pieces[0]))
    assert 0 < some < 45_000
    assert len(list((tmp_path / "cache").rglob("ranges/*.arrow"))) <= 2
    assert some + sum(batch.num_rows for piece in pieces[1:] for batch in thaw(objects, manifest, piece)) == 45_000
    with open_pinned(there, manifest.id, settings=reading) as snapshot:
        assert snapshot.lookup(["k00003"], 1_000).to_pylist() == [{"temp": 3.0, "code": "x"}]


def test_when_the_node_is_gone_the_snapshot_answers_and_the_rest_says_so(weather: Any, questions: Questions) -> None:
    definition = weather.pond.map("weather").definition
    assert questions.lookup(definition, ["k00001"], 1_000, "snapshot").to_pylist() == [{"temp": 1.0, "code": "x"}]
    weather.close()
    assert questions.lookup(definition, ["k00001"], 1_000, "snapshot").to_pylist() == [{"temp": 1.0, "code": "x"}]
    assert questions.lookup(definition, ["k00001"], 1_000).to_pylist() == [{"temp": 1.0, "code": "x"}]
    asks: list[Callable[[], object]] = [
        lambda: questions.get(definition, b"k00001", 1_000),
        lambda: questions.lookup(definition, ["k00001"], 1_000, "remote"),
        lambda: questions.scan(definition, None, None),
    ]
    for ask in asks:
        with pytest.raises(Unavailable) as gone:
            ask()
        assert gone.value.kind == "node_unreachable"


def test_the_guide_does_what_it_says(node: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any, tmp_path: Path) -> None:
    monkeypatch.setenv("MILLPOND_CLIENT_CACHE", str(tmp_path / "cache"))
    text = "\n".join(snippet.text for snippet in snippets("docs/reading.md") if snippet.language == "python")
    exec(compile(text.replace("http://localhost:7433", node.url), "docs/reading.md", "exec"), {})
    promised = re.findall(r"^ *print\(.*\)  # (.*)$", text, re.MULTILINE)
    assert len(promised) == 6
    assert capsys.readouterr().out.splitlines() == promised
