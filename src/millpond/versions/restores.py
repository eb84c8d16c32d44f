"""Restores: the commits, tags, branches and settings of a dump become those of a repository that has none yet.

    read and check every line ─ store commits ─ check that all is there ─ one write: branches, tags, settings, record

Invariants:
* All of it or nothing: before the last write the repository has the branches that it had. Commits that an interrupted
  restore stored are those of the dump; the next restore stores the same ones.
* Each commit's id is that of its content, its parents are in the dump, and its index lies in the namespace.
* A repository that somebody used is never overwritten.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from millpond.error_values import ShownAsTable
from millpond.errors import Conflict, Corrupt, Invalid, NotFound
from millpond.json_forms import FormError, JsonForm, parse_object
from millpond.kernel.space import ReadTransaction, Transaction
from millpond.kernel.steps import step
from millpond.ranges import index_name
from millpond.versions.dumps import FORMAT
from millpond.versions.graph.commits import Commit, commit_form, find_commit, is_sound, read_commits, store_commit
from millpond.versions.graph.names import check_branch, check_tag
from millpond.versions.keyspaces import BRANCH, TAG
from millpond.versions.repository_context import (
    RepositoryContext,
    RepositoryRecord,
    check_setting_row,
    put_repository,
    put_setting_row,
)
from millpond.versions.staging.branches import BranchRecord, all_branches, drop_tokens, is_empty, put_branch

__all__ = ("Restored", "parse_head", "restore_refs", "split_lines")

LINE_BYTES_MAX = 1 << 20
_BATCH = 1_000
_RECORD = JsonForm(RepositoryRecord)


@dataclass(slots=True)
class Restored(ShownAsTable):
    """The outcome of a restore."""

    commits: int = 0
    branches: int = 0
    tags: int = 0


@dataclass(slots=True)
class _Refs:
    """All of a dump but its commits."""

    record: RepositoryRecord
    tags: dict[str, str] = field(default_factory=dict)
    branches: dict[str, tuple[str, bool]] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    commits: int = 0


def split_lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """The lines of a text in chunks, each with its end.

    Raises: `Invalid` for a line that is too long.
    """
    rest = b""
    for chunk in chunks:
        *lines, rest = (rest + chunk).splitlines(keepends=True) or [b""]
        if rest.endswith(b"\n"):
            lines, rest = [*lines, rest], b""
        yield from lines
        if len(rest) > LINE_BYTES_MAX:
            raise _damaged(0, "a line is too long")
    if rest:
        yield rest


def parse_head(line: bytes) -> RepositoryRecord:
    """The repository that a dump is of, from its first line.

    Raises: `Invalid`.
    """
    head = _parsed(line, 1)
    if "format" not in head or "repository" not in head:
        raise _damaged(1, "it does not begin as a dump does")
    if head["format"] != FORMAT:
        raise Invalid(
            "the dump has another format", kind="dump_format", found=head["format"], expected=FORMAT,
            hint="restore it with the version of Millpond that wrote it",
        )  # fmt: skip
    try:
        return _RECORD.build(head["repository"])
    except FormError as error:
        raise _damaged(1, str(error)) from None


def restore_refs(context: RepositoryContext, head: bytes, lines: Iterator[bytes], *, force: bool = False) -> Restored:
    """Restore a repository without commits of its own from a dump, of which `head` is the first line.

    Raises: `Invalid`, kinds `dump_damaged`, `dump_format` and `dump_incomplete`; `Conflict`, kind `repository_used`.
    """
    refs = _Refs(parse_head(head))
    with context.space.read() as tx:
        context.check_writable(tx, None, "restore", force=force)
        _check_unused(context, tx)
    batch: list[Commit] = []
    for commit in _read(refs, head, lines):
        batch.append(commit)
        if len(batch) == _BATCH:
            _store(context, batch)
            batch = []
    _store(context, batch)
    step("restores.commits_stored")
    _check_all_there(context, refs)
    context.space.write(lambda tx: _switch(context, tx, refs))
    step("restores.switched")
    return Restored(refs.commits, len(refs.branches), len(refs.tags))


# -- lines --------------------------------------------------------------------------------------------


def _read(refs: _Refs, head: bytes, lines: Iterator[bytes]) -> Iterator[Commit]:
    """The commits of a dump; all else goes to `refs`."""
    digest, number = hashlib.sha256(head), 1
    for line in lines:
        row = _parsed(line, number + 1)
        if "sha256" in row:
            if (row["sha256"], row.get("lines")) != (digest.hexdigest(), number):
                raise _damaged(number + 1, "the digest is that of other lines")
            if next(lines, None) is not None:
                raise _damaged(number + 2, "there is something behind its end")
            return
        digest.update(line)
        number += 1
        try:
            commit = _take(refs, row)
        except (FormError, KeyError, TypeError, ValueError) as error:
            raise _damaged(number, str(error)) from None
        if commit is not None:
            refs.commits += 1
            yield commit
    raise _damaged(number + 1, "it ends before its end")


def _take(refs: _Refs, row: dict[str, Any]) -> Commit | None:
    """One row of a dump."""
    if "commit" in row and isinstance(row["commit"], dict):
        commit = commit_form.build(row["commit"])
        if not is_sound(commit):
            raise ValueError(f"the id {commit.id} is that of another commit")
        return commit
    if "tag" in row:
        refs.tags[check_tag(row["tag"])] = row["commit"]
    elif "branch" in row:
        refs.branches[check_branch(row["branch"])] = row["commit"], bool(row["hidden"])
    else:
        check_setting_row(row["setting"], row["value"])
        refs.settings[row["setting"]] = row["value"]
    return None


def _parsed(line: bytes, number: int) -> dict[str, Any]:
    try:
        return parse_object(line)
    except FormError as error:
        raise _damaged(number, str(error)) from None


def _damaged(line: int, reason: str) -> Invalid:
    return Invalid(
        "the dump is damaged", kind="dump_damaged", line=line, reason=reason, hint="take it again from its source"
    )


# -- rows ---------------------------------------------------------------------------------------------


def _store(context: RepositoryContext, commits: list[Commit]) -> None:
    def store(tx: Transaction) -> None:
        context.record(tx)
        for commit in commits:
            store_commit(tx, context.graph.commits, commit)

    if commits:
        context.space.write(store)
        step("restores.batch_stored")


def _check_unused(context: RepositoryContext, tx: ReadTransaction) -> None:
    """Refuse a repository that has more than its first commit."""
    used = next(iter(tx.keys(TAG[context.uid].range())), None) is not None
    for name, record in all_branches(tx, context.uid):
        head = find_commit(tx, context.graph.commits, record.commit_id)
        clean = not record.sealed and is_empty(tx, record.staging_token)
        used = used or not clean or head is None or bool(head.parents) or name != context.record(tx).default_branch
    if used:
        raise Conflict(
            "somebody used this repository already", kind="repository_used", repository=context.name,
            hint="restore into a new one, or delete it first",
        )  # fmt: skip


def _check_all_there(context: RepositoryContext, refs: _Refs) -> None:
    """Check that what the dump names is there: commits, parents, indexes."""
    trees: set[str] = set()
    with context.space.read() as tx:
        for commit in read_commits(tx, context.graph.commits):
            for parent in commit.parents:
                there = find_commit(tx, context.graph.commits, parent)
                if there is None or there.generation >= commit.generation:
                    raise _damaged(0, f"the parent {parent} of {commit.id} is not in it")
            if commit.tree not in trees:
                trees.add(commit.tree)
                _check_index(context, commit)
        named = [*refs.tags.values(), *(id_ for id_, _ in refs.branches.values())]
        missing = next((id_ for id_ in named if find_commit(tx, context.graph.commits, id_) is None), None)
    if missing is not None or refs.record.default_branch not in refs.branches:
        raise _damaged(0, f"the commit {missing} is not in it" if missing else "the default branch is not in it")


def _check_index(context: RepositoryContext, commit: Commit) -> None:
    try:
        context.index(commit.tree)
    except (NotFound, Corrupt) as error:
        raise Invalid(
            "the bytes of a commit are not in the namespace", kind="dump_incomplete", commit=commit.id,
            namespace=context.namespace, index=index_name(commit.tree),
            hint="copy data/ and _millpond/ of the repository's old namespace there first",
        ) from error  # fmt: skip


def _switch(context: RepositoryContext, tx: Transaction, refs: _Refs) -> None:
    _check_unused(context, tx)
    record = context.record(tx)
    for name, earlier in list(all_branches(tx, context.uid)):
        tx.delete(BRANCH[context.uid].pack(name))
        drop_tokens(tx, (earlier.staging_token,))
    for name, (commit_id, hidden) in refs.branches.items():
        fresh = BranchRecord(commit_id, context.clock.random_id(), hidden=hidden, revision=0)
        put_branch(tx, context.uid, name, fresh)
    for name, commit_id in refs.tags.items():
        tx.put(TAG[context.uid].pack(name), commit_id.encode())
    for name, value in refs.settings.items():
        put_setting_row(tx, context.uid, name, value)
    put_repository(tx, replace(record, default_branch=refs.record.default_branch, metadata=refs.record.metadata))
