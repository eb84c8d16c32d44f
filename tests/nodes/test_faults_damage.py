"""Bytes that are not what was written: found where they arrive, reported, and never served."""

from __future__ import annotations

import contextlib
import io
import json
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner
from xxhash import xxh3_128_hexdigest

from millpond.cli.main import app
from millpond.errors import Corrupt, Unavailable
from millpond.maps.model.definition import Kind
from millpond.maps.parts.bundle import write_bundle
from millpond.testing.faults import flip_byte
from millpond.testing.rows import canonical_of, table_of
from tests.harness.cluster import wait_for
from tests.harness.cluster_audit import fetch_json, parts_of
from tests.harness.faulty_proxy import Trouble
from tests.nodes.fault_story import Story, patient, rows_of, running_story

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from tests.harness.cluster import Answer

pytestmark = pytest.mark.sample(2, of="faults of nodes")

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


# -- bundles that are not what they should be ---------------------------------------------------------


def bundle_of(story: Story, name: str, load: int = 1) -> tuple[str, bytes]:
    """A part of some rows, its id and its bundle."""
    writer = story.pond.part_writer(name)
    writer.write(canonical_of(story.definition(name), rows_of(Kind.STATE, load)))
    (part,) = writer.finish()
    sink = io.BytesIO()
    write_bundle(Path(part.folder), sink)
    return part.manifest.id, sink.getvalue()


def send(story: Story, name: str, part: str, body: bytes, **headers: str) -> Answer:
    given = {
        "Upload-Map": name, "Upload-Length": str(len(body)), "Upload-Offset": "0",
        "Upload-Checksum": xxh3_128_hexdigest(body), "Content-Type": "application/octet-stream",
    }  # fmt: skip
    sent_headers = {**given, **{key.replace("_", "-"): value for key, value in headers.items()}}
    return story.cluster.ask(0, "PUT", f"/v1/parts/{part}/upload", body=body, headers=sent_headers)


def members_of(bundle: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(bundle)) as file:
        return {name: file.read(name) for name in file.namelist()}


def zipped(members: Mapping[str, bytes], compression: int = zipfile.ZIP_STORED, *, twice: str = "") -> bytes:
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w", compression) as file:
        for name, data in members.items():
            file.writestr(zipfile.ZipInfo(name), data, compression)
        if twice:
            file.writestr(zipfile.ZipInfo(twice), b"again", compression)
    return sink.getvalue()


def link_to(members: Mapping[str, bytes]) -> bytes:
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w") as file:
        for name, data in members.items():
            info = zipfile.ZipInfo(name)
            if name == "data.mdb":
                info.external_attr = 0o120777 << 16
                data = b"/etc/passwd"
            file.writestr(info, data)
    return sink.getvalue()


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :]


BAD: dict[str, Callable[[dict[str, bytes], bytes], bytes]] = {
    "no zip": lambda _members, _bundle: b"not a zip at all" * 100,
    "cut short": lambda _members, bundle: bundle[: len(bundle) // 2],
    "empty": lambda _members, _bundle: zipped({}),
    "a byte of the data": lambda members, _bundle: zipped({**members, "data.mdb": flipped(members["data.mdb"], 5000)}),
    "a byte of the zip": lambda _members, bundle: flipped(bundle, len(bundle) // 2),
    "no manifest": lambda members, _bundle: zipped({k: v for k, v in members.items() if k != "manifest.json"}),
    "a path": lambda members, _bundle: zipped({**members, "../../escaped": b"x"}),
    "an absolute path": lambda members, _bundle: zipped({**members, "/tmp/millpond-escaped": b"x"}),
    "another member": lambda members, _bundle: zipped({**members, "more": b"x"}),
    "a member twice": lambda members, _bundle: zipped(members, twice="data.mdb"),
    "a link": lambda members, _bundle: link_to(members),
    "another part": lambda members, _bundle: zipped({**members, "manifest.json": b"{}"}),
}


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("what", list(BAD))
def test_a_bad_bundle_is_refused_and_nothing_of_it_is_left(story: Story, what: str) -> None:
    name = f"bad_{what.replace(' ', '_')}"
    story.create(name)
    part, bundle = bundle_of(story, name)
    answer = send(story, name, part, BAD[what](members_of(bundle), bundle))
    assert answer.status in (400, 413, 422), (answer.status, answer.body)
    assert answer.json()["kind"], answer.body
    assert b"Traceback" not in answer.body
    response = story.cluster.ask(0, "GET", f"/v1/parts/{part}/upload").json()
    assert response["state"] == "absent", response
    assert not Path("/tmp/millpond-escaped").exists()
    assert not list(story.cluster.folder.rglob("escaped"))
    assert not [listed for listed in parts_of(story.cluster, 0) if listed["part"] == part]
    story.load(name, 1)
    story.check(full=False)


def test_a_bomb_does_not_grow_on_the_disk(story: Story) -> None:
    """Deflated members are taken, but not beyond what a part may have."""
    story.create("bomb")
    part, bundle = bundle_of(story, "bomb")
    members = members_of(bundle)
    bomb = zipped({**members, "touched.arrow": b"\0" * (256 << 20)}, zipfile.ZIP_DEFLATED)
    assert len(bomb) < 4 << 20
    lying = bomb.replace((256 << 20).to_bytes(4, "little"), (1000).to_bytes(4, "little"))
    for body in (bomb, lying):
        answer = send(story, "bomb", part, body)
        assert answer.status in (400, 413, 422), (answer.status, answer.body)
    assert story.cluster.ask(0, "GET", f"/v1/parts/{part}/upload").json()["state"] == "absent"
    held = sum(file.stat().st_size for file in story.cluster.nodes[0].folder.rglob("*") if file.is_file())
    assert held < 128 << 20


def test_an_upload_that_is_not_what_it_said_is_refused(story: Story) -> None:
    story.create("liar")
    part, bundle = bundle_of(story, "liar")
    assert send(story, "liar", part, bundle, Upload_Checksum="0" * 32).status == 422
    response = send(story, "liar", part, bundle[17:], Upload_Offset="17", Upload_Length=str(len(bundle)))
    assert (response.status, response.json()["kind"]) == (409, "upload_offset"), response.body
    assert send(story, "liar", part, bundle, Upload_Length="-1").status == 400
    assert send(story, "liar", part, bundle, Upload_Length=str(1 << 50)).status == 413
    assert send(story, "nobody", part, bundle).status == 404
    assert send(story, "liar", "f" * 32, bundle).status in (400, 422)
    assert send(story, "liar", "../../etc", bundle).status in (400, 404, 405, 422)
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
    part, bundle = bundle_of(story, name, load)
    for number in (0, REPLICA):
        headers = {
            "Upload-Map": name, "Upload-Length": str(len(bundle)), "Upload-Offset": "0",
            "Upload-Checksum": xxh3_128_hexdigest(bundle),
        }  # fmt: skip
        answer = story.cluster.ask(number, "PUT", f"/v1/parts/{part}/upload", body=bundle, headers=headers)
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
    merged = set(story.cluster.nodes[REPLICA].folder.glob("parts/*/data.mdb"))  # they are retained
    story.cluster.kill_at(REPLICA, "merge.part_taken")
    rows = rows_of(Kind.STATE, 1)
    with contextlib.suppress(Unavailable):
        story.pond.map("staged").load(table_of(story.definition("staged"), rows))
    story.put("staged", rows)
    story.cluster.wait_dead(REPLICA)
    places = set(story.cluster.nodes[REPLICA].folder.glob("parts/*/data.mdb")) - merged
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
