"""Bytes that are not what was written: found where they arrive, reported, and never served."""

from __future__ import annotations

import contextlib
import json
import struct
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from millpond.cli.main import app
from millpond.errors import Corrupt, Unavailable
from millpond.maps.model.definition import Kind
from millpond.maps.parts.stream import PartStream
from millpond.testing.faults import flip_byte
from tests.harness.cluster import wait_for
from tests.harness.cluster_audit import fetch_json, parts_of
from tests.harness.faulty_proxy import Trouble
from tests.harness.rows import canonical_of, table_of
from tests.nodes.fault_story import Story, patient, rows_of, running_story
from tests.nodes.test_uploads import checksum_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.harness.cluster import Answer

pytestmark = pytest.mark.sample(1, of="faults of nodes")

REPLICA, NEWCOMER = 1, 2


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    with running_story(tmp_path_factory.mktemp("damage"), proxies=True) as story:
        yield story


@pytest.fixture
def story(whole: Story) -> Iterator[Story]:
    whole.calm()
    whole.world.clear()
    yield whole
    whole.calm()


# -- parts that are not what they should be -----------------------------------------------------------


def stream_of(story: Story, name: str, load: int = 1) -> tuple[str, bytes]:
    """A part of some rows, its id and its stream."""
    writer = story.pond.part_writer(name)
    writer.write(canonical_of(story.definition(name), rows_of(Kind.STATE, load)))
    (part,) = writer.finish()
    return part.manifest.id, b"".join(PartStream(part.file).chunks())


def send(story: Story, name: str, part: str, body: bytes, **headers: str) -> Answer:
    given = {
        "Upload-Map": name, "Upload-Length": str(len(body)), "Upload-Offset": "0",
        "Upload-Checksum": checksum_of(body), "Content-Type": "application/octet-stream",
    }  # fmt: skip
    sent_headers = {**given, **{key.replace("_", "-"): value for key, value in headers.items()}}
    return story.cluster.ask(0, "PUT", f"/v1/parts/{part}/upload", body=body, headers=sent_headers)


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :]


def with_sizes(stream: bytes, *sizes: int) -> bytes:
    """The stream with other sizes of its files in its head."""
    return struct.pack("<8s3Q", stream[:8], *sizes) + stream[32:]


