"""Loads whose commit raises: of parts that are entered none is lost, of those that are not none is taken."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from millpond.clock import ManualClock
from millpond.errors import Unavailable, Uncertain
from millpond.maps.log.log import Entry
from millpond.maps.parts.part import PartFile
from millpond.pond import Pond, open_pond
from millpond.testing.faulty_space import FaultySpace

ROWS = pa.table({"key": ["a", "b"], "value": [1, 2]})


@pytest.fixture
def pond(tmp_path: Path) -> Any:
    with open_pond(tmp_path / "pond", clock=ManualClock(10_000)) as made:
        made.create_map("m", kind="state", value="long")
        yield made


def faulty(pond: Pond) -> FaultySpace:
    """Put a space that can lose answers under the loads of a pond."""
    loads = pond.loads
    space = FaultySpace(loads.space)
    loads.space = space
    return space


def parts_of(pond: Pond) -> list[PartFile]:
    from millpond.maps.loads.load import seal_data
    from millpond.maps.loads.pond_folder import writer_folder

    parts, _ = seal_data(pond.map("m").definition, ROWS, writer_folder(pond.folder, pond.clock))
    return parts


def rows(pond: Pond) -> dict[str, Any]:
    return {key: pond.map("m").get(key) for key in ("a", "b")}


def loads_in_log(pond: Pond) -> list[str]:
    return [entry.body["load"] for entry in pond.log.entries(0) if entry.kind == "load"]


@pytest.mark.usefixtures("process")
def test_a_load_that_was_entered_is_entered_although_the_answer_was_lost(pond: Pond) -> None:
    space, parts = faulty(pond), parts_of(pond)
    with space.losing_results(committed=True):
        committed = pond.loads.commit(parts, "here", load_id="mine")
    assert (committed.load, committed.parts, committed.rows) == ("mine", 1, {"m": 2})
    assert not parts[0].file.exists()
    pond.merge()
    assert rows(pond) == {"a": 1, "b": 2}
    assert pond.verify(full=True).ok


def test_a_load_that_was_not_entered_gives_its_parts_back(pond: Pond) -> None:
    space, parts = faulty(pond), parts_of(pond)
    with space.losing_results(committed=False), pytest.raises(Unavailable) as caught:
        pond.loads.commit(parts, "here", load_id="mine")
    assert caught.value.kind == "load_not_entered"
    assert not isinstance(caught.value, Uncertain), "the space said so"
    assert parts[0].file.exists()
    assert list((pond.folder / "parts").iterdir()) == []
    assert loads_in_log(pond) == []
    assert pond.commit_load(parts, load_id="mine").parts == 1
    assert rows(pond) == {"a": 1, "b": 2}


def test_a_commit_that_fails_for_certain_gives_its_parts_back(pond: Pond, monkeypatch: pytest.MonkeyPatch) -> None:
    parts, loads = parts_of(pond), pond.loads

    def full(_tx: object, *_about: object) -> None:
        raise Unavailable("no space is left on the disk", kind="disk_full")

    with monkeypatch.context() as patched:
        patched.setattr(loads, "_enter", full)
        with pytest.raises(Unavailable, match="no space is left"):
            loads.commit(parts, "here")
    assert parts[0].file.exists()
    assert pond.commit_load(parts).parts == 1


@pytest.mark.usefixtures("process")
@pytest.mark.parametrize("committed", [True, False])
@pytest.mark.parametrize("then", ["again", "reopened"])
def test_while_nobody_knows_the_parts_stay_where_both_can_be_mended(pond: Pond, committed: bool, then: str) -> None:
    space, parts = faulty(pond), parts_of(pond)
    with space.losing_results(committed=committed, silent=True), pytest.raises(Uncertain) as caught:
        pond.loads.commit(parts, "here", load_id="mine")
    assert (caught.value.kind, caught.value.values["load"]) == ("load_uncertain", "mine")
    assert (pond.folder / "parts" / parts[0].manifest.id).exists()
    if then == "again":
        assert pond.commit_load(parts, load_id="mine").parts == 1
        assert loads_in_log(pond) == ["mine"], "once"
        assert rows(pond) == {"a": 1, "b": 2}
    else:
        pond.close()
        pond = open_pond(pond.folder, clock=ManualClock(20_000))
        assert loads_in_log(pond) == ["mine"] * committed
        assert rows(pond) == ({"a": 1, "b": 2} if committed else {"a": None, "b": None})
    assert list((pond.folder / "parts").iterdir()) == []
    assert pond.verify(full=True).ok
    pond.close()


@pytest.mark.parametrize("committed", [True, False])
@pytest.mark.parametrize("silent", [True, False])
def test_a_follower_bears_it_too(pond: Pond, tmp_path: Path, committed: bool, silent: bool) -> None:
    parts = parts_of(pond)
    sent = tmp_path / "sent"
    shutil.copyfile(parts[0].file, sent)
    pond.commit_load(parts, load_id="theirs")
    *earlier, entry = [Entry.from_dict(json.loads(json.dumps(entry.to_dict()))) for entry in pond.log.entries(0)]
    with open_pond(tmp_path / "replica", clock=ManualClock(30_000)) as replica:
        for previous in earlier:
            replica.log.enter(previous, {})
        space = faulty(replica)
        brought = {parts[0].manifest.id: sent}
        try:
            with space.losing_results(committed=committed, silent=silent):
                replica.loads.follow(entry, brought)
            assert committed, "it was not entered, and said it was"
            assert not silent
        except Uncertain:
            assert silent
        except Unavailable:
            assert not committed
        replica.log.enter(entry, brought)
        replica.merge()
        assert loads_in_log(replica) == ["theirs"]
        assert rows(replica) == {"a": 1, "b": 2}
        assert replica.log.position() == pond.log.position()
