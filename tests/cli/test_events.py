"""`millpond events` and `millpond watch`."""

from __future__ import annotations

import io
import json
import logging
import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from rich.console import Console

import millpond as api
from millpond.cli.serve import _utc_lines
from millpond.cli.watch import JOBS_MAX, Story, _screen, details_of, line_of, reason_of
from millpond.clock import ManualClock
from millpond.events import lines
from millpond.events.event import Event, NewEvent
from millpond.events.many_watch import StreamEvent
from millpond.events.names import StreamName
from millpond.server.armada.wire import armada_pb2 as pb
from tests.cli.conftest import Shell
from tests.clients.conftest import serving

DAY = 86_400_000
NOON = 20_000 * DAY + DAY // 2


@pytest.fixture
def streams(millpond: Shell) -> Shell:
    """A pond with a finished job set of three days, and one that goes on."""
    clock = ManualClock(now=NOON)
    with api.open(Path("pond"), clock=clock) as opened:
        for kind in ("submitted", "running", "succeeded"):
            events = [NewEvent(clock.now, b"payload", kind, {"job_id": job, "rows": "10"}) for job in ("a", "b")]
            opened.events.append("etl", "nightly", events)
            clock.now += DAY
        opened.events.append("etl", "hourly", [NewEvent(clock.now, b"\xff", "running", {"job_id": "c"})])
    return millpond


def test_streams_and_their_days_are_listed(streams: Shell) -> None:
    rows = streams("events", "list", "--json").objects
    assert [(row["job_set"], row["events"], row["days"]) for row in rows] == [("hourly", 1, 1), ("nightly", 6, 3)]
    assert "nightly" in streams("events", "list").out and streams("events", "list", "other", "--json").object == []
    days = streams("events", "list", "etl", "nightly", "--json").objects
    assert [(day["day"], day["state"], day["events"]) for day in days] == [
        ("2024-10-04", "closed", 2), ("2024-10-05", "closed", 2), ("2024-10-06", "open", 2),
    ]  # fmt: skip
    assert "2024-10-06" in streams("events", "list", "etl", "nightly").out
    assert "there is no such stream" in streams("events", "list", "etl", "x", code=3).err


def test_days_are_compressed_and_dropped_on_request(streams: Shell) -> None:
    assert "compressed 4 days of 2 streams" in streams("events", "compress", "--after", "1d").out
    report = streams("events", "compress", "--json").object
    assert (report["streams"], report["days"], report["failed"]) == (0, 0, 0)
    stats = streams("events", "stats", "--json").object
    assert stats["streams"] == 2 and stats["states"]["compressed"]["events"] == 7
    assert "compressed" in streams("events", "stats").out
    assert "dropped 7 events of 2 streams" in streams("events", "expire", "--after", "14d").out
    assert "0 streams" in streams("events", "stats", "--queue", "etl").out, "forgotten: the last append is long ago"
    assert "duration is not understood" in streams("events", "expire", "--after", "soon", code=5).err
    assert "size is not understood" in streams("events", "compress", "--rate", "fast", code=5).err


def test_a_finished_job_set_is_watched_to_its_end(streams: Shell) -> None:
    events = streams("watch", "etl", "nightly", "--exit-when-done", "--json").objects
    assert [event["kind"] for event in events] == ["submitted"] * 2 + ["running"] * 2 + ["succeeded"] * 2
    later = streams("watch", "etl", "nightly", "--exit-when-done", "--from", events[3]["id"], "--json").objects
    assert later == events[4:]
    lines = streams("watch", "etl", "nightly", "--exit-when-done").out.splitlines()
    assert lines[0] == "2024-10-04 12:00:00 submitted a rows=10 payload"
    raw = streams("watch", "etl", "nightly", "--exit-when-done", "--raw").out.splitlines()
    assert raw[-1] == f"{events[-1]['id']} succeeded payload"
    assert "no place in a stream" in streams("watch", "etl", "nightly", "--from", "foo", code=5).err


