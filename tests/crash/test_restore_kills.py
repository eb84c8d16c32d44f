"""Restores of a dump whose process is killed at each step: nothing of a repository is there, or all of it."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import pytest

import millpond
from millpond.errors import Conflict, MillpondError, NotFound
from millpond.testing.faults import occurrences
from tests.crash.versions_killed import forked, killed_at, logged


def restored(folder: Path, dump: bytes) -> None:
    """Restore the repository of a pond."""
    with millpond.open(folder) as pond:
        pond.repositories.restore("flights", [dump])


def test_a_restore_that_is_killed_is_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millpond.versions.restores._BATCH", 2)
    with millpond.open(tmp_path / "pond") as pond:
        main = pond.repositories.create("flights").branch("main")
        for number in range(4):
            main.put("a", bytes([number]))
            main.commit(f"of {number}")
        dump = b"".join(pond.repository("flights").dump())
        pond.repositories.delete("flights")
    steps = tmp_path / "steps"
    shutil.copytree(tmp_path / "pond", tmp_path / "whole")
    assert forked(lambda: logged(steps, lambda: restored(tmp_path / "whole", dump))) == 0
    moments = [moment for moment in occurrences(steps) if moment.startswith("restores.")]
    assert len(moments) > 5
    for moment in moments:
        folder = tmp_path / moment.replace(":", "-")
        shutil.copytree(tmp_path / "pond", folder)
        killed = forked(lambda folder=folder, moment=moment: killed_at(moment, lambda: restored(folder, dump)))  # type: ignore[misc]
        assert killed == -signal.SIGKILL
        check(folder, dump, whole=moment.startswith("restores.switched"))


def check(folder: Path, dump: bytes, *, whole: bool) -> None:
    """Look at what was left, and restore again unless all is there."""
    with millpond.open(folder) as pond:
        if whole:
            with pytest.raises(Conflict):
                pond.repositories.restore("flights", [dump])
        else:
            with pytest.raises(NotFound):
                pond.repository("flights").branch("main").head()
            with pytest.raises(MillpondError):
                pond.repositories.restore("flights", [dump[:-9]])
            pond.repositories.restore("flights", [dump])
        assert b"".join(pond.repository("flights").dump()) == dump
        assert pond.repository("flights").branch("main").get("a") == b"\x03"
