"""The story of a primary and its replica, killed at every step: both end as if nothing had happened."""

from __future__ import annotations

import signal
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from shutil import rmtree
from typing import TYPE_CHECKING

import pytest

from millpond.maps.log.log import ENTRIES
from millpond.pond import open_pond
from millpond.testing.faults import occurrences
from tests.crash import log_story as story
from tests.crash.telling import Teller, telling
from tests.rings.sampling import drawn

if TYPE_CHECKING:
    from collections.abc import Iterator

    from millpond import Pond

ROOT = Path(__file__).resolve().parents[2]
SHARES = 8
MINE = ("log.", "load.", "maintenance.", "merge.", "kept.", "retry.", "drop.", "shard.", "part.")


@pytest.fixture(scope="module")
def teller() -> Iterator[Teller]:
    with telling("tests.crash.log_story") as made:
        yield made


@pytest.fixture(scope="module")
def whole(teller: Teller) -> tuple[list[str], dict[str, object]]:
    """Every moment of the story, and how it ends."""
    folder, code, acts = teller.tell("whole")
    assert (code, acts) == (0, len(story.ACTS))
    return occurrences(Path(f"{folder}.log")), ended(folder)


def ended(folder: Path) -> dict[str, object]:
    """The content of both ponds at the end, which is the same; nothing lies about, nothing was quarantined."""
    last = len(story.ACTS)
    with (
        story.open_primary(folder, 9, last) as primary,
        open_pond(folder / "replica", clock=story.clock_of(9, last)) as replica,
    ):
        found = story.held(primary)
        assert story.held(replica) == found
        assert replica.log.position() == primary.log.position()
        for pond in (primary, replica):
            check_log(pond)
            assert pond.parts.list(state="quarantined") == []
            assert all(pond.log.applied(pond_map.name) == pond.log.position()[0] for pond_map in pond.maps())
            for name in ("writer", "quarantine"):
                assert list((pond.folder / name).iterdir()) == [], name
            assert {folder.name for folder in (pond.folder / "parts").iterdir()} == {
                part.part for part in pond.parts.list()
            }
        return found


def check_log(pond: Pond) -> None:
    """Dense, chained, every load once, and a whole part for every load it reaches back to."""
    with pond.space.read() as tx:
        first = ENTRIES.first(tx)
    entries = pond.log.entries(first - 1)
    assert [entry.position for entry in entries] == list(range(first, pond.log.position()[0] + 1))
    for before, entry in pairwise(entries):
        assert entry.chain == ENTRIES.chain_after(before.chain, entry.record)
        assert entry.stamp_ms >= before.stamp_ms
    assert not entries or entries[-1].chain == pond.log.position()[1]
    loads = [entry.body["load"] for entry in entries if entry.kind == "load"]
    assert len(loads) == len(set(loads))


def of_every_name(moments: list[str]) -> list[str]:
    """One moment of each name: first ones of some, last ones of others, middle ones of the rest."""
    named = defaultdict(list)
    for moment in moments:
        named[moment.partition(":")[0]].append(moment)
    return [moments[(number % 3) * (len(moments) - 1) // 2] for number, moments in enumerate(named.values())]


def kill_and_go_on(teller: Teller, moment: str, wanted: dict[str, object]) -> None:
    folder, code, acts = teller.tell(moment.replace(":", "-"), kill_at=moment)
    # The threads of a merger do not take their steps in the same order each time.
    assert code in (-signal.SIGKILL, 0), moment
    with story.open_primary(folder, 1, acts) as pond:
        check_log(pond)
    story.tell(folder, telling=2, first=acts)
    assert ended(folder) == wanted, moment
    rmtree(folder)
    Path(f"{folder}.done").unlink()  # the moment may be chosen once more, and begins at the first act then


def test_the_story_takes_every_step(whole: tuple[list[str], dict[str, object]]) -> None:
    names = {moment.partition(":")[0] for moment in whole[0]}
    assert {name for name in names if name.startswith(MINE)} >= {
        "log.entered",
        "load.received",
        "load.committed",
        "maintenance.ordered",
        "maintenance.dequeued",
        "merge.part_taken",
        "merge.part_put",
        "merge.dequeued",
        "merge.quarantine_moved",
        "retry.part_replaced",
        "retry.entered",
        "drop.forgotten",
        "kept.expired",
    }


def test_killed_at_one_moment_of_every_step(teller: Teller, whole: tuple[list[str], dict[str, object]]) -> None:
    for moment in drawn(of_every_name(whole[0]), 3, name="log"):
        kill_and_go_on(teller, moment, whole[1])


@pytest.mark.full
@pytest.mark.parametrize("share", range(SHARES))
def test_killed_at_every_moment(teller: Teller, whole: tuple[list[str], dict[str, object]], share: int) -> None:
    for moment in whole[0][share::SHARES]:
        kill_and_go_on(teller, moment, whole[1])