def test_several_job_sets_are_watched_as_one(streams: Shell) -> None:
    with api.open(Path("pond")) as opened:
        opened.events.append("etl", "hourly", [NewEvent(NOON, b"", "succeeded", {"job_id": "c"})])
    events = streams("watch", "etl", "night*", "hourly", "--exit-when-done", "--json").objects
    assert sorted(event["id"] for event in events) == [event["id"] for event in events] and len(events) == 8
    assert [event["kind"] for event in events if event["job_set"] == "hourly"] == ["running", "succeeded"]
    assert streams("watch", "etl", "*", "--exit-when-done").out.startswith("nightly: 2024-10-04 12:00:00 submitted a")
    assert "no job set is named so" in streams("watch", "etl", "weekly-*", code=3).err
    said = streams("watch", "etl", "nightly", "later", "--exit-when-done", "--json").err
    assert said == "there is no job set later in the queue etl yet; waiting for it\n"


def test_events_are_read_and_watched_by_kind_job_and_header(streams: Shell) -> None:
    everything = streams("events", "read", "etl", "nightly", "--json").objects
    assert [event["kind"] for event in everything] == ["submitted"] * 2 + ["running"] * 2 + ["succeeded"] * 2
    lines = streams("events", "read", "etl", "nightly", "--limit", "1").out
    assert lines == "2024-10-04 12:00:00 submitted a rows=10 payload\n"
    assert streams("events", "read", "etl", "hourly").out.endswith(" running c (1 byte)\n")
    for command in (["events", "read"], ["watch", "--exit-when-done"]):
        job = streams(*command, "etl", "nightly", "--job", "a", "--header", "rows=10", "--json").objects
        assert job == everything[::2]
        later = streams(*command, "etl", "nightly", "--job", "a", "--from", job[0]["id"], "--json").objects
        assert later == job[1:]
    kinds = streams("events", "read", "etl", "nightly", "--kind", "running", "--kind", "x", "--json").objects
    assert kinds == everything[2:4]
    assert streams("events", "read", "etl", "nightly", "--from", "newest").out == ""
    assert streams("events", "read", "etl", "nightly", "--header", "rows=1", "--header", "rows=9").out == ""
    assert "name and a value" in streams("events", "read", "etl", "nightly", "--header", "rows", code=5).err
    assert "--kind" in streams("watch", "etl", "nightly", "--kind", "failed", "--exit-when-done", code=5).err


def test_events_are_exported_to_parquet(streams: Shell) -> None:
    said = streams("events", "export", "etl", "--out", "all.parquet").out
    assert said.startswith("wrote 7 events of 2 streams (") and said.endswith(") to all.parquet\n")
    words = ("--from", "2024-10-05T00:00Z", "--until", "2024-10-06T00:00Z", "--job", "a", "--out", "some.parquet")
    done = streams("events", "export", "etl", "night*", *words, "--json").object
    assert done == {"out": "some.parquet", "streams": 1, "events": 1, "bytes": Path("some.parquet").stat().st_size}
    assert pq.read_table("some.parquet", columns=["kind", "job"]).to_pylist() == [{"kind": "running", "job": "a"}]
    assert "end its name in .parquet" in streams("events", "export", "etl", "--out", "all.csv", code=5).err
    assert "no place in a stream" in streams("events", "export", "--until", "x", "--out", "x.parquet", code=5).err
    error = streams("events", "export", "etl", "x", "--out", "x.parquet", "--json", code=3).err
    assert json.loads(error)["error"]["kind"] == "stream_not_found" and not Path("x.parquet").exists()


def test_lines_of_a_file_or_a_pipe_are_events(streams: Shell) -> None:
    Path("steps").write_bytes(b'{"step": 1}\n\n{"step": 2}\r\nthe last has no end')
    words = ("events", "append", "etl", "steps", "steps", "--kind", "step", "--header", "team=a", "--source", "file")
    assert streams(*words).out == "appended 3 events; 0 were there before\n"
    assert streams(*words, "--json").object == {"events": 0, "repeated": 3, "past_retention": 0}
    said = [
        (row["payload"], row["kind"], row["headers"])
        for row in streams("events", "read", "etl", "steps", "--json").objects
    ]
    assert said == [(text, "step", {"team": "a"}) for text in ('{"step": 1}', '{"step": 2}', "the last has no end")]
    assert "appended 2 events" in streams("events", "append", "etl", "piped", typed="one\ntwo\n").out
    assert "no NAME=VALUE" in streams("events", "append", "etl", "piped", "--header", "team", code=5, typed="").err
    assert "file does not exist" in streams("events", "append", "etl", "piped", "none", code=3).err