BAD: dict[str, Callable[[bytes], bytes]] = {
    "no part": lambda _stream: b"not a part at all" * 100,
    "a zip": lambda _stream: b"PK\3\4" + bytes(1000),
    "nothing": lambda _stream: b"",
    "cut short": lambda stream: stream[: len(stream) // 2],
    "too long": lambda stream: stream + b"x",
    "a byte of the manifest": lambda stream: flipped(stream, 40),
    "a byte of the data": lambda stream: flipped(stream, len(stream) - 5000),
    "a manifest without end": lambda stream: with_sizes(stream, 1 << 60, 1, 1),
    "keys without end": lambda stream: with_sizes(stream, int.from_bytes(stream[8:16], "little"), 1 << 60, 1),
    "another format": lambda stream: stream[:6] + b"\2\0" + stream[8:],
}


@pytest.mark.parametrize("what", list(BAD))
def test_a_bad_stream_is_refused_and_nothing_of_it_is_left(story: Story, what: str) -> None:
    name = f"bad_{what.replace(' ', '_')}"
    story.create(name)
    part, stream = stream_of(story, name)
    answer = send(story, name, part, BAD[what](stream))
    assert answer.status in (400, 413, 422), (answer.status, answer.body)
    assert answer.json()["kind"], answer.body
    assert b"Traceback" not in answer.body
    response = story.cluster.ask(0, "GET", f"/v1/parts/{part}/upload").json()
    assert response["state"] == "absent", response
    assert not [listed for listed in parts_of(story.cluster, 0) if listed["part"] == part]
    story.load(name, 1)
    story.check(full=False)


def test_an_upload_that_is_not_what_it_said_is_refused(story: Story) -> None:
    story.create("liar")
    part, stream = stream_of(story, "liar")
    assert send(story, "liar", part, stream, Upload_Checksum="0" * 32).status == 422
    response = send(story, "liar", part, stream[17:], Upload_Offset="17", Upload_Length=str(len(stream)))
    assert (response.status, response.json()["kind"]) == (409, "upload_offset"), response.body
    assert send(story, "liar", part, stream, Upload_Length="-1").status == 400
    assert send(story, "liar", part, stream, Upload_Length=str(1 << 50)).status == 413
    assert send(story, "nobody", part, stream).status == 404
    assert send(story, "liar", "f" * 32, stream).status in (400, 422)
    assert send(story, "liar", "../../etc", stream).status in (400, 404, 405, 422)
    story.load("liar", 1)
    story.check(full=False)


# -- bytes that change on their way -------------------------------------------------------------------


@pytest.mark.parametrize("after", [600, 30_000])
def test_a_byte_that_changes_in_an_upload_is_found(story: Story, after: int) -> None:
    """600 lies in the head of the request or the manifest, 30,000 in the data."""
    name = f"upload{after}"
    story.create(name)
    trouble = story.proxy(REPLICA).trouble(Trouble("flip", match=b"PUT /v1/parts/", after=after))
    rows = rows_of(Kind.STATE, 1, 2_000)
    try:
        patient(story, lambda: story.bring(name, rows))
    except Corrupt:
        patient(story, lambda: story.bring(name, rows))
    assert trouble.struck.is_set()
    story.check()


def test_a_part_damaged_on_one_node_is_fetched_from_another(story: Story) -> None:
    """A replica that lost its own is given a damaged one first, and does not take it."""
    story.create("fetched")
    story.load("fetched", 0)
    story.settle()
    story.cluster.stop(NEWCOMER)
    story.proxy(0).trouble(Trouble("flip", match=b"/stream", after=9_000, down=True, times=2))
    _enter_without(story, "fetched", 1)
    story.cluster.start(NEWCOMER)
    story.check()


def _enter_without(story: Story, name: str, load: int) -> None:
    """A load that the primary enters while the newcomer is away."""
    part, stream = stream_of(story, name, load)
    for number in (0, REPLICA):
        headers = {
            "Upload-Map": name, "Upload-Length": str(len(stream)), "Upload-Offset": "0",
            "Upload-Checksum": checksum_of(stream),
        }  # fmt: skip
        answer = story.cluster.ask(number, "PUT", f"/v1/parts/{part}/upload", body=stream, headers=headers)
        assert answer.status == 200, answer.body
    request = {"load_id": f"{name}-{load}", "parts": [part], "source": "", "rejected": 0}
    answer = story.cluster.ask(0, "POST", "/v1/loads", body=request)
    assert answer.status == 200, answer.body
    story.put(name, rows_of(Kind.STATE, load))


# -- bytes that change on a disk ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "kill_at",
    [None, *(pytest.param(step, marks=pytest.mark.full) for step in ("merge.quarantine_moved", "retry.part_replaced"))],
)
def test_a_staged_part_that_is_damaged_is_quarantined_reported_and_merged_when_an_intact_copy_is_found(
    story: Story, kill_at: str | None
) -> None:
    """The replica dies before it merges; what it has staged is damaged meanwhile. It may die again while it mends."""
    story.create("staged")
    story.pond.drop_map("staged")
    story.create("staged")
    story.load("staged", 0)
    story.settle()
    merged = set(story.cluster.nodes[REPLICA].folder.glob("parts/*"))  # they are retained
    story.cluster.kill_at(REPLICA, "merge.part_taken")
    rows = rows_of(Kind.STATE, 1)
    with contextlib.suppress(Unavailable):
        story.pond.map("staged").load(table_of(story.definition("staged"), rows))
    story.put("staged", rows)
    story.cluster.wait_dead(REPLICA)
    places = set(story.cluster.nodes[REPLICA].folder.glob("parts/*")) - merged
    assert places
    for place in places:
        flip_byte(place, 5_000)
    story.cluster.start(REPLICA, kill_at=kill_at, wait=kill_at is None)
    if kill_at is not None:
        story.cluster.wait_dead(REPLICA)
        story.cluster.start(REPLICA)
    patient(story, lambda: story.pond.map("staged").load(table_of(story.definition("staged"), rows)))
    quarantined = [entry for entry in parts_of(story.cluster, REPLICA) if entry["state"] == "quarantined"]
    assert all(entry["reason"] for entry in quarantined)
    if quarantined:
        # The node may be running it at this moment, and says so.
        wait_for(lambda: retried(story, REPLICA), "the parts to be taken again")
    story.check()


