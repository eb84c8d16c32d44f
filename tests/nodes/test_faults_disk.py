"""A node whose disk is full: what does not fit is refused by name, nothing is half there, and space mends it."""

from __future__ import annotations

import json
import os
import subprocess
from contextlib import suppress
from shutil import rmtree
from typing import TYPE_CHECKING

import pytest
from urllib3.exceptions import HTTPError

import millpond
from millpond.errors import Unavailable
from millpond.maps.model.definition import Kind
from tests.harness.cluster import Place, wait_for
from tests.harness.cluster_audit import fetch_json, parts_of, position_of
from tests.harness.rows import table_of
from tests.nodes.fault_story import Story, patient, rows_of, running_story

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.harness.models import Row

pytestmark = pytest.mark.sample(1, of="faults of nodes")

DISK_BYTES = 160 << 20
SMALL = 2
ROWS = 12_000
KEY_BYTES = 400
"""A part of so many rows with such keys has about five megabytes."""


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A disk of 160 MB: a node wants 64 of them free before it says that it is ready."""
    place = tmp_path_factory.mktemp("disk")
    if os.geteuid() != 0:
        pytest.skip("mounting a small disk needs root")
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(place)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"mounting is not allowed here: {mounted.stderr.decode().strip()}")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.fixture(scope="module")
def whole(disk: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    """The third node lives on the small disk."""
    with running_story(tmp_path_factory.mktemp("full"), places={SMALL: Place(folder=disk / "pond")}) as story:
        yield story


@pytest.fixture(autouse=True)
def space(whole: Story, disk: Path) -> Iterator[None]:
    """Each test begins with space on the disk and all nodes up."""
    whole.revive()
    whole.world.clear()
    yield
    (disk / "ballast").unlink(missing_ok=True)
    whole.revive()


def big_rows() -> list[Row]:
    """Rows that need more of the disk than is left when it is full."""
    return rows_of(Kind.STATE, 1, ROWS, KEY_BYTES)


def fill(disk: Path, leaving: int = 0) -> Path:
    """Fill the disk up but for so many bytes, with a file."""
    ballast = disk / "ballast"
    # a node may take the last of it meanwhile
    with suppress(OSError), ballast.open("ab", buffering=0) as file:
        free = os.statvfs(disk)
        left = free.f_bavail * free.f_frsize - leaving
        while left > 0:
            left -= file.write(b"x" * min(left, 1 << 20))
    return ballast


@pytest.mark.parametrize(
    "leaving", [0, *(pytest.param(left << 20, marks=pytest.mark.full) for left in (8, 24, 30)), 36 << 20]
)
def test_a_load_that_one_disk_cannot_hold_is_reported_and_goes_on_when_there_is_space(
    whole: Story, disk: Path, leaving: int
) -> None:
    """By how much is left the upload is refused, or what was entered waits there to be merged."""
    story, name = whole, f"full{leaving >> 20}"
    story.create(name)
    story.load(name, 0)
    story.settle()
    rows = big_rows()
    before = position_of(story.cluster, 0)
    ballast = fill(disk, leaving)
    refused = None
    try:
        story.pond.map(name).load(table_of(story.definition(name), rows))
    except Unavailable as error:
        refused = error
    entered = position_of(story.cluster, 0) != before
    if not entered:
        assert refused is not None
        assert story.cluster.nodes[SMALL].url in str(refused)
        assert "no space is left" in str(refused)
        story.check(nodes=[0, 1], full=False)
    ballast.unlink()
    patient(story, lambda: story.bring(name, rows))
    story.check(full=False)
    story.pond.drop_map(name)


def test_a_full_disk_is_answered_with_507_and_nothing_is_left_of_the_upload(whole: Story, disk: Path) -> None:
    story = whole
    story.create("refusal")
    story.settle()
    ballast = fill(disk)
    wait_for(lambda: story.cluster.ask(SMALL, "GET", "/readyz").status == 503, "the node to say that it is not ready")
    reasons = story.cluster.ask(SMALL, "GET", "/readyz").body
    assert b"disk" in reasons
    with pytest.raises(Unavailable):
        story.pond.map("refusal").load(table_of(story.definition("refusal"), big_rows()))
    answer = story.cluster.ask(
        SMALL, "PUT", f"/v1/parts/{'a' * 32}/upload", body=b"x" * (1 << 20),
        headers={"Upload-Map": "refusal", "Upload-Length": str(1 << 20), "Upload-Offset": "0",
                 "Upload-Checksum": "0" * 32},
    )  # fmt: skip
    assert answer.status == 507, answer.body
    assert json.loads(answer.body)["kind"] == "disk_full"
    assert all(part["state"] == "retained" for part in parts_of(story.cluster, SMALL))
    # whoever only asks is answered
    assert fetch_json(story.cluster, SMALL, "/v1/maps/refusal/get", key="nobody")["value"] is None
    ballast.unlink()
    story.cluster.wait_ready(SMALL)
    patient(story, lambda: story.load("refusal", 1))
    story.check()


def answers(story: Story) -> bool:
    """True when the node on the small disk answers; it must run."""
    with suppress(HTTPError):
        return story.cluster.ask(SMALL, "GET", "/healthz").status == 200
    assert story.cluster.nodes[SMALL].runs, story.cluster.nodes[SMALL].tail()
    return False


def test_an_applied_load_is_queued_while_the_disk_is_full_and_merged_later(whole: Story, disk: Path) -> None:
    story = whole
    story.create("waits")
    story.load("waits", 0)
    story.settle()
    story.cluster.kill_at(SMALL, "merge.part_taken")
    rows = big_rows()
    with suppress(Unavailable):
        story.pond.map("waits").load(table_of(story.definition("waits"), rows))
    story.put("waits", rows)
    story.cluster.wait_dead(SMALL)
    ballast = fill(disk)
    story.cluster.start(SMALL, wait=False)
    wait_for(lambda: answers(story), "the node to answer", 60)
    assert story.cluster.ask(SMALL, "GET", "/readyz").status == 503
    states = {
        part["state"] for part in parts_of(story.cluster, SMALL) if (part["map"], part["rows"]) == ("waits", ROWS)
    }
    assert states <= {"queued", "merging"}
    refused = story.cluster.ask(SMALL, "GET", "/v1/maps/waits/get?key=k00001")
    assert (refused.status, refused.json()["kind"]) == (503, "node_not_ready"), "the value before is not the answer"
    with millpond.open(",".join(node.url for node in reversed(story.cluster.nodes))) as pond:
        assert pond.map("waits").get("k00001") is not None
    ballast.unlink()
    story.check(full=False)


@pytest.mark.full
def test_a_node_that_begins_anew_waits_for_space_and_copies_the_maps_then(whole: Story, disk: Path) -> None:
    """Half a copy is none: nothing of it is shown, and what came is gone on with."""
    story = whole
    story.create("copied")
    rows = big_rows()
    story.bring("copied", rows)
    story.settle()
    story.cluster.stop(SMALL)
    rmtree(story.cluster.nodes[SMALL].folder)
    ballast = fill(disk, 4 << 20)
    said = len(story.cluster.nodes[SMALL].log.read_bytes())
    story.cluster.start(SMALL, wait=False)
    wait_for(lambda: answers(story), "the node to answer", 60)
    wait_for(lambda: b"no space" in story.cluster.nodes[SMALL].log.read_bytes()[said:], "the copy not to fit", 60)
    assert story.cluster.ask(SMALL, "GET", "/readyz").status == 503
    assert fetch_json(story.cluster, SMALL, "/v1/node")["position"] == 0
    assert story.cluster.ask(SMALL, "GET", "/v1/maps").json()["kind"] == "node_not_ready"
    ballast.unlink()
    story.cluster.wait_ready(SMALL)
    story.check(full=False)
    assert not list(story.cluster.nodes[SMALL].folder.glob("clone/*"))


def test_a_snapshot_that_does_not_fit_is_refused_by_name_and_others_are_read(whole: Story, disk: Path) -> None:
    story = whole
    target = story.create("frozen")
    rows = big_rows()
    story.bring("frozen", rows)
    story.settle()
    ballast = fill(disk)
    answer = story.cluster.ask(SMALL, "GET", "/v1/maps/frozen/snapshot")
    assert (answer.status, answer.json()["kind"]) == (507, "disk_full"), answer.body
    keys, wanted = story.known("frozen", rows[::500])
    assert target.snapshot().lookup(keys).to_pylist() == wanted
    with millpond.open(story.cluster.nodes[SMALL].url) as there:
        assert there.map("frozen").get(keys[0]) == wanted[0]
    ballast.unlink()
    assert story.cluster.ask(SMALL, "GET", "/v1/maps/frozen/snapshot").status == 200
    story.check(full=False)


def test_a_reader_whose_own_disk_is_full_says_so_and_reads_when_there_is_space(
    whole: Story, disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own disk, and no node's: no other node is blamed, nothing half fetched is believed."""
    story = whole
    story.create("fetched")
    rows = big_rows()
    story.bring("fetched", rows)
    story.settle()
    monkeypatch.setenv("MILLPOND_CLIENT_CACHE", str(disk / "cache"))
    keys, wanted = story.known("fetched", rows[::500])
    with millpond.open(story.cluster.url) as reader:
        ballast = fill(disk, 1 << 20)
        with pytest.raises(Unavailable) as caught:
            reader.map("fetched").snapshot().lookup(keys)
        assert "no space" in str(caught.value), caught.value
        ballast.unlink()
        found = patient(story, lambda: reader.map("fetched").snapshot().lookup(keys))
        assert found.to_pylist() == wanted
    story.check(full=False)