def test_a_file_that_is_none_of_lines_is_named_by_its_line(streams: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "EVENT_BYTES_MAX", 10)
    said = streams("events", "append", "etl", "long", code=5, typed="short\n" + 20 * "x")
    assert "the line is too long for an event (line=2, bytes_max=10)" in said.err
    assert streams("events", "list", "etl", "long", "--json").objects[0]["events"] == 1


def test_history_that_is_older_than_the_retention_is_imported_with_a_warning(streams: Shell) -> None:
    streams("events", "export", "etl", "nightly", "--out", "etl.parquet")
    done = streams("events", "import", "etl.parquet", "--job-set", "again", "--json")
    assert done.object == {"events": 6, "repeated": 0, "past_retention": 6} and done.err == ""
    said = streams("events", "import", "etl.parquet", "--job-set", "again")
    assert (said.out, said.err) == ("imported 0 events; 6 were there before\n", "")
    said = streams("events", "import", "etl.parquet", "--queue", "other")
    assert said.out == "imported 6 events; 0 were there before\n"
    assert said.err.startswith("6 of them are older than the retention") and "events.retention" in said.err
    (row,) = streams(
        "query", "select count(*) as n from events where queue = 'other' and kind = 'failed'", "--json"
    ).objects
    assert row == {"n": 0}
    assert "file does not exist" in streams("events", "import", "none.parquet", code=3).err


FAILED = pb.Failed(reason="node lost", cluster_id="c").SerializeToString()
OUT_OF_MEMORY = pb.Failed(
    container_statuses=[pb.ContainerStatus(name="main", exitCode=137, reason="OOMKilled", message="limit 2Gi")]
).SerializeToString()


@pytest.mark.parametrize(
    ("kind", "payload", "headers", "shown"),
    [
        ("failed", b"", {"rows": "1", "reason": "no disk", "error": "full"}, "reason=no disk error=full rows=1"),
        ("failed", b'{"reason": "no disk"}', {"rows": "1"}, "reason=no disk rows=1"),
        ("failed", b'{"error": "E7", "message": "no\\u001b disk"}', {}, "reason=E7: no\x1b disk"),
        ("failed", FAILED, {"rows": "1"}, "reason=node lost rows=1"),
        ("failed", OUT_OF_MEMORY, {}, "reason=main ended with 137: OOMKilled: limit 2Gi"),
        ("preempted", pb.Preempted(reason="fair share").SerializeToString(), {}, "reason=fair share"),
        ("failed", b"\xff\xff", {}, ""), ("failed", b"{", {}, ""), ("failed", b"[1]", {}, ""),
        ("running", b'{"reason": "no disk"}', {"rows": "1"}, "rows=1"),
    ],
)  # fmt: skip
def test_a_failure_shows_its_reason(kind: str, payload: bytes, headers: dict[str, str], shown: str) -> None:
    failure = Event(1, NOON, payload, kind, {"job_id": "7"} | headers)
    assert details_of(failure) == shown
    assert line_of(failure).startswith(" ".join(filter(None, ("2024-10-04 12:00:00", kind, "7", shown))))
    assert not reason_of(failure) or line_of(failure).endswith(shown)


def test_a_line_of_an_event_has_the_beginning_of_its_payload(millpond: Shell) -> None:
    with api.open(Path("pond")) as opened:
        rows = (b'{"a":\n"\x1b[2J"}', "ä".encode() * 121, "ä".encode() * 120)
        opened.events.append("etl", "long", [NewEvent(NOON, row, "x", {}) for row in rows])
    lines = millpond("events", "read", "etl", "long").out.splitlines()
    words = (r'{"a":\n"\x1b[2J"}', "ä" * 120 + "…", "ä" * 120)
    assert lines == [f"2024-10-04 12:00:00 x {text}" for text in words]


def test_the_reason_of_a_failure_is_not_cut_off_on_the_screen() -> None:
    story, reason = Story(), "the disk of the node is full " * 6
    story.add(event(1, "running", job_id="b", note="x" * 200))
    story.add(
        StreamEvent(StreamName("etl", "nightly"), Event(2, NOON, b"", "failed", {"job_id": "a", "reason": reason}))
    )
    screen = io.StringIO()
    Console(file=screen, width=80).print(_screen(story, "etl nightly"))
    words = screen.getvalue().split()
    assert words.count("disk") == 6 and words.count("2024-10-04") == 2 and "running" in words and "failed" in words
    assert sum("x" in line for line in screen.getvalue().splitlines()) == 1, "other details have one line"


