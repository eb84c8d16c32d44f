"""The operations of simulated processes: each is drawn, done, and held against the history.

| operation | what it may change |
|---|---|
| put, delete, delete_prefix, push | the paths that it names, of what is staged |
| commit | the head, which becomes a state that the branch had meanwhile |
| merge | the head, by three states; and what is staged only where it is not above the head |
| reset | what is staged, which becomes the head's state |
| compact, collect | nothing |
| list, get | nothing; the result is of one moment |
"""

from __future__ import annotations

import random
from collections.abc import Callable
from hashlib import md5
from typing import TYPE_CHECKING

import pyarrow as pa

from millpond.errors import Conflict, Invalid, NotFound, Unavailable
from millpond.versions.collect import collect
from millpond.versions.objects.uploads import data_name, upload
from millpond.versions.staging.publishing import COLLECTING_SECONDS
from tests.harness.interleaving.history import History, Moment, Operation, state_of, three_way

if TYPE_CHECKING:
    from millpond.versions.branch import Branch
    from millpond.versions.repository import Repository

__all__ = ("BRANCHES", "GRACE_MS", "OPERATIONS", "Doing")

BRANCHES = ("main", "fix")
GRACE_MS = round(1000 * COLLECTING_SECONDS) + 30_000
"""A push may await a collection that died before it stages what it uploaded."""
PATHS = ("a", "a/1", "a/2", "a/3", "b", "b/1", "b/2", "c")
PREFIXES = ("a/", "b", "c")
ABSENT = "entry_not_found"
COLLECTED = "ranges_collected"
HARMLESS = ("branch_dirty", "no_changes")
"""Kinds of errors by which a commit or a merge says that there was nothing to do, or that somebody is at work."""


class Doing:
    """A process that does operations: its repository, the history, and chance."""

    def __init__(self, repository: Repository, history: History, chance: random.Random) -> None:
        self.repository, self.history, self.chance = repository, history, chance
        self.current: Operation | None = None
        self._contents = 0

    def do(self, name: str) -> None:
        """One operation, drawn and done and checked.

        Raises: `AssertionError`, and what no operation may raise.
        """
        try:
            OPERATIONS[name][0](self, self.repository.branch(self.chance.choice(BRANCHES)))
        finally:
            self.current = None

    def begin(self, name: str, branch: Branch, allowed: Callable[[Moment, Moment], bool]) -> Operation:
        """Say what comes: from now on the states of the branch may change so."""
        self.current = self.history.start(Operation(name, branch.name, allowed))
        return self.current

    def was(self, operation: Operation, true: Callable[[Moment], bool]) -> None:
        """Insist that something was true at some moment of an operation."""
        assert any(map(true, self.history.since(operation))), f"{operation.name} was acknowledged, and never seen"

    def content(self) -> bytes:
        """Some bytes: often new, at times those of others."""
        self._contents += 1
        return b"%d" % (self.chance.randrange(6) if self.chance.random() < 0.3 else self.chance.getrandbits(40))


def _staged(branch: Branch, rows: dict[str, str | None]) -> Callable[[Moment, Moment], bool]:
    """The rule of a write: its rows are put or, with None, deleted, and nothing else."""

    def allowed(before: Moment, after: Moment) -> bool:
        expected = {path: value for path, value in {**before.staged[branch.name], **rows}.items() if value is not None}
        return after.staged[branch.name] == expected and after.head[branch.name] == before.head[branch.name]

    return allowed


def _put(doing: Doing, branch: Branch) -> None:
    path, body = doing.chance.choice(PATHS), doing.content()
    checksum = md5(body, usedforsecurity=False).hexdigest()
    operation = doing.begin(f"put {path} {checksum[:6]}", branch, _staged(branch, {path: checksum}))
    branch.put(path, body)
    doing.was(operation, lambda moment: moment.staged[branch.name].get(path) == checksum)


def _delete(doing: Doing, branch: Branch) -> None:
    path = doing.chance.choice(PATHS)
    operation = doing.begin(f"delete {path}", branch, _staged(branch, {path: None}))
    branch.delete(path)
    doing.was(operation, lambda moment: path not in moment.staged[branch.name])


def _delete_prefix(doing: Doing, branch: Branch) -> None:
    prefix = doing.chance.choice(PREFIXES)
    gone: dict[str, str | None] = {path: None for path in PATHS if path.startswith(prefix)}
    operation = doing.begin(f"delete prefix {prefix}", branch, _staged(branch, gone))
    branch.staging.delete_prefix(prefix)
    doing.was(operation, lambda moment: not any(path in moment.staged[branch.name] for path in gone))


