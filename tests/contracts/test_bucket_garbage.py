"""Garbage of a pond in a bucket of a real server, and readers that may not write."""

from __future__ import annotations

import http.client
import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

import millpond
from millpond.clock import ManualClock, SystemClock
from millpond.errors import Corrupt, Denied, Invalid
from millpond.kernel import steps
from millpond.kernel.lease import LEASE, Lease
from millpond.maps.layered.secured import LEASE_SECONDS
from millpond.maps.loads import garbage
from millpond.maps.model.definition import folder_name
from millpond.maps.model.keyspaces import COLLECTING
from millpond.maps.snapshots.manifest import manifest_name
from millpond.stores.objects import open_objects
from tests.contracts.test_bucket_ponds import opened, url  # noqa: F401
from tests.rings.forked import run_python

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.s3_server import S3Server

pytestmark = pytest.mark.usefixtures("process")

DAY_MS = 24 * 3_600_000


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Days by which the bucket's clock is ahead of what it says of objects."""
    from millpond.maps.loads.bucket_location import StorageBucket

    now_ms = StorageBucket.now_ms

    def shift(days: float) -> None:
        monkeypatch.setattr(StorageBucket, "now_ms", lambda location: now_ms(location) + int(days * DAY_MS))

    return shift


def ranges_in(url: str) -> set[str]:  # noqa: F811
    return {name for name in files_in(url) if "/ranges/" in name}


def files_in(url: str) -> set[str]:  # noqa: F811
    return {info.name for info in open_objects(url).list("snapshots")}


def test_what_nothing_needs_goes_when_it_is_old_enough(
    url: str, tmp_path: Path, later: Callable[[float], None]  # noqa: F811
) -> None:  # fmt: skip
    with opened(url, tmp_path / "one", maps_history="1s") as pond, opened(url, tmp_path / "other") as other:
        made = pond.create_map("m", kind="state", value="long")
        for number in range(5):
            made.load([{"key": "a", "value": number}, {"key": f"b{number}", "value": number}])
        held = other.map("m").snapshot()
        pond.branch("kept", source="main")
        pond.create_map("gone", kind="ranged_state", value="long")
        pond.map("gone").load([{"key_start": 1, "key_end": 3, "value": 7}])
        made.load([{"key": "a", "value": 9}])
        made.compact()
        pond.drop_map("gone")
        before = files_in(url)
        open_objects(url).put("snapshots/m.0123456789abcdef/ranges/left.arrow", b"of one who died")
        first = pond.collect_garbage()
        assert (first.manifests, first.files) == (0, 0) and first.retained > 0
        assert files_in(url) >= before
        later(0.5)
        assert pond.collect_garbage().files == 0
        later(2.5)
        counted = other.collect_garbage(dry_run=True)
        assert counted.dry_run and counted.files > 3 and files_in(url) >= before
        done = other.collect_garbage()
        assert (done.manifests, done.files, done.bytes) == (counted.manifests, counted.files, counted.bytes)
        assert done.manifests and not done.busy, done
        assert held.lookup(["a", "b4"]).to_pylist() == [4, 4]
        assert not [name for name in files_in(url) if "/gone." in name or name.endswith("left.arrow")]
        assert pond.collect_garbage().files == 0
    with opened(url, tmp_path / "new") as pond:
        assert pond.map("m").lookup(["a", "b0", "b4"]).to_pylist() == [9, 0, 4]
        assert pond.branch("kept").map("m").lookup(["a"]).to_pylist() == [4]
        assert pond.verify(full=True).ok
        assert not list(open_objects(url).list("probe"))


def test_a_load_that_brings_again_what_was_collected_is_whole(
    url: str, tmp_path: Path, later: Callable[[float], None]  # noqa: F811
) -> None:  # fmt: skip
    rows, clock = [{"key": "a", "value": 1}], ManualClock(1_800_000_000_000)
    with (
        opened(url, tmp_path / "one", maps_history="1s", clock=clock) as pond,
        opened(url, tmp_path / "other", clock=clock) as other,
    ):
        made = pond.create_map("m", kind="state", value="long")
        made.load(rows)
        brought = ranges_in(url)
        made.delete("key = 'a'")
        clock.advance(10_000)
        pond.collect_garbage()
        later(2)
        assert pond.collect_garbage().files > 0 and not brought & ranges_in(url)
        made.load(rows, again=True)  # its copies are here still
        assert brought <= ranges_in(url)
        assert other.map("m").get("a") == 1
        assert other.verify(full=True).ok


