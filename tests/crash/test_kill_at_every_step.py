"""The story killed at every step: who opens the pond afterwards finds nothing lost, doubled or half-visible.

After the kill the pond is opened, which repairs it. It must then hold what it held before the act that was cut off, or
what that act leaves behind; of a load, in all maps alike. Then the story goes on from that act and must end as ever.
"""

from __future__ import annotations

import signal
from collections import defaultdict
from pathlib import Path
from shutil import rmtree
from typing import TYPE_CHECKING

import pytest

import millpond
from millpond.kernel.verify import Report
from millpond.maps.predicates.predicate import predicate
from millpond.testing.faults import occurrences
from tests.crash import layers_story, story
from tests.crash.telling import Teller, telling
from tests.harness.audit import audit_map, canonical_bits
from tests.harness.models import MapModel
from tests.harness.rows import canonical_of
from tests.rings.sampling import drawn

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from millpond import Pond
    from tests.crash.story import World

ROOT = Path(__file__).resolve().parents[2]
STORIES = {"shards": story, "layers": layers_story}
WORLDS = {name: story.worlds(stored.ACTS) for name, stored in STORIES.items()}
SHARES = 8
Bits = dict[str, list[object]]


@pytest.fixture(scope="module", params=STORIES)
def stored(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def teller(stored: str) -> Iterator[Teller]:
    with telling(STORIES[stored].__name__) as made:
        yield made


@pytest.fixture(scope="module")
def moments(stored: str, teller: Teller) -> list[str]:
    """Every moment of the story at which it may be killed."""
    folder, code, acts = teller.tell("whole")
    assert (code, acts) == (0, len(STORIES[stored].ACTS))
    check_end(stored, folder)
    return occurrences(Path(f"{folder}.log"))


# -- what a pond holds --------------------------------------------------------------------------------


def held(pond: Pond) -> Bits:
    return {pond_map.name: canonical_bits(rows_of(pond_map), pond_map.definition) for pond_map in pond.maps()}


def rows_of(pond_map: millpond.Map) -> Iterator[pa.RecordBatch]:
    return pond_map.rows.rows(predicate(pond_map.definition, None))


def bits_of_world(pond: Pond, world: World) -> Bits | None:
    """The rows of a model of all maps; None when it has other maps than the pond."""
    definitions = {pond_map.name: pond_map.definition for pond_map in pond.maps()}
    if definitions.keys() != world.keys():
        return None
    return {
        name: canonical_bits([canonical_of(definitions[name], model.scan())], definitions[name])
        for name, model in world.items()
    }


def check_after_kill(stored: str, pond: Pond, acts: int) -> None:
    act, before, after = STORIES[stored].ACTS[acts], WORLDS[stored][acts], WORLDS[stored][acts + 1]
    found = held(pond)
    if act.whole:
        assert found in (bits_of_world(pond, before), bits_of_world(pond, after)), act.name
    elif acts:
        again = {pond_map.name: model_of(pond_map) for pond_map in pond.maps()}
        act.expect(again)
        assert bits_of_world(pond, again) == bits_of_world(pond, after), act.name


def model_of(pond_map: millpond.Map) -> MapModel:
    """The rows of a map as a model."""
    model = MapModel(pond_map.kind)
    for batch in rows_of(pond_map):
        for row in batch.to_pylist():
            value = row.pop("value", None)
            model.put([(tuple(part.decode() if isinstance(part, bytes) else part for part in row.values()), value)])
    return model


def check_tidy(pond: Pond, *, verify: bool) -> None:
    """Nothing waits, nothing lies about, nothing was quarantined; and every file is what it says it is."""
    for name in ("parts", "writer", "quarantine"):
        assert list((pond.folder / name).iterdir()) == [], name
    report = pond.verify() if verify else Report()
    assert report.ok, [str(problem) for problem in report.problems]


def check_end(stored: str, folder: Path, *, verify: bool = True) -> None:
    """The pond at the end of the story, by every reader."""
    last = len(STORIES[stored].ACTS)
    with millpond.open(folder, clock=story.clock_of(9, last)) as pond:
        check_tidy(pond, verify=verify)
        assert {pond_map.name for pond_map in pond.maps()} == WORLDS[stored][-1].keys()
        for pond_map in pond.maps():
            model = WORLDS[stored][-1][pond_map.name]
            keys = sorted(
                {address[0] for address in model.rows} | ({"k0", "nobody"} if pond_map.kind.keyed else {-1, 99})
            )
            audit_map(pond_map, model, [(key, at) for key in keys for at in (-1, 14, 27, 39)])


# -- kills --------------------------------------------------------------------------------------------


def kill_and_go_on(stored: str, teller: Teller, moment: str, *, verify: bool = True) -> None:
    folder, code, acts = teller.tell(moment.replace(":", "-"), kill_at=moment)
    assert code == -signal.SIGKILL, moment
    with millpond.open(folder, clock=story.clock_of(1, acts)) as pond:
        check_after_kill(stored, pond, acts)
    STORIES[stored].tell(folder, telling=2, first=acts)
    check_end(stored, folder, verify=verify)
    rmtree(folder)
    Path(f"{folder}.done").unlink()


def of_every_name(moments: list[str]) -> list[str]:
    """One moment of each name: first ones of some, last ones of others, middle ones of the rest."""
    named = defaultdict(list)
    for moment in moments:
        named[moment.partition(":")[0]].append(moment)
    return [moments[(number % 3) * (len(moments) - 1) // 2] for number, moments in enumerate(named.values())]


@pytest.mark.sample(1)
def test_killed_at_one_moment_of_every_step(stored: str, teller: Teller, moments: list[str]) -> None:
    for number, moment in enumerate(drawn(of_every_name(moments), 2, name="steps")):
        kill_and_go_on(stored, teller, moment, verify=number % 4 == 0)


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "second", [pytest.param(1, marks=pytest.mark.full), 4, pytest.param(9, marks=pytest.mark.full)]
)
def test_killed_again_while_it_recovers(stored: str, teller: Teller, moments: list[str], second: int) -> None:
    firsts = [step for step in moments if step.startswith(("load.committed", "merge.part_put"))]
    # In the first half of the story, so that there are moments left for the second kill.
    for moment in drawn(firsts[: (len(firsts) + 1) // 2], 1, name="again"):
        name = f"{moment.replace(':', '-')}-{second}"
        assert teller.tell(name, kill_at=moment)[1] == -signal.SIGKILL
        folder, code, acts = teller.tell(name, kill_at=f"*:{second}", telling=1)
        assert code == -signal.SIGKILL
        with millpond.open(folder, clock=story.clock_of(2, acts)) as pond:
            pond.merge()  # what opening merges waits for nobody
            pond.parts.retry()  # a part whose merge ended the process twice was quarantined
            check_after_kill(stored, pond, acts)
        assert teller.tell(name, telling=3)[1:] == (0, len(STORIES[stored].ACTS))
        check_end(stored, folder, verify=False)


@pytest.mark.full
@pytest.mark.parametrize("share", range(SHARES))
def test_killed_at_every_moment(stored: str, teller: Teller, moments: list[str], share: int) -> None:
    for moment in moments[share::SHARES]:
        kill_and_go_on(stored, teller, moment)