def _push(doing: Doing, branch: Branch) -> None:
    paths = sorted(doing.chance.sample(PATHS, doing.chance.randint(1, 4)))
    context = doing.repository.context
    body = doing.content()
    name = data_name(context.clock.now_ms(), context.clock.random_id())
    checksum = md5(body, usedforsecurity=False).hexdigest()
    deleted = [doing.chance.random() < 0.3 for _ in paths]
    rows = {path: None if gone else checksum for path, gone in zip(paths, deleted, strict=True)}
    operation = doing.begin(f"push {rows}", branch, _staged(branch, rows))
    upload(context.data, name, body)
    table = pa.record_batch({
        "path": paths, "address": [name] * len(paths), "checksum": [checksum] * len(paths),
        "size": [len(body)] * len(paths), "deleted": deleted,
    })  # fmt: skip
    try:
        branch.staging.push([table])
    except Unavailable as error:
        if error.kind != COLLECTED:
            raise
        return  # its batches were read already: the caller tries again
    doing.was(
        operation, lambda moment: all(moment.staged[branch.name].get(path) == value for path, value in rows.items())
    )


def _commit(doing: Doing, branch: Branch) -> None:
    name = branch.name

    def allowed(before: Moment, after: Moment) -> bool:
        seen = [moment.staged[name] for moment in doing.history.since(operation)]
        return after.head[name] in seen and after.staged[name] == before.staged[name]

    operation = doing.begin("commit", branch, allowed)
    _harmless(lambda: branch.commit("all"))


def _merge(doing: Doing, branch: Branch) -> None:
    name = branch.name
    source = BRANCHES[1 - BRANCHES.index(name)]

    def allowed(before: Moment, after: Moment) -> bool:
        if not _follows_head(name, before, after):
            return False
        for moment in doing.history.since(operation):
            base = doing.history.base(before.commit[name], moment.commit[source])
            if after.head[name] == three_way(base, before.head[name], moment.head[source]):
                return True
        return False

    operation = doing.begin(f"merge {source}", branch, allowed)
    _harmless(lambda: branch.merge(source, strategy="source-wins"))


def _follows_head(name: str, before: Moment, after: Moment) -> bool:
    """True when only what was not staged follows the head."""
    staged, head = before.staged[name], before.head[name]
    return all(
        after.staged[name].get(path) == staged.get(path)
        or (staged.get(path) == head.get(path) and after.staged[name].get(path) == after.head[name].get(path))
        for path in PATHS
    )


def _reset(doing: Doing, branch: Branch) -> None:
    name = branch.name

    def allowed(before: Moment, after: Moment) -> bool:
        return after.head[name] == before.head[name] == after.staged[name]

    operation = doing.begin("reset", branch, allowed)
    branch.reset()
    doing.was(operation, lambda moment: moment.staged[name] == moment.head[name])


def _nothing(before: Moment, after: Moment) -> bool:
    return False


def _compact(doing: Doing, branch: Branch) -> None:
    doing.begin("compact", branch, _nothing)
    branch.staging.compact()


def _collect(doing: Doing, branch: Branch) -> None:
    doing.begin("collect", branch, _nothing)
    try:
        collect(doing.repository.context, grace_ms=GRACE_MS, readers_ms=0)  # so that it meets all who read and build
    except Conflict:
        return  # another one deletes


def _list(doing: Doing, branch: Branch) -> None:
    operation = doing.begin("list", branch, _nothing)
    found = state_of(doing.repository, branch.name)
    doing.was(operation, lambda moment: moment.staged[branch.name] == found)


def _list_head(doing: Doing, branch: Branch) -> None:
    operation = doing.begin("list head", branch, _nothing)
    found = state_of(doing.repository, f"{branch.name}@")
    doing.was(operation, lambda moment: moment.head[branch.name] == found)


def _get(doing: Doing, branch: Branch) -> None:
    path = doing.chance.choice(PATHS)
    operation = doing.begin(f"get {path}", branch, _nothing)
    try:
        found = md5(b"".join(branch.read(path)), usedforsecurity=False).hexdigest()
    except NotFound as error:
        if error.kind != ABSENT:
            raise
        found = None
    doing.was(operation, lambda moment: moment.staged[branch.name].get(path) == found)


def _harmless(act: Callable[[], object]) -> None:
    try:
        act()
    except Invalid as error:
        if error.kind not in HARMLESS:
            raise


OPERATIONS: dict[str, tuple[Callable[[Doing, Branch], None], int]] = {
    "put": (_put, 8), "delete": (_delete, 3), "delete prefix": (_delete_prefix, 1), "push": (_push, 2),
    "commit": (_commit, 4), "merge": (_merge, 3), "reset": (_reset, 1), "compact": (_compact, 3),
    "collect": (_collect, 2), "list": (_list, 3), "list head": (_list_head, 1), "get": (_get, 3),
}  # fmt: skip
"""All operations, and how often each is drawn."""