@pytest.mark.sample(1)
@pytest.mark.parametrize("moment", ["ranges.written", "layers.layer_written", "files.secured"])
def test_a_collection_between_the_files_of_a_load_and_its_commit(
    url: str, tmp_path: Path, later: Callable[[float], None], moment: str  # noqa: F811
) -> None:  # fmt: skip
    rows, clock = [{"key": "a", "value": 1}], ManualClock(1_800_000_000_000)
    with (
        opened(url, tmp_path / "one", maps_history="1s", clock=clock) as pond,
        opened(url, tmp_path / "other", clock=clock) as other,
    ):
        made = pond.create_map("m", kind="state", value="long")
        made.load(rows)
        brought = ranges_in(url)
        made.delete("key = 'a'")
        clock.advance(10_000)
        other.collect_garbage()
        later(2)
        collected = list[int]()

        def between(name: str) -> None:
            if name == moment and not collected:
                collected.append(0)
                assert brought <= ranges_in(url)
                collected[0] = other.collect_garbage().files
                assert not brought & ranges_in(url)

        with steps.listening(between):
            made.load(rows, again=True)
        assert collected[0] > 0
        assert opened(url, tmp_path / "new").map("m").get("a") == 1
        assert other.verify(full=True).ok


def test_one_collects_at_a_time_and_what_is_damaged_stays(
    url: str, tmp_path: Path, later: Callable[[float], None]  # noqa: F811
) -> None:  # fmt: skip
    with opened(url, tmp_path / "one", maps_history="1s") as pond, opened(url, tmp_path / "other") as other:
        for name in ("m", "n"):
            made = pond.create_map(name, kind="state", value="long")
            made.load([{"key": "a", "value": 1}])
            made.delete("key = 'a'")
        pond.collect_garbage()
        later(2)
        inner, seen = list[garbage.MapGarbage](), list[str]()

        def between(name: str) -> None:
            if name == "garbage.leased" and not seen:
                seen.append(name)
                inner.append(other.collect_garbage())

        with steps.listening(between):
            pond.collect_garbage()
        assert len(inner[0].busy) == 1, inner
        head = manifest_name(pond.map("m").snapshots.freeze().id)
        pond.map("m").objects.bucket.put(head, b"{}")  # type: ignore[attr-defined]
        open_objects(url).put("snapshots/m.0123456789abcdef/ranges/left.arrow", b"of one who died")
    before = files_in(url)
    with opened(url, tmp_path / "new") as pond, pytest.raises(Corrupt) as caught:
        pond.collect_garbage()
    assert head in str(caught.value)
    assert {name for name in before if "/m." in name and "left" not in name} <= files_in(url)


def test_whose_machine_slept_removes_nothing_more_when_another_collects(
    url: str, tmp_path: Path, later: Callable[[float], None], monkeypatch: pytest.MonkeyPatch  # noqa: F811
) -> None:  # fmt: skip
    with opened(url, tmp_path / "one", maps_history="1s") as pond, opened(url, tmp_path / "other") as other:
        made = pond.create_map("m", kind="state", value="long")
        made.load([{"key": "a", "value": 1}])
        made.delete("key = 'a'")
        pond.collect_garbage()
        later(2)
        key, now_ms, left = COLLECTING.pack(folder_name(made.definition)), SystemClock.now_ms, list[set[str]]()

        def sleeps(name: str) -> None:
            if name == "garbage.deleted" and not left:
                left.append(files_in(url))
                # Its monotonic clock stood still meanwhile.
                monkeypatch.setattr(SystemClock, "now_ms", lambda clock: now_ms(clock) + int(1000 * LEASE_SECONDS))
                other.space.write(lambda tx: tx.put(key, LEASE.encode(Lease("other", 9))))

        with steps.listening(sleeps):
            removed = pond.collect_garbage()
        assert left == [files_in(url)]
        assert 0 < removed.files + removed.manifests < len(left[0])