def event(number: int, kind: str, **headers: str) -> StreamEvent:
    return StreamEvent(StreamName("etl", "nightly"), Event(number, NOON, b"", kind, headers))


def test_a_story_counts_jobs_by_their_state() -> None:
    story = Story()
    assert not story.done
    for number, (job, kind) in enumerate([("a", "queued"), ("b", "queued"), ("a", "running"), ("a", "succeeded")], 1):
        story.add(event(number, kind, job_id=job))
    assert story.counts == {"queued": 1, "succeeded": 1} and not story.done
    story.add(event(9, "failed", job_id="b", reason="[red]disk full"))
    assert story.done and story.events == 5
    screen = io.StringIO()
    Console(file=screen, width=100).print(_screen(story, "etl nightly"))
    assert "etl nightly: 5 events" in screen.getvalue() and "[red]disk full" in screen.getvalue()
    assert "failed: 1  succeeded: 1" in screen.getvalue()


def test_events_out_of_order_and_failures_that_are_tried_again_end_no_story_too_early_or_never() -> None:
    story = Story()
    story.add(event(1, "running", job_id="a"))
    story.add(event(2, "failed", job_id="a", retryable="true"))
    assert story.counts == {"queued": 1} and not story.done
    story.add(event(3, "succeeded", job_id="a"))
    late = Event(4, NOON - 1, b"", "running", {"job_id": "a"})
    story.add(StreamEvent(StreamName("etl", "nightly"), late))
    assert story.counts == {"succeeded": 1} and story.done and story.events == 4
    story.add(StreamEvent(StreamName("etl", "nightly"), Event(5, NOON - 1, b"", "cancelled", {"job_id": "a"})))
    assert story.counts == {"cancelled": 1}
    story.add(event(6, "running", job_id="a"))
    assert story.counts == {"running": 1} and not story.done


def test_a_story_without_jobs_ends_with_its_last_event() -> None:
    story = Story()
    story.add(event(1, "running"))
    assert not story.done
    story.add(event(2, "succeeded"))
    assert story.done


@pytest.mark.usefixtures("processor")
def test_a_story_of_many_jobs_takes_bounded_memory() -> None:
    story = Story()
    for number in range(1, JOBS_MAX + 100):
        story.add(event(number, "succeeded", job_id=str(number)))
    assert story.counts == {"succeeded": JOBS_MAX + 99} and len(story._jobs) == JOBS_MAX


@pytest.mark.usefixtures("process")
def test_the_commands_speak_to_a_node_as_well(millpond: Shell, tmp_path: Path) -> None:
    with serving(tmp_path / "pond") as url, api.open(url) as remote:
        remote.events.append("etl", "nightly", [NewEvent(NOON, b"payload", "running", {"job_id": "a"})])
        (row,) = millpond("events", "list", "--json", "--pond", url).objects
        assert (row["queue"], row["job_set"], row["events"]) == ("etl", "nightly", 1)
        (day,) = millpond("events", "list", "etl", "nightly", "--json", "--pond", url).objects
        assert (day["day"], day["events"]) == ("2024-10-04", 1)
        assert "there is no such stream" in millpond("events", "list", "etl", "x", "--pond", url, code=3).err
        millpond("events", "export", "etl", "n*", "--kind", "running", "--out", "out.parquet", "--pond", url)
        assert pq.read_table("out.parquet").column("payload").to_pylist() == [b"payload"]
        assert millpond("events", "stats", "--json", "--pond", url).object["streams"] == 1
        assert millpond("events", "compress", "--after", "1d", "--json", "--pond", url).object["days"] == 1
        assert millpond("events", "expire", "--after", "7d", "--json", "--pond", url).object["events"] == 1
        done = millpond("events", "import", "out.parquet", "--queue", "again", "--pond", url, "--json").object
        assert done == {"events": 1, "repeated": 0, "past_retention": 1}
        found = "select queue, job_set, job from events where payload = 'payload'::blob"
        rows = millpond("query", found, "--pond", url, "--json").objects
        assert rows == [{"queue": "again", "job_set": "nightly", "job": "a"}]


