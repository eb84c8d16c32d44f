"""Nodes that are away, and connections that break: loads are whole on every node or refused, and can be done again."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

import millpond
from millpond.errors import Unavailable
from millpond.maps.model.definition import Kind
from millpond.maps.parts.stream import PartStream
from tests.harness.cluster import wait_for
from tests.harness.cluster_audit import parts_of, position_of, settle
from tests.harness.faulty_proxy import Trouble
from tests.harness.rows import canonical_of, table_of
from tests.nodes.fault_story import Story, patient, rows_of, running_story, wait_struck
from tests.nodes.test_uploads import checksum_of

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.sample(1, of="faults of nodes")

MANY = 1_000_000


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    with running_story(tmp_path_factory.mktemp("down"), proxies=True, settings={"client_read_timeout": "5s"}) as story:
        yield story


@pytest.fixture
def story(whole: Story) -> Iterator[Story]:
    """The cluster of this module, in order, with no map of an earlier test to hold it against."""
    whole.calm()
    whole.world.clear()
    yield whole
    whole.calm()


@contextmanager
def impatient(story: Story) -> Iterator[None]:
    """A client that waits for no answer longer than two seconds."""
    in_thread = story.pond
    with millpond.open(story.cluster.url, client_read_timeout="2s") as story.pond:
        try:
            yield
        finally:
            story.pond = in_thread


def big_rows(load: int, count: int = 6_000) -> list[tuple[tuple[str | int, ...], object]]:
    """Rows of which a part has some megabytes."""
    return rows_of(Kind.STATE, load, count, key_bytes=400)


def test_nothing_is_entered_while_a_replica_is_away_and_the_load_succeeds_when_it_is_back(story: Story) -> None:
    story.create("away")
    story.load("away", 0)
    before = settle(story.cluster)
    story.cluster.kill(2)
    with pytest.raises(Unavailable) as caught:
        story.load("away", 1)
    assert story.cluster.nodes[2].url in str(caught.value)
    assert position_of(story.cluster, 0)[0] == before
    assert position_of(story.cluster, 1)[0] == before
    story.check(nodes=[0, 1])
    story.revive()
    story.load("away", 1)
    story.check()


def test_a_replica_that_dies_after_the_upload_replicates_without_help(story: Story) -> None:
    story.create("died")
    story.load("died", 0)
    trouble = story.proxy(0).trouble(Trouble("cut", match=b"GET /v1/log", times=MANY))
    wait_for(lambda: trouble.times < MANY - 4, "questions that were on their way to be answered")
    # what it asks of the primary is lost, so it hears of the entry only when it is back
    rows = rows_of(Kind.STATE, 1)
    with impatient(story), pytest.raises(Unavailable) as caught:
        story.pond.map("died").load(table_of(story.definition("died"), rows))
    assert any(url in str(caught.value) for url in story.cluster.urls[1:])
    story.put("died", rows)  # entered on the primary: the error says so, and it must not be lost
    story.cluster.kill(1)
    story.calm()
    story.check()
    story.load("died", 1)
    story.check()


def test_nothing_can_be_loaded_without_the_primary_but_everything_can_be_read(story: Story) -> None:
    target = story.create("primary")
    story.load("primary", 0)
    settle(story.cluster)
    story.cluster.kill(0)
    with pytest.raises(Unavailable) as caught:
        story.load("primary", 1)
    assert story.cluster.urls[0] in str(caught.value)
    key = next(iter(story.model("primary").rows))[0]
    assert target.get(key) == story.model("primary").answer(key)
    assert target.lookup([key, "nobody"]).to_pylist() == [story.model("primary").answer(key), None]
    story.check(nodes=[1, 2])
    with pytest.raises(Unavailable):
        story.pond.create_map("other", kind="state")
    story.revive()
    story.load("primary", 1)
    story.check()


def test_a_replica_that_was_away_for_several_loads_catches_up_when_it_starts(story: Story) -> None:
    """It was not sent the parts: it has them from its peers, though it dies while it fetches them."""
    story.create("behind")
    story.load("behind", 0)
    settle(story.cluster)
    story.cluster.stop(2)
    # a list of two nodes is a cluster of its own for a writer that is configured so
    for load in range(1, 6):
        for number in (0, 1):
            enter_at(story, number, "behind", load)
    story.cluster.start(2, kill_at="fetch.part_came:2", wait=False)
    story.cluster.wait_dead(2)
    story.revive()
    story.check()


def enter_at(story: Story, number: int, name: str, load: int) -> None:
    """Bring a load to one node alone, as a writer does that knows no other; the primary enters it."""
    definition = story.definition(name)
    rows = rows_of(definition.kind, load)
    writer = story.pond.part_writer(name)
    writer.write(canonical_of(definition, rows))
    (part,) = writer.finish()
    body = b"".join(PartStream(part.file).chunks())
    headers = {
        "Upload-Map": name, "Upload-Length": str(len(body)), "Upload-Offset": "0",
        "Upload-Checksum": checksum_of(body), "Content-Type": "application/octet-stream",
    }  # fmt: skip
    response = story.cluster.ask(number, "PUT", f"/v1/parts/{part.manifest.id}/upload", body=body, headers=headers)
    assert response.status == 200, response.body
    if number == 0:
        request = {"load_id": f"direct-{name}-{load}", "parts": [part.manifest.id], "source": "", "rejected": 0}
        response = story.cluster.ask(0, "POST", "/v1/loads", body=request)
        assert response.status == 200, response.body
        story.put(name, rows)


# -- connections that break ---------------------------------------------------------------------------


@pytest.mark.parametrize("after", [0, 300_000])
def test_an_upload_that_is_cut_is_gone_on_with(story: Story, after: int) -> None:
    name = f"cut{after}"
    story.create(name)
    rows = big_rows(after)
    proxy = story.proxy(1)
    trouble = proxy.trouble(Trouble("cut", match=b"PUT /v1/parts/", after=after))
    before = proxy.bytes_up
    story.bring(name, rows)
    assert trouble.struck.is_set()
    assert proxy.bytes_up - before < 6 << 20
    story.check(full=False)


def test_a_commit_whose_answer_is_lost_is_entered_once(story: Story) -> None:
    story.create("lost")
    trouble = story.proxy(0).trouble(Trouble("cut", match=b"POST /v1/loads", down=True))
    before = settle(story.cluster)
    result = story.load("lost", 1)
    assert trouble.struck.is_set()
    assert result.rows == len(story.model("lost").rows)
    assert position_of(story.cluster, 0)[0] == before + 1
    story.check()


def test_a_commit_that_never_arrives_is_entered_once(story: Story) -> None:
    story.create("deaf")
    trouble = story.proxy(0).trouble(Trouble("cut", match=b"POST /v1/loads", after=5))
    before = settle(story.cluster)
    story.load("deaf", 1)
    assert trouble.struck.is_set()
    assert position_of(story.cluster, 0)[0] == before + 1
    story.check()


def test_an_answer_to_making_a_map_that_is_lost_is_no_second_map(story: Story) -> None:
    story.proxy(0).trouble(Trouble("cut", match=b"POST /v1/maps", down=True))
    made = patient(story, lambda: story.pond.create_map("twice", kind="state", value="long", exist_ok=True))
    assert made.definition.name == "twice"
    settle(story.cluster)
    assert {story.cluster.ask(number, "GET", "/v1/maps/twice").json()["incarnation"] for number in range(3)} == {
        made.definition.incarnation
    }


def test_a_silent_connection_is_given_up(story: Story) -> None:
    """Not reset, only silent: the read time-out ends it."""
    story.create("silent")
    trouble = story.proxy(1).trouble(Trouble("hold", match=b"PUT /v1/parts/", after=500))
    with impatient(story):
        patient(story, lambda: story.load("silent", 1))
    wait_struck(trouble, "an upload")
    story.proxy(1).mend()
    story.check()


def test_a_snapshot_that_is_cut_is_gone_on_with_at_another_node(story: Story) -> None:
    target = story.create("frozen")
    rows = big_rows(7)
    story.bring("frozen", rows)
    settle(story.cluster)
    proxy = story.proxy(0)
    struck = [
        proxy.trouble(Trouble("cut", match=b"GET /v1/maps/frozen/objects/", after=100, down=True)) for _ in range(2)
    ]
    keys = [str(address[0]) for address in list(story.model("frozen").rows)[:: len(rows) // 500]]
    wanted = [story.model("frozen").answer(key) for key in keys]
    snapshot = patient(story, lambda: target.snapshot())
    assert snapshot.lookup(keys).to_pylist() == wanted
    assert all(trouble.struck.is_set() for trouble in struck[:1])
    story.load("frozen", 8)
    proxy.cut()
    fresh = patient(story, lambda: target.snapshot())
    assert fresh.lookup(keys).to_pylist() == [story.model("frozen").answer(key) for key in keys]
    proxy.mend()
    story.check(full=False)


def test_a_truncated_range_is_not_believed(story: Story) -> None:
    """The answer ends early though it said how long it is; and a byte of another is not what it was."""
    target = story.create("short")
    rows = big_rows(3)
    story.bring("short", rows)
    settle(story.cluster)
    for act, after in (("cut", 20_000), ("flip", 30_000)):
        story.proxy(0).trouble(Trouble(act, match=b"GET /v1/maps/short/objects/ranges", after=after, down=True))
    snapshot = patient(story, lambda: target.snapshot())
    keys = [str(address[0]) for address in list(story.model("short").rows)[::50]]
    assert snapshot.lookup(keys).to_pylist() == [story.model("short").answer(key) for key in keys]
    story.check(full=False)


def test_the_log_that_is_cut_in_mid_answer_is_read_again(story: Story) -> None:
    story.create("logged")
    for after in (0, 100, 400):
        story.proxy(0).trouble(Trouble("cut", match=b"GET /v1/log", after=after, down=True))
    for load in range(3):
        patient(story, lambda load=load: story.load("logged", load))
    story.check()


def test_a_replica_says_who_takes_loads(story: Story) -> None:
    """A replica that gets a load names the primary."""
    request = {"load_id": "x", "parts": ["0" * 32], "source": "", "rejected": 0}
    response = story.cluster.ask(1, "POST", "/v1/loads", body=request)
    assert response.status == 421, response.body
    assert response.json()["kind"] == "not_primary"
    assert response.json()["values"]["primary"] == story.cluster.urls[0]


def test_parts_that_nobody_enters_are_listed_nowhere(story: Story) -> None:
    story.create("orphan")
    story.cluster.kill(2)
    with pytest.raises(Unavailable):
        story.load("orphan", 1)
    story.revive()
    assert not [part for number in range(3) for part in parts_of(story.cluster, number) if part["map"] == "orphan"]
    story.load("orphan", 1)
    story.check()
