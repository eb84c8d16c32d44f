"""A method that is declared once, and done once, is everywhere: shown in a copy of the source with two methods more."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.docs.snippets import ROOT

DECLARED = '''
    @operation(
        "POST", "/v1/maps/{name}/tally", right="read", sent={"times": "factor"}, command="tally",
        examples=("millpond tally weather 3", "millpond tally weather 3 --label dozen --json"),
        words={"times": "The factor of the count.", "label": "The name of the result."},
    )
    def tally(self, times: int, *, label: str | None = None) -> dict[str, Any]:
        """Multiply the count of a map's rows.

        Raises: `Invalid` for a negative factor.
        """
        declared()


class MapLike('''
DONE = '''
    def tally(self, times: int, *, label: str | None = None) -> dict[str, Any]:
        """The count of the rows, multiplied."""
        if times < 0:
            raise Invalid("a factor is not negative", kind="tally_factor", times=times)
        return {"label": label, "tally": times * self.info()["rows"]}

    def freeze(self'''
EVENTS_DECLARED = '''
    @operation(
        "GET", "/v1/events/days", right="read", answer="days", command="events days",
        examples=("millpond events days etl nightly", "millpond events days etl nightly --json"),
        words={"queue": "The queue.", "job_set": "The job set."},
    )
    def days(self, queue: str, job_set: str) -> int:
        """Count the days of a stream."""
        declared()

    @operation('''
EVENTS_DONE = '''
    def days(self, queue: str, job_set: str) -> int:
        """The number of a stream's days."""
        index = self.index(queue, job_set)
        return 0 if index is None else len(index.days())

    def delete(self'''
REPOSITORY_DECLARED = '''
    @operation(
        "POST", f"{_REPOSITORY}/census", right="read", answer="branches", command="repo census",
        examples=("millpond repo census flights", "millpond repo census flights --prefix fix- --json"),
        words={"prefix": "Only branches whose names begin so."},
    )
    def census(self, *, prefix: str = "") -> int:
        """Count the branches of a repository."""
        declared()


class RepositoryLike('''
REPOSITORY_DONE = '''
    def census(self, *, prefix: str = "") -> int:
        """The number of a repository's branches."""
        return len(self.branches(prefix).results)

    def delete_branch(self'''
TRIED = """
import inspect, json, sys
import millpond
import pyarrow as pa
from millpond.client.map import RemoteMap
from millpond.client.versions.repository import RemoteRepository
from millpond.maps.map import Map
from millpond.versions.repository import Repository
from tools import api_reference, cli_reference, routes_page

folder, url = sys.argv[1:]
signatures = [inspect.signature(owner.tally) for owner in (Map, RemoteMap)]
of_repositories = [inspect.signature(owner.census) for owner in (Repository, RemoteRepository)]
with millpond.open(url) as pond:
    remote = pond.map("weather").tally(3, label="far")
    fix = pond.branch("fix", source="main").map("weather")
    fix.load(pa.table({"key": ["SFO"], "value": [3]}))
    branched = fix.tally(3)
    census = pond.repository("flights").census()
    try:
        pond.map("weather").tally(-1)
    except millpond.Invalid as error:
        refused = error.kind
pages = {name: module.page() for name, module in (("cli", cli_reference), ("routes", routes_page))}
pages |= api_reference.pages()
alike = signatures[0] == signatures[1] and of_repositories[0] == of_repositories[1]
results = {"remote": remote, "branched": branched, "census": census, "refused": refused}
print(json.dumps(results | {"alike": alike, "pages": pages}))
"""


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the source: maps, streams and repositories have one method more: its declaration, and what does it."""
    folder = tmp_path_factory.mktemp("declared")
    for name in ("src/millpond", "tools"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    _insert(folder / "src/millpond/maps/protocols.py", "\n\nclass MapLike(", DECLARED)
    imported = "from typing import TYPE_CHECKING, Any, Protocol, Self\n"
    used = f"{imported}\nfrom millpond.kernel.operations import declared, operation\n"
    _insert(folder / "src/millpond/maps/protocols.py", imported, used)
    _insert(folder / "src/millpond/maps/map.py", "\n    def freeze(self", DONE)
    _insert(folder / "src/millpond/versions/protocols.py", "\n\nclass RepositoryLike(", REPOSITORY_DECLARED)
    _insert(folder / "src/millpond/versions/repository.py", "\n    def delete_branch(self", REPOSITORY_DONE)
    _insert(folder / "src/millpond/events/operations.py", "\n    @operation(", EVENTS_DECLARED)
    _insert(folder / "src/millpond/events/events.py", "\n    def delete(self", EVENTS_DONE)
    return folder


def _insert(file: Path, before: str, text: str) -> None:
    source = file.read_text(encoding="utf-8")
    assert source.count(before) >= 1
    file.write_text(source.replace(before, text, 1), encoding="utf-8")


def _run(copy: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words], cwd=copy, env=_environment(copy), capture_output=True, text=True, timeout=240,
        check=False,
    )  # fmt: skip


def _environment(copy: Path) -> dict[str, str]:
    ours = {name: value for name, value in os.environ.items() if not name.startswith("MILLPOND_")}
    return ours | {"PYTHONPATH": f"{copy / 'src'}{os.pathsep}{copy}"}


@pytest.fixture(scope="module")
def node(copy: Path) -> Iterator[str]:
    """The URL of a node of the copy, whose map has two rows."""
    (copy / "weather.csv").write_text("key,value\nJFK,1\nLGA,2\n")
    for words in (
        ["create", "weather", "--kind", "state", "--value", "long", "--store", "layers"],
        ["load", "weather", "weather.csv"],
        ["repo", "create", "flights"],
    ):
        done = _run(copy, "-m", "millpond", *words)
        assert done.returncode == 0, done.stderr
    words = [sys.executable, "-m", "millpond", "serve", "--data", "pond", "--port", "0", "--json"]
    with subprocess.Popen(words, cwd=copy, env=_environment(copy), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())["url"]
        finally:
            process.terminate()


def _said(done: subprocess.CompletedProcess[str]) -> Any:
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_method_that_is_declared_is_everywhere(copy: Path, node: str) -> None:
    request = ["--json", "--pond", node]
    near = _said(_run(copy, "-m", "millpond", "tally", "weather", "2", "--label", "near", *request))
    assert near == {"map": "weather", "label": "near", "tally": 4}
    days = ["events", "days", "etl", "nightly"]
    assert _said(_run(copy, "-m", "millpond", *days, *request)) == {"days": 0}
    census = ["repo", "census", "flights", "--prefix", "main"]
    assert _said(_run(copy, "-m", "millpond", *census, *request)) == {"repository": "flights", "branches": 1}
    refused = _run(copy, "-m", "millpond", "tally", "weather", "--json", "--pond", node, "--", "-1")
    assert json.loads(refused.stderr)["error"]["kind"] == "tally_factor"
    found = _said(_run(copy, "-c", TRIED, str(copy / "pond"), node))
    assert found["alike"]
    assert found["census"] == 1
    assert found["remote"] == {"label": "far", "tally": 6}
    assert found["branched"] == {"label": None, "tally": 9}
    at_ref = ["--branch", "fix", *request]
    assert _said(_run(copy, "-m", "millpond", "tally", "weather", "2", *at_ref))["tally"] == 6
    assert found["refused"] == "tally_factor"
    pages = found["pages"]
    assert "## millpond tally" in pages["cli"]
    assert "## millpond events days" in pages["cli"]
    assert "GET /v1/events/days` | read on the stream" in pages["routes"]
    assert re.search(r"POST /v1/maps/\{name\}/tally` \| read on the map", pages["routes"])
    assert "## millpond repo census" in pages["cli"]
    assert "POST /api/v1/repositories/{repository}/census` | read on the repository" in pages["routes"]
    assert "### `Repository.census`" in pages["versions.md"]
    assert "### `Map.tally`" in pages["python.md"]
    assert "### `RemoteMap.tally`" in pages["python.md"]


def _described(copy: Path, url: str) -> Any:
    script = "import sys, urllib.request as u; print(u.urlopen(sys.argv[1]).read().decode())"
    return _said(_run(copy, "-c", script, url))


def test_its_route_is_described(copy: Path, node: str) -> None:
    described = _described(copy, f"{node}/openapi.json")
    route = described["paths"]["/v1/maps/{name}/tally"]["post"]
    assert route["summary"] == "Multiply the count of a map's rows"
    assert set(described["components"]["schemas"]["TallyRequest"]["properties"]) == {"factor", "label"}
    of_versions = _described(copy, f"{node}/openapi-versions.json")
    route = of_versions["paths"]["/api/v1/repositories/{repository}/census"]["post"]
    assert route["summary"] == "Count the branches of a repository"
    assert set(of_versions["components"]["schemas"]["CensusRequest"]["properties"]) == {"prefix"}