def test_refusals_and_a_pond_in_a_folder(url: str, tmp_path: Path) -> None:  # noqa: F811
    with opened(url, tmp_path / "one") as pond:
        for wrong in ("1s", "soon"):
            with pytest.raises(Invalid):
                pond.collect_garbage(grace=wrong)
    with millpond.open(tmp_path / "pond") as pond:
        made = pond.create_map("m", kind="state", value="long", store="layers")
        made.load([{"key": "a", "value": 1}])
        assert pond.collect_garbage().busy == []
        with pytest.raises(Invalid) as caught:
            pond.collect_garbage(dry_run=True)
        assert caught.value.kind == "dry_run_unsupported"
        assert made.get("a") == 1


def test_the_command_line_collects(url: str, tmp_path: Path) -> None:  # noqa: F811
    with opened(url, tmp_path / "one") as pond:
        pond.create_map("m", kind="state", value="long").load([{"key": "a", "value": 1}])
    words = ("-m", "millpond", "maintenance", "collect", "--pond", url)
    done = run_python(*words, "--json", XDG_CACHE_HOME=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["files"] == 0
    assert "removed 0 snapshots" in run_python(*words, XDG_CACHE_HOME=str(tmp_path)).stdout


# -- readers that may not write ---------------------------------------------------------------------------


@contextmanager
def reading_only(server: S3Server) -> Iterator[tuple[str, list[str]]]:
    """The address of a server that refuses all but reading, as keys without rights do; and what it refused."""
    target, refused = urlsplit(server.url), list[str]()

    class Handler(BaseHTTPRequestHandler):
        """Reads are passed on, with the host that was signed."""

        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            connection = http.client.HTTPConnection(target.hostname or "", target.port)
            connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                connection.putheader(name, value)
            connection.endheaders()
            response = connection.getresponse()
            body = response.read()
            self.send_response(response.status)
            for name, value in response.getheaders():
                if name.lower() not in ("transfer-encoding", "content-length", "connection", "date", "server"):
                    self.send_header(name, value)
            length = response.getheader("Content-Length") if self.command == "HEAD" else str(len(body))
            self.send_header("Content-Length", length or "0")
            self.end_headers()
            self.wfile.write(body)
            connection.close()

        def do_PUT(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            refused.append(f"{self.command} {self.path}")
            body = b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"
            self.send_response(403)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_HEAD, do_POST, do_DELETE = do_GET, do_PUT, do_PUT  # noqa: N815

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as served:
        thread = threading.Thread(target=served.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{served.server_port}", refused
        finally:
            served.shutdown()
            thread.join()


def test_keys_that_may_only_read_read_everything(
    url: str, tmp_path: Path, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch  # noqa: F811
) -> None:  # fmt: skip
    with opened(url, tmp_path / "writer") as pond:
        made = pond.create_map("m", kind="temporal_state", value="long")
        made.load([{"key": "a", "effective_time": 1000, "value": 1}])
        pond.create_map("empty", kind="state", value="long")
        pond.create_map("none", kind="ranged_state", value="long")
        pond.create_map("gone", kind="state", value="long").load([{"key": "a", "value": 1}])
        pond.branch("b", source="main")
        made.load([{"key": "a", "effective_time": 2000, "value": 2}])
        pond.drop_map("gone")
    with reading_only(s3_server) as (address, refused):
        monkeypatch.setenv("AWS_ENDPOINT_URL", address)
        with opened(url, tmp_path / "reader", create=False) as pond:
            made = pond.map("m")
            assert made.get("a", at=5000) == 2
            assert made.lookup(["a", "b"], at=1500).to_pylist() == [1, None]
            assert sum(batch.num_rows for batch in made.scan("key = 'a'")) == 2
            assert pond.sql("select count(*) as n from m").to_pylist() == [{"n": 2}]
            assert pond.branch("b").map("m").get("a", at=5000) == 1
            assert (pond.map("empty").get("x"), pond.map("none").get(2)) == (None, None)
            assert pond.verify().ok
            assert not [line for line in refused if "pond.json" in line]
            for change in (
                lambda: made.load([{"key": "a", "effective_time": 3000, "value": 3}]),
                lambda: pond.create_map("new", kind="state", value="long"),
                lambda: pond.drop_map("m"),
                lambda: pond.collect_garbage(),
            ):
                with pytest.raises(Denied) as caught:
                    change()
                assert "s3:PutObject" in str(caught.value), caught.value
            assert made.get("a", at=5000) == 2
