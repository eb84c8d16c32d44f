"""A node killed at each step of all it does: it comes back, all nodes agree, and nothing acknowledged is missing.

A round of the story does everything a node does: it takes uploads and loads, merges, freezes, condenses, retains,
compacts, and one replica begins anew with a copy of the others. It runs once to learn which steps each node takes;
then again and again, with a node killed at one of them. A client that is cut off tries again, as a pipeline does.
"""

from __future__ import annotations

import re
from collections import Counter
from contextlib import suppress
from pathlib import Path
from shutil import rmtree
from typing import TYPE_CHECKING

import pytest
from urllib3.exceptions import HTTPError

from millpond.errors import NotFound, Unavailable
from tests.harness.cluster import INTERVALS, Cluster, wait_for
from tests.harness.cluster_audit import fetch_json
from tests.nodes.fault_story import Story, patient, running_story

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.sample(1, of="faults of nodes")

PRIMARY, REPLICA, NEWCOMER = 0, 1, 2
SHARES = 6
ROOT = Path(__file__).resolve().parents[2]
# Those that differ most; all of them are in the slow test.
SAMPLE = ((PRIMARY, "load.committed"), (NEWCOMER, "clone.ready"))
# What no node takes in a round, and who does: writers, readers, and nodes that mend what was damaged or is missing.
ELSEWHERE = (
    "part", "upload", "spark", "epoch", "snapshot", "narrow", "ranges.fetched", "ranges.index_fetched",
    "ranges.one_fetched", "pond.rows_migrated", "pond.slice_migrated", "fetch",
    "clone.map_fetched", "clone.map_switched", "merge.quarantine_moved", "retry",
    "nodes", "promotion", "maintenance.swept", "publish",
    "freeze.sections_written",
    "what.has_just_happened", "backup", "prune", "restore", "versions", "compaction", "collect", "receive.unpacked",
    "receive.checked", "events", "dumps", "restores", "jobs", "simulation",
    "workflows",
    # In `tests/crash`, of maps in layers, branches and buckets:
    "alerts", "alter", "bucket", "convert", "copy", "delete", "files", "fold", "garbage", "head", "job", "layers",
    "refs", "repair", "roll_up", "rows", "shares",
)  # fmt: skip


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    # The log is soon trimmed, so that who begins anew has to copy.
    settings = {"maps_part_retention": "500ms", "nodes_intervals": INTERVALS | {"cleanup": "300ms"}}
    with running_story(tmp_path_factory.mktemp("kills"), settings=settings) as story:
        story.create("weather", "temporal_state", scheme="hash")
        story.create("planes", scheme="lookup")
        yield story


def ready(cluster: Cluster, number: int) -> bool:
    """True when a node is ready, or dead and never will be."""
    with suppress(HTTPError):
        return cluster.ask(number, "GET", "/readyz").status == 200
    return not cluster.nodes[number].runs


