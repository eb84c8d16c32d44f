"""A process of tests that works on shared branches: `python versions_actor.py POND SPACE OBJECTS NAME SEED TURNS`.

Each path is written by one actor. What it did, and what was acknowledged, goes to standard output, a line of JSON each:
`[branch, path, content]` with null for a deletion; and `["commit", branch, id]`.

`main` and `side` are written by all; nobody writes to `trunk`, into which both are merged.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

import numpy as np
import pyarrow as pa

import millpond
from millpond.errors import Invalid
from millpond.versions.repository import Repository

QUIET = {"no_changes"}


class Actor:
    """One writer, committer, merger and compactor of the repository `shared`."""

    def __init__(self, repository: Repository, name: str, seed: int) -> None:
        self.repository, self.name = repository, name
        self.chance = np.random.default_rng([seed, *name.encode()])
        self.paths: dict[str, list[str]] = {"main": [], "side": []}
        self.count = 0

    def turn(self) -> None:
        """One act."""
        acts = [(self.put, 5), (self.push, 1), (self.delete, 2), (self.commit, 3), (self.merge, 2), (self.compact, 1)]
        among = [act for act, weight in acts for _ in range(weight)]
        among[self.chance.integers(len(among))]()

    def branch(self) -> str:
        return ("main", "side")[self.chance.integers(2)]

    def path(self, branch: str) -> str:
        self.count += 1
        path = f"{branch}/{self.chance.integers(10)}/{self.name}{self.count}"
        self.paths[branch].append(path)
        return path

    def known(self, branch: str) -> str:
        paths = self.paths[branch]
        return paths[self.chance.integers(len(paths))]

    def put(self) -> None:
        branch = self.branch()
        again = self.paths[branch] and self.chance.random() < 0.3
        path = self.known(branch) if again else self.path(branch)
        content = f"{self.name} {self.chance.random()}"
        self.repository.branch(branch).put(path, content.encode())
        said([branch, path, content])

    def push(self) -> None:
        branch = self.branch()
        paths = sorted(self.path(branch) for _ in range(3))
        objects = [self.repository.branch(branch).put(path, path.encode()) for path in paths]
        table = pa.table({
            "path": paths, "address": [entry.address for entry in objects], "size": [entry.size for entry in objects],
            "checksum": [entry.checksum for entry in objects],
        })  # fmt: skip
        self.repository.branch(branch).staging.push(table.to_batches())
        for path in paths:
            said([branch, path, path])

    def delete(self) -> None:
        branch = self.branch()
        if self.paths[branch]:
            path = self.known(branch)
            self.repository.branch(branch).delete(path)
            said([branch, path, None])

    def commit(self) -> None:
        branch = self.branch()
        self.quietly(lambda: said(["commit", branch, self.repository.branch(branch).commit(self.name).id]))

    def merge(self) -> None:
        source = self.branch()
        self.quietly(lambda: said(["commit", "trunk", self.repository.branch("trunk").merge(source).id]))

    def compact(self) -> None:
        self.repository.branch(self.branch()).staging.compact()

    @staticmethod
    def quietly(act: Callable[[], None]) -> None:
        """Another actor may have committed, or merged, what there was."""
        try:
            act()
        except Invalid as error:
            if error.kind not in QUIET:
                raise


def said(line: list[str | None]) -> None:
    """Say what was acknowledged."""
    print(json.dumps(line), flush=True)


def main() -> None:
    folder, space, objects, name, seed, turns = sys.argv[1:]
    with millpond.open(folder, versions_space=space, versions_objects=objects) as pond:
        repository = pond.repository("shared")  # type: ignore[attr-defined]
        print("ready", flush=True)
        sys.stdin.readline()
        actor = Actor(repository, name, int(seed))
        for _ in range(int(turns)):
            actor.turn()


if __name__ == "__main__":
    main()
