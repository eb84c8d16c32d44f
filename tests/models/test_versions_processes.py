"""Processes that work on the same branches at once: over one folder, and as servers over one database.

Nothing that was acknowledged is lost, and no commit, merge or compaction fails by a race.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

import pytest

import millpond
from millpond.errors import Invalid
from millpond.versions.collect import collect
from millpond.versions.repository import Repository
from tests.postgres_server import new_location
from tests.s3_server import S3Server

pytestmark = [pytest.mark.usefixtures("process", "postgres_server"), pytest.mark.sample(2, of="file")]

ACTOR = Path(__file__).parent / "versions_actor.py"
needs_psycopg = pytest.mark.skipif(find_spec("psycopg") is None, reason="the extra postgres is not installed")


@dataclass
class Shared:
    """The place that the processes share."""

    folders: list[Path]
    space: str = ""
    objects: str = ""
    environment: dict[str, str] = field(default_factory=dict)

    def open(self, number: int = 0) -> millpond.Pond:
        """The pond of one process, opened in this one."""
        pond = millpond.open(self.folders[number], versions_space=self.space, versions_objects=self.objects)
        assert isinstance(pond, millpond.Pond)
        return pond


@pytest.fixture(
    params=["folder", pytest.param("database", marks=needs_psycopg), pytest.param("bucket", marks=needs_psycopg)]
)
def shared(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shared]:
    """One folder for both; a folder each and one database, with bytes in a shared folder or on S3."""
    if request.param == "folder":
        yield Shared([tmp_path / "pond"] * 2)
        return
    folders, objects, environment = [tmp_path / "first", tmp_path / "second"], str(tmp_path / "bytes"), {}
    if request.param == "bucket":
        server: S3Server = request.getfixturevalue("s3_server")
        objects, environment = f"{server.make_bucket(tmp_path.name)}/repositories", server.environment
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    yield Shared(folders, new_location(), objects, environment)


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.full), pytest.param(3, marks=pytest.mark.full)])
def test_processes_that_work_on_the_same_branches_lose_nothing(
    shared: Shared, seed: int, request: pytest.FixtureRequest
) -> None:
    with shared.open() as pond:
        repository = pond.repositories.create("shared")
        for name in ("side", "trunk"):
            repository.create_branch(name, "main")
    turns = 250 if request.node.get_closest_marker("slow") else 20
    said = run_actors(shared, seed, turns)
    with shared.open(1) as pond:
        repository = pond.repository("shared")
        # What an actor overwrites is garbage only if no other committed it before: in few turns, each may have been.
        repository.branch("main").put("gone", b"1")
        repository.branch("main").delete("gone")
        commits = {branch: [commit.id for commit in repository.branch(branch).log()] for branch in BRANCHES}
        for lines in said:
            for line in lines:
                if line[0] == "commit":
                    assert line[2] in commits[str(line[1])], "a commit that was acknowledged is in the log"
        everything = {}
        for branch in ("main", "side"):
            expected = acknowledged(said, branch)
            assert contents(repository, branch) == expected
            commit(repository, branch)
            assert contents(repository, f"{branch}@") == expected
            everything |= expected
            merge(repository, branch)
        assert contents(repository, "trunk") == everything
        assert collect(repository.context, grace_ms=0).objects > 0, "what was overwritten is garbage"
        assert contents(repository, "trunk") == everything


BRANCHES = ("main", "side", "trunk")


def commit(repository: Repository, branch: str) -> None:
    repository.branch(branch).commit("the rest", allow_empty=True)


def merge(repository: Repository, branch: str) -> None:
    repository.branch("trunk").merge(branch, allow_empty=True)


def run_actors(shared: Shared, seed: int, turns: int) -> list[list[list[str | None]]]:
    """Start all, let them begin at once; the lines of each, when all have ended well."""
    with ExitStack() as stack:
        processes = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, str(ACTOR), str(folder), shared.space, shared.objects, "ab"[number], str(seed),
                     str(turns)],
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                    env={**os.environ, **shared.environment},
                )
            )
            for number, folder in enumerate(shared.folders)
        ]  # fmt: skip
        for process in processes:
            stack.callback(process.kill)
        for process in processes:
            assert process.stdout is not None and process.stdout.readline() == "ready\n"
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        said = []
        for process in processes:
            assert process.stdout is not None
            said.append([json.loads(line) for line in process.stdout])
        assert [process.wait() for process in processes] == [0] * len(processes)
        return said


def acknowledged(said: list[list[list[str | None]]], branch: str) -> dict[str, str]:
    """The content of each path after its last change."""
    found: dict[str, str | None] = {}
    for lines in said:
        found |= {str(path): content for where, path, content in lines if where == branch}
    return {path: content for path, content in found.items() if content is not None}


def contents(repository: Repository, ref: str) -> dict[str, str]:
    found = repository.ref(ref)
    return {entry.path: found.get(entry.path).decode() for entry in found.list(amount=10_000).results}


# -- the place of repositories ------------------------------------------------------------------------


@needs_psycopg
def test_a_pond_remembers_the_database_of_its_repositories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    space, other, bytes_ = new_location(), new_location(), str(tmp_path / "bytes")
    with millpond.open(tmp_path / "one", versions_space=space, versions_objects=bytes_) as pond:
        assert isinstance(pond, millpond.Pond)
        assert pond.repositories.create("first").record.namespace.startswith(f"{bytes_}/first-")
        named = pond.repositories.create("named", "local://named").branch("main").put("a", b"1")
        assert (tmp_path / "bytes" / "named" / named.address).is_file()
    with millpond.open(tmp_path / "two", versions_space=space) as pond:
        assert isinstance(pond, millpond.Pond)
        assert pond.repository("named").branch("main").get("a") == b"1"
    for folder, wrong in (("one", {"versions_space": other}), ("two", {"versions_space": "mysql://db#x"})):
        with pytest.raises(Invalid) as error:
            millpond.open(tmp_path / folder, **wrong)
        assert error.value.kind == "versions_place"
    with pytest.raises(Invalid) as error:
        millpond.open(tmp_path / "one", versions_space=space, versions_objects="elsewhere")
    assert error.value.kind == "versions_place"
    password = space.partition("@")[0].rpartition(":")[2]
    assert not any(password.encode() in file.read_bytes() for file in tmp_path.rglob("*") if file.is_file())
    monkeypatch.setenv("PGPASSWORD", password)
    with millpond.open(tmp_path / "one") as pond:  # the place is written down, without the password
        assert isinstance(pond, millpond.Pond)
        assert pond.repository("named").branch("main").get("a") == b"1"


@needs_psycopg
def test_local_namespaces_of_a_shared_space_need_a_place_for_all(tmp_path: Path) -> None:
    with millpond.open(tmp_path / "pond", versions_space=new_location()) as pond:
        assert isinstance(pond, millpond.Pond)
        with pytest.raises(Invalid) as error:
            pond.repositories.create("first")
        assert error.value.kind == "namespace_local"
        pond.repositories.create("first", str(tmp_path / "first")).branch("main").put("a", b"1")


@needs_psycopg
def test_a_pond_with_repositories_in_its_folder_takes_no_other_place(tmp_path: Path) -> None:
    with millpond.open(tmp_path / "pond", versions_objects=str(tmp_path / "bytes")) as pond:
        assert isinstance(pond, millpond.Pond)
        assert pond.repositories.create("here").record.namespace.startswith(str(tmp_path / "bytes"))
    with pytest.raises(Invalid) as error:
        millpond.open(tmp_path / "pond", versions_space=new_location())
    assert error.value.kind == "versions_place"


@needs_psycopg
def test_maps_need_no_database_of_repositories(tmp_path: Path) -> None:
    with millpond.open(tmp_path / "pond", versions_space=new_location()) as pond:
        pond.create_map("m", kind="state", value="long")  # type: ignore[union-attr]
    with millpond.open(tmp_path / "pond") as pond:  # nobody asked for a repository: no connection is made
        assert pond.map("m").name == "m"
