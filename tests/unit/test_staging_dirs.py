"""The folders in which executors gather parts for nodes: nobody else reads them, or swaps what is in them."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from millpond.spark.locations import SparkNodes
from millpond.spark.staging import NodesStagingDir

NAME = f"millpond-{os.getuid()}"


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def attempt() -> Path:
    return NodesStagingDir(SparkNodes("http://localhost:1"), "job").attempt(0, 0)


def is_private(folder: Path) -> bool:
    found = folder.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077


def test_attempts_share_a_folder_that_is_private(temporary: Path) -> None:
    before = os.umask(0)
    try:
        first, second = attempt(), attempt()
    finally:
        os.umask(before)
    assert first != second
    assert first.parent == second.parent == temporary / NAME
    assert all(is_private(folder) for folder in (first, second, temporary / NAME))


def test_a_folder_of_an_older_version_is_closed_to_others(temporary: Path) -> None:
    (temporary / NAME).mkdir(mode=0o755)
    assert attempt().parent == temporary / NAME
    assert is_private(temporary / NAME)


def _writable(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o777)


def _of_another(folder: Path) -> None:
    folder.mkdir(mode=0o700)
    os.chown(folder, os.getuid() + 1, -1)


def _link(folder: Path) -> None:
    target = folder.with_name("elsewhere")
    target.mkdir(mode=0o700)
    folder.symlink_to(target)


def _file(folder: Path) -> None:
    folder.write_text("mine")


@pytest.mark.parametrize("prepare", [_writable, _of_another, _link, _file])
def test_a_folder_that_others_may_have_a_hand_in_is_avoided(temporary: Path, prepare: Callable[[Path], None]) -> None:
    guessed = temporary / NAME
    try:
        prepare(guessed)
    except PermissionError:
        pytest.skip("only root gives folders away")
    before = sorted(temporary.rglob("*"))
    folder = attempt()
    assert guessed not in folder.parents
    assert folder.parent == temporary
    assert is_private(folder)
    assert sorted(temporary.rglob("*")) == sorted([*before, folder]), "and nothing was put there, or swept"


@pytest.mark.usefixtures("process")
def test_what_dead_processes_left_is_swept(temporary: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    left = temporary / NAME / f"{ended.pid}-left"
    left.mkdir(parents=True)
    (temporary / NAME).chmod(0o700)
    attempt()
    assert not left.exists()
