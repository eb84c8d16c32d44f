"""Compiled kernels are stored where only this user writes, and a place that cannot be written to fails nobody.

The package is copied and made read-only; the process that uses it is, where the tests run as root, another user, who
may read everything and write nothing that is not open to all.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import millpond
from millpond.arrays import compiled
from millpond.arrays.compile_cache import CacheLocation
from millpond.arrays.compiled import kernel
from tools import kernels

NOBODY = 65_534
AS_NOBODY = [
    "setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--bounding-set=-all,+dac_read_search",
    "--inh-caps=-all,+dac_read_search", "--ambient-caps=-all,+dac_read_search",
]  # fmt: skip
READER = AS_NOBODY if os.geteuid() == 0 else []
READER_ID = NOBODY if READER else os.geteuid()


def _doubled(number):  # type: ignore[no-untyped-def]
    return 2 * number


USE = """
import json, logging
import numpy as np
logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")
from millpond.arrays.compile_cache import cache_location
from millpond.arrays.compiled import watch
from millpond.maps.search.kernels import only_row
called = []
with watch(lambda: called.append(1)):
    only_row(0, np.zeros(0, np.int64))
place, stats = cache_location(), only_row.compiled().stats
print(json.dumps({
    "folder": place and str(place.folder), "beside": bool(place and place.beside), "called": len(called),
    "hits": sum(stats.cache_hits.values()), "misses": sum(stats.cache_misses.values()),
}))
"""


class World:
    """A read-only package, a home that cannot be written to, a folder for temporary files."""

    def __init__(self, folder: Path) -> None:
        self.site, self.home, self.temporary = folder / "site", folder / "home", folder / "tmp"
        self.package = self.site / "millpond"
        unwanted = shutil.ignore_patterns("__pycache__")
        shutil.copytree(Path(millpond.__file__).parent, self.package, ignore=unwanted)
        self.home.mkdir()
        self.temporary.mkdir()
        self.temporary.chmod(0o1777)
        self.close()

    @property
    def own(self) -> Path:
        return self.temporary / f"millpond-{READER_ID}"

    def close(self, mode: int = 0o555) -> None:
        for folder in (self.home, *(path for path in [self.site, *self.site.rglob("*")] if path.is_dir())):
            folder.chmod(mode)

    def use(self, *, reader: bool = True, **variables: str) -> tuple[dict[str, Any], str]:
        """Call a kernel in a process of the reader, or of the package's owner; its answer and its log."""
        environment = {
            "PYTHONPATH": str(self.site), "PYTHONSAFEPATH": "1", "HOME": str(self.home),
            "TMPDIR": str(self.temporary), "PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1",
        }  # fmt: skip
        command = [*(READER if reader else []), sys.executable, "-c", USE]
        done = subprocess.run(
            command, env=environment | variables, capture_output=True, text=True, cwd=self.site, check=False
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout), done.stderr


pytestmark = pytest.mark.sample(1, of="file")


@pytest.fixture
def world(tmp_path: Path) -> World:
    if READER and shutil.which("setpriv") is None:
        pytest.skip("root writes everywhere, and there is no setpriv to be somebody else")
    return World(tmp_path)


@pytest.mark.usefixtures("process")
def test_read_only_and_without_a_home_it_compiles_once_into_a_private_folder(world: World) -> None:
    report, log = world.use()
    assert report == {"folder": str(world.own), "beside": False, "called": 1, "hits": 0, "misses": 1}
    assert f"millpond.arrays.compiled: compiling kernels, once; stored in {world.own}" in log
    assert world.own.stat().st_mode & 0o777 == 0o700
    assert world.own.stat().st_uid == READER_ID
    report, log = world.use()
    assert (report["hits"], report["misses"], report["called"]) == (1, 0, 0)
    assert "compiling" not in log


