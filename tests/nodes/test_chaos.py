"""The fault campaign: its plan and data are a function of the seed, its oracle notices mistakes, and nodes stand it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from millpond.maps.model.definition import Kind, MapDefinition, parse_value_type
from tests.harness.chaos.batches import MAPS, Batch, LoadId, batch_of, mark_question
from tests.harness.chaos.oracle import Oracle, Sight
from tests.harness.chaos.plan import DESTRUCTIVE, KINDS, NODES, PRIMARY, plan_of
from tests.harness.chaos.sights import sight_of_answers, sight_of_rows
from tests.harness.models import MapModel
from tests.harness.rows import presented

pytestmark = pytest.mark.sample(3, of="file")

SEED = 5
FIRST, SECOND = LoadId("state", 0, 1), LoadId("state", 0, 2)
STATE = MapDefinition(name="state", kind=Kind.STATE, incarnation="i", value=parse_value_type("long"))
CAMPAIGN_SEED = "20"
ROOT = Path(__file__).parents[2]


# -- the plan and the data ----------------------------------------------------------------------------


def test_the_plan_of_a_seed_is_always_the_same() -> None:
    """Also in a process whose hashes are salted otherwise."""
    script = f"from tests.harness.chaos.plan import plan_of; print(plan_of({SEED}, 60))"
    other = subprocess.run(
        [sys.executable, "-c", script], env={**os.environ, "PYTHONHASHSEED": "77"}, capture_output=True, text=True,
        check=True, cwd=ROOT,
    )  # fmt: skip
    assert other.stdout.strip() == str(plan_of(SEED, 60))
    assert plan_of(SEED, 60) != plan_of(SEED + 1, 60)


@pytest.mark.parametrize("seed", range(20))
def test_a_plan_meets_every_kind_and_destroys_one_disk_at_a_time(seed: int) -> None:
    plan = plan_of(seed, 3 * len(KINDS))
    for at in range(0, len(plan), len(KINDS)):
        assert {episode.faults[0].kind for episode in plan[at : at + len(KINDS)]} == set(KINDS)
    for episode in plan:
        assert sum(fault.kind in DESTRUCTIVE for fault in episode.faults) <= 1
        assert len({fault.node for fault in episode.faults}) == len(episode.faults)
        for fault in episode.faults:
            assert 0 <= fault.node < NODES
            assert (fault.node == PRIMARY) or fault.kind not in ("primary_emptied", "primary_set_back")
            assert fault.node != PRIMARY or not fault.kind.startswith(("replica", "promote", "remove", "primary_lost"))


def test_loads_of_a_seed_are_always_the_same_and_share_no_address_but_the_mark() -> None:
    for name, kind in MAPS.items():
        loads = [LoadId(name, writer, number) for writer in range(3) for number in range(1, 40)]
        batches = [batch_of(SEED, load) for load in loads]
        addresses = [address for batch in batches for address, _ in batch.own]
        assert len(set(addresses)) == len(addresses)
        assert not {batch.mark[0] for batch in batches if batch.mark} & set(addresses)
        batch_of.cache_clear()
        assert [batch_of(SEED, load).rows for load in loads] == [batch.rows for batch in batches]
        assert all(one.rows != other.rows for one, other in pairwise(batches))
        model = MapModel(kind)
        for batch in batches:
            model.put(batch.rows)
        assert all(model.answer(*mark_question(name, writer)) == 39 for writer in range(3) if kind.valued)
        # Each question finds its own row also when all others are there.
        for batch in batches[::10]:
            answers = [model.answer(*question) for question in batch.questions]
            assert answers == [value if kind.valued else address[1:] for address, value in batch.own]


# -- the oracle ---------------------------------------------------------------------------------------


def watched(*loads: LoadId) -> Oracle:
    """An oracle to which these loads were acknowledged, each merged everywhere."""
    oracle = Oracle()
    for position, load in enumerate(loads, 1):
        oracle.begin(load)
        oracle.acknowledge(load, position, synchronised=True)
    return oracle


def judged(oracle: Oracle, sight: Sight) -> set[str]:
    """The words of what is wrong about an answer that began now."""
    found = oracle.judge(oracle.floor(sight.map), sight, "a test")
    assert len(oracle.wrong) == sum(oracle.kinds.values())
    return {problem.partition(":")[0] for problem in found}


def rows_of(*batches: Batch) -> list[object]:
    """The rows of a state map into which these were loaded, in this order."""
    model = MapModel(Kind.STATE)
    for batch in batches:
        model.put(batch.rows)
    return presented(STATE, model.scan())


BOTH = (batch_of(SEED, FIRST), batch_of(SEED, SECOND))


def test_a_true_history_is_not_wrong() -> None:
    oracle = watched(FIRST, SECOND)
    assert judged(oracle, sight_of_rows(STATE, BOTH, rows_of(*BOTH))) == set()
    assert judged(oracle, sight_of_answers(BOTH[0], [value for _, value in BOTH[0].own])) == set()


def test_a_lost_load_is_noticed() -> None:
    oracle = watched(FIRST, SECOND)
    assert judged(oracle, sight_of_rows(STATE, BOTH, rows_of(BOTH[1]))) == {"lost"}
    assert judged(oracle, sight_of_answers(BOTH[0], [None] * len(BOTH[0].own))) == {"lost"}
    assert judged(oracle, Sight("state", frozenset(), marks={0: None})) == {"lost"}


def test_a_doubled_row_is_noticed() -> None:
    rows = rows_of(*BOTH)
    assert judged(watched(FIRST, SECOND), sight_of_rows(STATE, BOTH, [*rows, rows[0]])) == {"doubled"}


def test_an_old_answer_is_noticed() -> None:
    """The second load was merged before the first one: its mark is that of the first."""
    oracle = watched(FIRST, SECOND)
    assert judged(oracle, sight_of_rows(STATE, BOTH, rows_of(*reversed(BOTH)))) == {"old"}
    assert judged(oracle, Sight("state", frozenset(), marks={0: 1})) == {"old"}


def test_a_load_that_is_half_there_is_noticed_acknowledged_or_not() -> None:
    oracle = watched(FIRST)
    oracle.begin(SECOND)
    oracle.fail(SECOND)
    half = [value if at else None for at, (_, value) in enumerate(BOTH[1].own)]
    assert judged(oracle, sight_of_answers(BOTH[1], half)) == {"half"}
    assert judged(oracle, sight_of_rows(STATE, BOTH, rows_of(BOTH[0], replace(BOTH[1], own=BOTH[1].own[1:])))) == {
        "half"
    }


def test_rows_that_nobody_loaded_are_noticed() -> None:
    oracle = watched(FIRST)
    assert judged(oracle, sight_of_rows(STATE, BOTH[:1], rows_of(*BOTH))) == {"strange", "lost"}
    assert judged(oracle, sight_of_answers(BOTH[0], [-1, *(value for _, value in BOTH[0].own[1:])])) == {
        "strange", "half",
    }  # fmt: skip
    assert judged(oracle, Sight("state", frozenset(), marks={0: 2})) == {"strange"}


def test_a_load_that_ended_in_an_error_may_be_there_or_not_at_any_time() -> None:
    oracle = watched(SECOND)
    oracle.begin(FIRST)
    oracle.fail(FIRST)
    assert judged(oracle, sight_of_rows(STATE, BOTH, rows_of(BOTH[1]))) == set()
    assert judged(oracle, sight_of_rows(STATE, BOTH, rows_of(*BOTH))) == set()
    assert judged(oracle, sight_of_rows(STATE, BOTH, rows_of(*reversed(BOTH)))) == set()


def test_a_load_is_required_when_a_later_one_of_its_map_was_merged_everywhere() -> None:
    oracle = Oracle()
    absent = Sight("state", frozenset((FIRST,)))
    oracle.begin(FIRST)
    oracle.acknowledge(FIRST, 7, synchronised=False)
    assert judged(oracle, absent) == set()
    for load, position, wrong in (
        (LoadId("state", 1, 1), 6, set[str]()), (LoadId("session", 1, 1), 8, set[str]()),
        (LoadId("state", 1, 2), 9, {"lost"}),
    ):  # fmt: skip
        oracle.begin(load)
        oracle.acknowledge(load, position, synchronised=True)
        assert judged(oracle, absent) == wrong


def test_an_answer_is_held_against_what_was_known_when_it_began() -> None:
    oracle = watched(FIRST)
    floor = oracle.floor("state")
    oracle.begin(SECOND)
    oracle.acknowledge(SECOND, 2, synchronised=True)
    assert oracle.judge(floor, sight_of_rows(STATE, BOTH, rows_of(BOTH[0])), "a test") == []
    assert judged(oracle, sight_of_rows(STATE, BOTH, rows_of(BOTH[0]))) == {"lost", "old"}


def test_a_load_of_which_all_errors_said_that_it_is_nowhere_is_a_surprise() -> None:
    oracle = watched(FIRST)
    oracle.begin(SECOND)
    oracle.fail(SECOND, denied=True)
    assert judged(oracle, sight_of_rows(STATE, BOTH, rows_of(*BOTH))) == set()
    assert oracle.surprises == {SECOND}


# -- the campaign -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seed", "write_to", "minutes"),
    [(CAMPAIGN_SEED, "all", "1"), pytest.param("7", "majority", "2", marks=pytest.mark.full)],
)
def test_nodes_stand_a_campaign(tmp_path: Path, seed: str, write_to: str, minutes: str) -> None:
    """Real faults on real processes, as `make chaos` runs them for longer."""
    ran = subprocess.run(
        [sys.executable, "-m", "tests.harness.chaos", "--minutes", minutes, "--seed", seed,
         "--folder", str(tmp_path), "--json"],
        capture_output=True, text=True, check=False, cwd=ROOT,
    )  # fmt: skip
    assert ran.stderr.startswith(f"seed {seed}\nwrite_to {write_to}\n"), ran.stderr
    report = json.loads(ran.stdout or "{}")
    assert report.get("wrong") == [], f"{report.get('wrong')}\n{ran.stderr}"
    assert ran.returncode == 0, ran.stderr
    assert report["counts"]["loads acknowledged"] > 0
    assert report["counts"]["reads checked"] > 0
    assert sum(kind["struck"] for kind in report["faults"].values()) > 0
    assert list(tmp_path.iterdir()) == []
