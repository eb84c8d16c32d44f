"""The cost of a start: the modules that a process imports to answer, counted in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import millpond

pytestmark = pytest.mark.usefixtures("process")
HEAVY = frozenset(
    ("asyncio", "duckdb", "starlette", "filelock", "grpc", "numba", "numpy", "obstore", "pandas", "plotext", "pyarrow",
     "pydantic", "pyspark", "rich", "sortedcontainers", "urllib3")
)  # fmt: skip
MODULES_OF_GET_MAX = 108
COMMAND = """
import sys
from millpond.cli.main import main
sys.argv = ["millpond", *sys.argv[1:]]
try:
    main()
except SystemExit as ended:
    assert not ended.code, ended.code
"""


def imported(code: str, *words: str, folder: Path) -> set[str]:
    """The modules of a process that ran this code."""
    command = [sys.executable, "-c", f"{code}\nimport json, sys; print(json.dumps(list(sys.modules)))", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]))


def ours(modules: set[str]) -> set[str]:
    return {name for name in modules if name.partition(".")[0] == "millpond"}


@pytest.fixture
def pond(tmp_path: Path) -> Path:
    """A folder with a pond that holds a map of every kind of question."""
    rows = [{"key": "a", "effective_time": "2020-01-01T00:00Z", "value": 1.5}]
    sessions = [{"key": "a", "start": "2020-01-01T00:00Z", "end": "2030-01-01T00:00Z"}]
    with millpond.open(tmp_path / "pond") as opened:
        for scheme in ("auto", "hash", "lookup"):
            opened.create_map(scheme, kind="temporal_state", value="double", scheme=scheme).load(rows)
        opened.create_map("ranged", kind="ranged_state", value="string").load(
            [{"key_start": 1, "key_end": 9, "value": "x"}]
        )
        opened.create_map("session", kind="session").load(sessions)
    return tmp_path


def test_the_package_imports_nothing_of_others(tmp_path: Path) -> None:
    modules = imported("import millpond", folder=tmp_path)
    assert ours(modules) == {"millpond", "millpond.clock", "millpond.errors"}
    assert {name.partition(".")[0] for name in modules} <= sys.stdlib_module_names | {"millpond", "__main__"} | {
        name.partition(".")[0] for name in imported("", folder=tmp_path)
    }


def test_settings_need_nothing_heavy(tmp_path: Path) -> None:
    assert not HEAVY & imported("from millpond.settings import load_settings; load_settings()", folder=tmp_path)


@pytest.mark.parametrize(
    "words",
    [("auto", "a"), ("hash", "a"), ("lookup", "a", "--at", "2021-01-01T00:00Z"), ("ranged", "5"), ("session", "a")],
)
def test_one_key_needs_few_modules(pond: Path, words: tuple[str, ...]) -> None:
    modules = imported(COMMAND, "get", *words, "--json", folder=pond)
    assert not HEAVY & modules
    assert len(ours(modules)) <= MODULES_OF_GET_MAX
    parts = ("millpond.events.", "millpond.versions.", "millpond.workflows.", "millpond.nodes")
    assert {name for name in modules if name.startswith(parts) and not name.endswith(".keyspaces")} == set()
    assert "millpond.maps.loads.loads" not in modules
    assert {name for name in ours(modules) if name.startswith("millpond.cli.")} == {
        "millpond.cli.lookups", "millpond.cli.main", "millpond.cli.options", "millpond.cli.plain_options",
        "millpond.cli.rows", "millpond.cli.terminal", "millpond.cli.terminal.console", "millpond.cli.terminal.exits",
        "millpond.cli.terminal.hints", "millpond.cli.verbs",
    }  # fmt: skip


def test_the_version_needs_no_pond(tmp_path: Path) -> None:
    modules = imported(COMMAND, "--version", folder=tmp_path)
    assert not HEAVY & modules
    assert "millpond.pond" not in modules
    done = subprocess.run(
        [sys.executable, "-m", "millpond", "--version"], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert done.stdout == f"millpond {millpond.__version__}\n"


def test_a_load_opens_no_repositories(pond: Path) -> None:
    (pond / "rows.csv").write_text("key,effective_time,value\nb,2020-01-01T00:00Z,2.5\n", encoding="utf-8")
    modules = imported(COMMAND, "load", "auto", "rows.csv", "--json", folder=pond)
    assert not {"duckdb", "starlette", "grpc", "pandas", "rich"} & modules
    assert "millpond.settings" not in modules
    assert {name for name in modules if name.startswith("millpond.versions.")} == {"millpond.versions.keyspaces"}


def test_a_node_does_without_duckdb(tmp_path: Path) -> None:
    """Queries of its console run in processes of their own."""
    modules = imported("import millpond.server.app, millpond.tables, millpond.server.console.queries", folder=tmp_path)
    assert "millpond.server.console.sql" in modules and "duckdb" not in modules


DOORS = {
    "millpond.spark": ("pyspark", "spark"),
    "millpond.server.run": ("starlette", "node"),
    "millpond.xslt": ("lxml", "xslt"),
    "millpond.events.redis.store": ("redis", "redis"),
    "millpond.stores.postgres.space": ("psycopg", "postgres"),
    "millpond.stores.rocksdb.space": ("rocksdict", "rocksdb"),
    "millpond.workflows.logs.kafka": ("confluent_kafka", "kafka"),
    "millpond.pipelines": ("littlehorse", "workflows"),
    "millpond.testing.workflows": ("littlehorse", "workflows"),
    "millpond.testing.pipelines": ("littlehorse", "workflows"),
}
HIDDEN = """
import importlib, sys

class Hiding:
    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, path=None, target=None):
        return None if name == sys.argv[1] else self.finder.find_spec(name, path, target)

sys.meta_path[:] = map(Hiding, sys.meta_path)
import millpond
try:
    importlib.import_module(sys.argv[2])
except millpond.Invalid as error:
    assert isinstance(error, ImportError), type(error)
    print(error.kind, error.hint)
"""


@pytest.mark.sample(3)
@pytest.mark.parametrize("door", DOORS)
def test_a_door_names_the_extra_that_is_missing(door: str) -> None:
    module, extra = DOORS[door]
    command = [sys.executable, "-c", HIDDEN, module, door]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == f"extra_missing pip install 'millpond[{extra}]'", done.stderr


SCAN = """
import os
import millpond
with millpond.open("pond") as pond:
    assert pond.map("auto").scan("value > 1").read_all().num_rows == 1
threads = [open(f"/proc/self/task/{thread}/comm").read() for thread in os.listdir("/proc/self/task")]
print(sum(name.startswith("python") for name in threads))
"""


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="asks Linux for the threads of a process")
def test_a_scan_leaves_no_thread_of_arrow_that_may_hold_rows_when_python_ends(pond: Path) -> None:
    alone = os.environ | {"OMP_NUM_THREADS": "1"}  # NumPy's own threads are of the same name
    done = subprocess.run([sys.executable, "-c", SCAN], capture_output=True, text=True, check=True, cwd=pond, env=alone)
    assert done.stdout.split() == ["1"]