@pytest.mark.usefixtures("process")
@pytest.mark.parametrize("trap", ["open to all", "a link", "of another user"])
def test_a_folder_that_others_could_have_filled_is_not_used(world: World, trap: str) -> None:
    elsewhere = world.temporary / "elsewhere"
    elsewhere.mkdir()
    elsewhere.chmod(0o777)
    if trap == "open to all":
        world.own.mkdir()
        if READER:
            os.chown(world.own, READER_ID, -1)
        world.own.chmod(0o777)
    elif trap == "a link":
        world.own.symlink_to(elsewhere)
    elif READER:
        world.own.mkdir(mode=0o700)
    else:
        pytest.skip("only root can make folders of other users")
    report, log = world.use()
    assert (report["folder"], report["misses"]) == (None, 1), "compiled for this process, without a cache"
    assert report["called"] == 1
    assert "no folder can be written to" in log
    assert list(elsewhere.iterdir()) == []


@pytest.mark.usefixtures("process")
def test_the_users_cache_comes_before_temporary_files(world: World) -> None:
    world.home.chmod(0o777)
    report, _ = world.use()
    assert report["folder"] == str(world.home / ".cache" / "millpond")
    caches = world.temporary / "caches"
    report, _ = world.use(XDG_CACHE_HOME=str(caches))
    assert report["folder"] == str(caches / "millpond")


@pytest.mark.usefixtures("process")
def test_a_folder_that_is_named_comes_first(world: World) -> None:
    named = world.temporary / "named"
    report, _ = world.use(NUMBA_CACHE_DIR=str(named))
    assert report["folder"] == str(named)
    assert list(named.rglob("*.nbi"))
    report, _ = world.use(NUMBA_CACHE_DIR=str(world.package))
    assert report["folder"] == str(world.own), "it cannot be written to"


@pytest.mark.usefixtures("process")
def test_what_the_package_brings_is_not_compiled_again(world: World) -> None:
    world.close(0o755)
    report, _ = world.use(reader=False)
    assert report == {"folder": str(world.package), "beside": True, "called": 1, "hits": 0, "misses": 1}
    world.close()
    if not READER:
        assert not os.access(world.package, os.W_OK)
    report, _ = world.use()
    assert report == {"folder": str(world.own), "beside": False, "called": 0, "hits": 1, "misses": 0}


def test_processes_store_one_after_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Numba reads an index, adds to it and writes it: of two processes at once, one found the other's machine code."""
    monkeypatch.setattr(compiled, "cache_location", lambda: CacheLocation(tmp_path))
    dispatcher = kernel(_doubled).compiled()
    file, held = dispatcher._cache._cache_file, list[bool]()

    def looking(act: Callable[..., Any]) -> Callable[..., Any]:
        def look(*arguments: Any) -> Any:
            handle = os.open(dispatcher.stats.cache_path, os.O_RDONLY)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                held.append(True)
            else:
                held.append(False)
            finally:
                os.close(handle)
            return act(*arguments)

        return look

    for name in ("_load_index", "_save_index", "_save_data"):
        monkeypatch.setattr(file, name, looking(getattr(file, name)))
    assert dispatcher(2) == 4
    assert len(held) >= 3 and all(held[1:]), "but for the first look, when there is no folder"
    handle = os.open(dispatcher.stats.cache_path, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)  # nobody keeps it
    os.close(handle)
    again = kernel(_doubled).compiled()
    assert (again(3), sum(again.stats.cache_hits.values())) == (6, 1)


@pytest.mark.full
def test_the_list_of_kernels_is_up_to_date() -> None:
    assert kernels.LIST.read_text(encoding="utf-8") == kernels.kernels(), "run `make docs`"


@pytest.mark.full
def test_nothing_is_compiled_after_warming(world: World) -> None:
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(world.temporary / "warm"), "PYTHONPATH": str(world.site)}
    command = [sys.executable, "-m", "millpond", "warm", "--json"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, cwd=world.site)
    report = json.loads(done.stdout)
    assert report["cache"] == environment["NUMBA_CACHE_DIR"]
    assert report["kernels"] >= report["compiled"] > 0.8 * report["kernels"]
    assert done.stderr == ""
    run = [sys.executable, kernels.__file__, "--run"]
    done = subprocess.run(run, env=environment, capture_output=True, text=True, check=True, cwd=world.site)
    assert "compiling" not in done.stderr
