"""The primary is lost and another node is named first: who runs the nodes decides, and nobody follows two logs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner
from urllib3.exceptions import HTTPError

import millpond
from millpond.cli.main import app
from millpond.errors import Unavailable
from tests.harness.chaos.orders import Orders
from tests.harness.cluster import wait_for
from tests.harness.cluster_audit import fetch_json, position_of
from tests.harness.faulty_proxy import Trouble
from tests.harness.rows import table_of
from tests.nodes.fault_story import Story, patient, rows_of, running_story

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.full

OLD, NEW, OTHER = 0, 1, 2
MANY = 1_000_000
SETTLE_SECONDS = 60.0


@pytest.fixture
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    settings = {"client_read_timeout": "3s"}
    with running_story(tmp_path_factory.mktemp("promoted"), proxies=True, settings=settings) as opened:
        yield opened


def enter_at_the_primary_alone(story: Story, name: str, load: int) -> None:
    """A load that the primary enters and dies of before anybody heard of it; the loader gets an error."""
    trouble = story.proxy(OLD).trouble(Trouble("cut", match=b"GET /v1/log", times=MANY))
    wait_for(lambda: trouble.times < MANY - 4, "questions that were on their way to be answered")
    before = position_of(story.cluster, OLD)[0]
    rows = rows_of(story.definition(name).kind, load)
    with millpond.open(story.cluster.url, client_read_timeout="1s") as hasty, pytest.raises(Unavailable) as caught:
        hasty.map(name).load(table_of(story.definition(name), rows))
    assert caught.value.kind != "load_not_everywhere", caught.value
    assert position_of(story.cluster, OLD)[0] == before + 1
    story.cluster.kill(OLD)
    story.proxy(OLD).mend()
    assert {position_of(story.cluster, number)[0] for number in (NEW, OTHER)} == {before}


def name_first(story: Story, *order: int) -> None:
    """Give the nodes that run another list of nodes, and the client, too."""
    running = [node.number for node in story.cluster.nodes if node.runs]
    for number in running:
        story.cluster.stop(number)
    story.cluster.order = list(order)
    # A primary waits for a node that is listed and does not run.
    story.cluster.start(*running, wait=set(order) <= set(running))
    for number in running:
        wait_for(lambda number=number: answers(story, number), f"node {number} to answer")
    story.pond.close()
    story.pond = millpond.open(story.cluster.url)


def shell(*words: str, code: int = 0) -> str:
    done = CliRunner().invoke(app, list(words), prog_name="millpond")
    assert done.exit_code == code, f"{words} ended with {done.exit_code}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def roles_of(story: Story, *numbers: int) -> list[str]:
    return [fetch_json(story.cluster, number, "/v1/node")["role"] for number in numbers]


def is_forked(story: Story, number: int) -> bool:
    """True when a node says that it is not ready, as its log is another one."""
    answer = story.cluster.ask(number, "GET", "/readyz")
    return answer.status == 503 and any("another one than its peer's" in reason for reason in answer.json()["reasons"])


@pytest.mark.full
def test_a_primary_that_comes_back_with_an_entry_nobody_heard_of_is_forked_and_made_a_copy(story: Story) -> None:
    """Its last load was not acknowledged, so it was done again: the new primary has entered it as its own."""
    story.create("lost")
    story.load("lost", 0)
    story.settle()
    enter_at_the_primary_alone(story, "lost", 1)
    name_first(story, NEW, OTHER)
    assert roles_of(story, NEW, OTHER) == ["primary", "replica"]
    story.load("lost", 1)
    story.load("lost", 2)
    name_first(story, NEW, OTHER, OLD)
    story.cluster.start(OLD, wait=False)
    wait_for(lambda: story.cluster.nodes[OLD].runs and answers(story, OLD), "the old primary to answer")
    wait_for(lambda: is_forked(story, OLD), "the old primary to say that its log is another one")
    story.cluster.wait_ready(NEW)
    assert fetch_json(story.cluster, OLD, "/v1/node")["role"] == "replica"
    with pytest.raises(Unavailable) as caught:
        story.load("lost", 3)
    assert story.cluster.nodes[OLD].url in str(caught.value)
    shell("repair", story.cluster.nodes[OLD].url, "--from", story.cluster.nodes[NEW].url, "--yes")
    story.cluster.wait_ready(OLD)
    patient(story, lambda: story.load("lost", 3))
    story.check()


@pytest.mark.full
def test_the_orders_of_a_campaign_bring_back_a_primary_whose_log_went_its_own_way(story: Story) -> None:
    story.create("lost")
    story.load("lost", 0)
    story.settle()
    enter_at_the_primary_alone(story, "lost", 1)
    orders = Orders(story.cluster)
    wait_for(lambda: orders.promote_alone(NEW) == "", "the other nodes to agree")
    assert orders.primary() == NEW
    story.cluster.start(OLD, wait=False)
    wait_for(lambda: answers(story, OLD), "the old primary to answer")
    wait_for(lambda: is_forked(story, OLD), "the old primary to say that its log is another one")
    assert orders.settle(SETTLE_SECONDS) == ""
    assert orders.primary() == OLD
    for number in (OLD, NEW, OTHER):
        story.cluster.wait_ready(number)
    story.pond.close()
    story.pond = millpond.open(story.cluster.url)
    patient(story, lambda: story.load("lost", 2))
    story.check()


def answers(story: Story, number: int) -> bool:
    try:
        return story.cluster.ask(number, "GET", "/healthz").status == 200
    except HTTPError:
        return False


@pytest.mark.parametrize("late", [False, pytest.param(True, marks=pytest.mark.full)])
def test_a_new_primary_takes_what_only_the_old_one_has_while_it_applied_nothing_of_its_own(
    story: Story, late: bool
) -> None:
    """Nothing is lost, though it was not acknowledged; loading it again brings nothing twice.

    The old one is back before the new one starts as the primary, or only later.
    """
    story.create("retained")
    story.load("retained", 0)
    story.settle()
    enter_at_the_primary_alone(story, "retained", 1)
    if not late:
        story.cluster.stop(NEW)
    name_first(story, NEW, OLD, OTHER)
    story.cluster.start(OLD, wait=False)
    if not late:
        story.cluster.start(NEW, wait=False)
    for number in (OLD, NEW, OTHER):
        story.cluster.wait_ready(number)
    assert roles_of(story, OLD, NEW, OTHER) == ["replica", "primary", "replica"]
    story.put("retained", rows_of(story.definition("retained").kind, 1))
    wait_for(lambda: len({position_of(story.cluster, number) for number in range(3)}) == 1, "one log on all nodes")
    story.check()
    again = patient(story, lambda: story.load("retained", 1))
    assert again.duplicate_parts == 1
    story.load("retained", 2)
    story.check()