def retried(story: Story, number: int) -> bool:
    """Ask for what was quarantined to be merged once more; False while somebody else has it done."""
    answer = story.cluster.ask(number, "POST", "/v1/parts/retry", body={})
    assert answer.status == 200 or answer.json()["kind"] == "part_waits", answer.body
    return answer.status == 200


def test_a_damaged_file_of_a_snapshot_is_never_served_as_whole(story: Story) -> None:
    target = story.create("served")
    rows = rows_of(Kind.STATE, 1, 5_000)
    story.bring("served", rows)
    story.settle()
    answer = story.cluster.ask(0, "GET", "/v1/maps/served/snapshot")
    assert answer.status == 200, answer.body
    files = [*story.cluster.nodes[0].folder.glob("snapshots/served.*/ranges/*")]
    assert files
    flip_byte(max(files, key=lambda file: file.stat().st_size), 3_000)
    keys = [str(address[0]) for address in list(story.model("served").rows)[::20]]
    wanted = [story.model("served").answer(key) for key in keys]
    try:
        answers = target.snapshot().lookup(keys).to_pylist()
    except (Corrupt, Unavailable):
        answer = story.cluster.ask(0, "POST", "/v1/verify", body={"full": True})
        assert answer.json()["problems"]
        answers = patient(story, lambda: target.snapshot().lookup(keys).to_pylist())
    assert answers == wanted


def test_a_byte_that_changes_in_a_page_of_a_shard_is_found_by_comparing_and_mended_by_a_copy(story: Story) -> None:
    """The database knows no checksums: a value that is another one is found by what the other nodes hold."""
    story.create("page")
    rows = [((f"page{number:05d}",), 1_000_000 + number) for number in range(500)]
    story.bring("page", rows)
    story.settle()
    (file,) = story.cluster.nodes[REPLICA].folder.glob("shards/page.*/*/data.mdb")
    held, key = file.read_bytes(), b"page00123"
    places = [at for at in range(len(held)) if held.startswith(key, at)]
    for at in places:
        flip_byte(file, at + len(key) + 4)
    assert places
    assert fetch_json(story.cluster, REPLICA, "/v1/maps/page/get", key=key.decode())["value"] != 1_000_123
    said = json.loads(shell("verify", "--pond", story.cluster.url, "--wait", "10", "--json", code=1))
    differing = [(finding["map"], finding["node"], finding["state"]) for finding in said["agreement"]["findings"]
                 if finding["state"] != "agrees"]  # fmt: skip
    assert [finding[:2] for finding in differing] == [("page", story.cluster.urls[REPLICA])]
    assert differing[0][2] in ("differs", "damaged")
    assert "cloned map page" in shell("repair", story.cluster.urls[REPLICA])
    story.check()


def shell(*words: str, code: int = 0) -> str:
    done = CliRunner().invoke(app, list(words), prog_name="millpond")
    assert done.exit_code == code, f"{words} ended with {done.exit_code}\n{done.stdout}\n{done.stderr}"
    return done.stdout