class Rounds:
    """Rounds of the story, each with loads of its own."""

    def __init__(self, story: Story) -> None:
        self.story = story
        self.load = 0

    def tell(self, *, newcomer_dies_at: str | None = None) -> None:
        """One round, each act done until it is done."""
        story, first = self.story, self.load
        self.load += 3
        for load in range(first, first + 2):
            patient(story, lambda load=load: story.load_all(load, wait=True))
        for number in (PRIMARY, REPLICA):
            for name in story.world:
                self._ask(number, "GET", f"/v1/maps/{name}/snapshot")
        before = 1000 * (first + 1)
        patient(story, lambda: story.pond.map("weather").condense(before=before))
        story.model("weather").condense(before)
        patient(story, lambda: story.pond.map("weather").retain(before=before - 1500))
        story.model("weather").retain(before - 1500)
        for number in (PRIMARY, REPLICA):
            self._ask(number, "POST", "/v1/maps/weather/maintenance", {"what": "compact"})
        patient(story, lambda: story.load_all(first + 2))
        patient(story, lambda: story.pond.create_map("passing", kind="state", exist_ok=True))
        patient(story, lambda: story.pond.map("passing").load({"key": ["a"], "value": [first]}))
        story.settle()
        patient(story, self._drop_passing)
        story.settle()
        patient(story, self._wait_trimmed)
        self._begin_anew(newcomer_dies_at)
        patient(story, lambda: story.load("planes", first + 1, again=True))
        story.settle()

    def _drop_passing(self) -> None:
        with suppress(NotFound):
            self.story.pond.drop_map("passing")

    def _wait_trimmed(self) -> None:
        """Until no node can tell a newcomer of everything that happened."""
        cluster = self.story.cluster

        def trimmed() -> bool:
            return all(
                fetch_json(cluster, number, "/v1/log", after=10**9)["first"] > 1 for number in (PRIMARY, REPLICA)
            )

        try:
            wait_for(trimmed, "the log to be trimmed")
        except HTTPError as error:
            raise Unavailable("a node is away", reason=error) from error

    def _ask(self, number: int, method: str, path: str, body: dict[str, object] | None = None) -> None:
        def ask() -> None:
            try:
                answer = self.story.cluster.ask(number, method, path, body=body)
            except HTTPError as error:
                raise Unavailable("the node is away", reason=error) from error
            assert answer.status in (200, 202), (number, path, answer.status, answer.body)

        patient(self.story, ask)

    def _begin_anew(self, kill_at: str | None) -> None:
        """A replica with an empty disk."""
        cluster = self.story.cluster
        if cluster.nodes[NEWCOMER].runs:
            cluster.stop(NEWCOMER)
        rmtree(cluster.nodes[NEWCOMER].folder)
        cluster.start(NEWCOMER, kill_at=kill_at, wait=False)
        if kill_at is None:
            # nobody is copied from when the primary dies meanwhile: it is started again by whoever had it killed
            wait_for(lambda: ready(cluster, NEWCOMER) or not cluster.nodes[PRIMARY].runs, "the newcomer", 90)
        else:
            # The last of several times need not come again: a copy that is requested anew takes its steps twice.
            wait_for(lambda: kill_at.endswith(":1") or ready(cluster, NEWCOMER), "the newcomer to die", 90)
            if cluster.nodes[NEWCOMER].runs and not kill_at.endswith(":1"):
                cluster.kill(NEWCOMER)
            cluster.wait_dead(NEWCOMER)
            cluster.start(NEWCOMER)


@pytest.fixture(scope="module")
def rounds(whole: Story) -> Rounds:
    return Rounds(whole)


@pytest.fixture(scope="module")
def steps(rounds: Rounds) -> dict[int, Counter[str]]:
    """The number of times each node takes each step in a round; of the second one, as the first makes everything."""
    rounds.tell()
    marks = [_taken(rounds.story, number) for number in range(3)]
    rounds.tell()
    counts = {number: _taken(rounds.story, number) - marks[number] for number in range(3)}
    rounds.story.check()
    return counts


def _taken(story: Story, number: int) -> Counter[str]:
    return Counter(story.cluster.nodes[number].steps.read_text().split())


def kill_and_go_on(rounds: Rounds, number: int, name: str, nth: int = 1) -> None:
    story = rounds.story
    before = story.deaths[number]
    if number == NEWCOMER:
        rounds.tell(newcomer_dies_at=f"{name}:{nth}")
    else:
        story.cluster.kill_at(number, name, nth)
        rounds.tell()
        story.settle()
        story.revive()
        # the last of several times need not come again
        assert story.deaths[number] > before or nth > 1, (number, name)
        if story.deaths[number] == before:
            story.cluster.kill(number)
            story.revive()
    story.check(full=False)


@pytest.mark.parametrize(("number", "name"), SAMPLE)
def test_killed_at_a_step(rounds: Rounds, steps: dict[int, Counter[str]], number: int, name: str) -> None:
    assert steps[number][name], (name, dict(steps[number]))
    kill_and_go_on(rounds, number, name)


@pytest.mark.full
@pytest.mark.parametrize("share", range(SHARES))
@pytest.mark.parametrize("number", [PRIMARY, REPLICA, NEWCOMER])
def test_killed_at_every_step(rounds: Rounds, steps: dict[int, Counter[str]], number: int, share: int) -> None:
    """The first and the last time that each step is taken."""
    moments = [(name, nth) for name, count in steps[number].items() for nth in sorted({1, count})]
    if number == NEWCOMER:
        # it dies while it begins anew; what it does later, any replica does
        moments = [(name, nth) for name, nth in moments if name.startswith("clone.")]
    for name, nth in moments[share::SHARES]:
        kill_and_go_on(rounds, number, name, nth)


def test_a_round_comes_by_every_step_of_a_node(steps: dict[int, Counter[str]]) -> None:
    """So that a step that is new is killed at, or somebody says where it is."""
    named = set()
    for file in (ROOT / "src" / "millpond").rglob("*.py"):
        named |= set(re.findall(r'\bstep\(\s*"([a-z_.]+)"', file.read_text()))
    taken = set().union(*(counter.keys() for counter in steps.values()))
    missing = {name for name in named - taken if not name.startswith(ELSEWHERE)}
    assert missing == set()