def test_no_command_lets_what_others_wrote_steer_the_terminal(millpond: Shell) -> None:
    """A title, a colour, a cleared screen, a turned text: in the names and values of streams, repositories and maps."""
    evil = "a\nb\x1b]0;owned\x07\x1b[2J\x9b31m\x7f\r\u202eb"
    with api.open(Path("pond")) as opened:
        headers = {"job_id": evil, "a\x1b": evil}
        events = [NewEvent(NOON, evil.encode(), kind, headers) for kind in (evil, "succeeded")]
        opened.events.append("etl", "nightly", events)
        main = opened.repositories.create("flights").branch("main")
        main.put("p/a\x1b", b"1", content_type=evil, metadata={"m": evil})
        main.commit(evil, committer=evil)
        main.put("p/a\x1bb", b"2")
        opened.create_map("texts", kind="state", value="string").load([{"key": evil, "value": evil}])
    for command in (
        "watch etl nightly --exit-when-done", "watch etl nightly --exit-when-done --raw", "events list",
        "log flights/main", "log flights/main --graph", "diff flights/main", "fs ls flights/main/p/", "get texts KEY",
        "get texts KEY --history", "scan texts", "repo show flights", "fs stat flights/main@/p/PATH",
    ):  # fmt: skip
        for more in ([], ["--json"]):
            if command.endswith("--graph") and more:
                continue
            words = [word.replace("KEY", evil).replace("PATH", "a\x1b") for word in command.split()]
            done = millpond(*words, *more)
            assert command.split()[0] != "watch" or len(done.out.splitlines()) == 2, "an event forges no line"
            assert not _OBEYED.search(done.out + done.err), (command, more)


_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]")


def test_a_screen_of_events_is_neutral_and_so_is_a_line_of_the_log() -> None:
    story, stream = Story(), StreamName("etl", "\x1b[2J")
    story.add(StreamEvent(stream, Event(1, NOON, b"", "\x1b[2J", {"job_id": "\x07"})))
    screen = io.StringIO()
    Console(file=screen, width=100, color_system=None).print(_screen(story, "\x1b]0;x\x07", several=True))
    assert not _OBEYED.search(screen.getvalue())
    record = logging.LogRecord("x", 20, "", 0, "no map %s", ("\x1b[2J",), None)
    assert _utc_lines().format(record).endswith("no map \\x1b[2J")


def test_a_job_set_or_a_job_is_deleted_when_it_is_confirmed(streams: Shell) -> None:
    assert "say --yes" in streams("events", "delete", "etl", "nightly", code=5).err
    assert (
        "deleted 3 of the events of job a" in streams("events", "delete", "etl", "nightly", "--job", "a", "--yes").out
    )
    assert {event["headers"]["job_id"] for event in streams("events", "read", "etl", "nightly", "--json").objects} == {
        "b"
    }
    assert "no events of this job" in streams("events", "delete", "etl", "nightly", "--job", "a", "-y", code=3).err
    done = streams("events", "delete", "etl", "nightly", "--yes", "--json").object
    assert done == {"queue": "etl", "job_set": "nightly", "job": None, "events": 3}
    assert streams("events", "read", "etl", "nightly", "--json").objects == []
    assert "there is no such stream" in streams("events", "delete", "etl", "x", "--yes", code=3).err


def test_ages_are_set_shown_and_removed(streams: Shell) -> None:
    assert streams("events", "settings", "list", "--json").object == []
    assert "no rules" in streams("events", "settings", "list").out
    rule = streams("events", "settings", "set", "etl", "--retention", "90d", "--json").object
    assert rule == {"queue": "etl", "job_set": None, "compress_after": None, "retention": "90d"}
    assert "12h" in streams("events", "settings", "set", "etl", "nightly", "--compress-after", "12h").out
    (held,) = streams("events", "settings", "list", "etl", "nightly", "--json").objects
    assert (held["compress_after"], held["retention"]) == ("12h", "90d")
    assert len(streams("events", "settings", "list", "etl", "--json").objects) == 2
    assert "90d" in streams("events", "settings", "list").out
    assert "of zero" in streams("events", "settings", "set", "etl", "--retention", "0", code=5).err
    assert "an age at least" in streams("events", "settings", "set", "etl", code=5).err
    streams("events", "settings", "set", "etl", "hourly", "--retention", "off")
    streams("events", "expire", "--after", "1d")
    assert [row["job_set"] for row in streams("events", "list", "--json").objects if row["events"]] == ["hourly"]
    assert "removed the rule of etl nightly" in streams("events", "settings", "remove", "etl", "nightly").out
    assert streams("events", "settings", "remove", "etl", "--json").object["removed"]
    assert "no such rule" in streams("events", "settings", "remove", "etl", code=3).err
