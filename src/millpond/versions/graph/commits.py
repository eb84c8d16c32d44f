"""Commits: records named by their content, the same on every driver.

The id is the SHA-256 of the record's fields, each behind its length (drawn in `docs/format/versions.md`):

    "millpond commit 1" · tree · committer · message · created · count, (name · value)… · count, parent…

The generation is not hashed: it follows from the parents.

Invariants:
* two commits of one id are equal; a commit that is stored again changes nothing;
* a commit's generation is greater than those of its parents;
* parents are stored before their children.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from millpond.error_values import ShownAsTable
from millpond.errors import Corrupt, NotFound
from millpond.json_forms import JsonForm
from millpond.kernel.keys import Prefix, starting
from millpond.kernel.space import ReadTransaction, Transaction

__all__ = (
    "MOMENT", "Commit", "commit_form", "commit_not_found", "find_commit", "get_commit", "is_sound", "put_commit",
    "read_commits", "starting_with", "store_commit",
)  # fmt: skip

_SCHEME = b"millpond commit 1"
_LONG = struct.Struct("<q")
MOMENT = "moment_ms"
"""The metadata of a commit that tells its moment."""
_MOMENT_DIGITS = 18


@dataclass(frozen=True, slots=True)
class Commit(ShownAsTable):
    """A state (`tree`, the id of an index), its parents, and the words about it. `created` counts seconds, UTC."""

    id: str
    tree: str
    parents: tuple[str, ...] = ()
    committer: str = ""
    message: str = ""
    created: int = 0
    metadata: dict[str, str] = field(default_factory=dict)
    generation: int = 1

    @classmethod
    def make(
        cls, tree: str, parents: tuple[Commit, ...], *, committer: str, message: str, created: int,
        metadata: Mapping[str, str] | None = None,
    ) -> Commit:  # fmt: skip
        """The commit of these words, with its id and its generation."""
        about = dict(sorted((metadata or {}).items()))
        ids = tuple(parent.id for parent in parents)
        generation = max((parent.generation for parent in parents), default=0) + 1
        id_ = _commit_id(tree, ids, committer, message, created, about)
        return cls(id_, tree, ids, committer, message, created, about, generation)

    @property
    def merge(self) -> bool:
        """True when it has several parents."""
        return len(self.parents) > 1

    @property
    def moment_ms(self) -> int | None:
        """Its moment in milliseconds; None where its date alone is told."""
        text = self.metadata.get(MOMENT, "")
        moment = int(text) if text.isdecimal() and len(text) <= _MOMENT_DIGITS else None
        return moment if moment is not None and moment // 1000 == self.created else None


commit_form = JsonForm(Commit)
"""The JSON form of a commit."""


def _commit_id(
    tree: str, parents: tuple[str, ...], committer: str, message: str, created: int, metadata: Mapping[str, str]
) -> str:
    digest = hashlib.sha256(_SCHEME)
    for text in (tree, committer, message):
        _update(digest, text)
    digest.update(_LONG.pack(created))
    digest.update(_LONG.pack(len(metadata)))
    for name, value in sorted(metadata.items()):
        _update(digest, name)
        _update(digest, value)
    digest.update(_LONG.pack(len(parents)))
    for parent in parents:
        _update(digest, parent)
    return digest.hexdigest()


def _update(digest: hashlib._Hash, text: str) -> None:
    raw = text.encode(errors="surrogatepass")
    digest.update(_LONG.pack(len(raw)))
    digest.update(raw)


def put_commit(tx: Transaction, commits: Prefix, commit: Commit) -> None:
    """Store a commit; one that is there already is left as it is."""
    key = commits.pack(commit.id)
    if tx.get(key) is None:
        assert all(tx.get(commits.pack(parent)) is not None for parent in commit.parents), "parents come first"
        tx.put(key, commit_form.encode(commit))


def is_sound(commit: Commit) -> bool:
    """True when a commit's id is that of its content."""
    return commit.generation > 0 and commit.id == _commit_id(
        commit.tree, commit.parents, commit.committer, commit.message, commit.created, commit.metadata
    )


def store_commit(tx: Transaction, commits: Prefix, commit: Commit) -> None:
    """Store a commit that may come before its parents: they are checked when all are there."""
    assert is_sound(commit), "a commit is named by its content"
    tx.put(commits.pack(commit.id), commit_form.encode(commit))


def find_commit(tx: ReadTransaction, commits: Prefix, id_: str) -> Commit | None:
    """The commit of that id, or None.

    Raises: `Corrupt`.
    """
    row = tx.get(commits.pack(id_))
    return None if row is None else _decode(row, id_)


def get_commit(tx: ReadTransaction, commits: Prefix, id_: str) -> Commit:
    """The commit of that id.

    Raises: `NotFound`, `Corrupt`.
    """
    commit = find_commit(tx, commits, id_)
    if commit is None:
        raise commit_not_found(id_)
    return commit


def commit_not_found(id_: str) -> NotFound:
    """The error for a commit that is not there."""
    return NotFound("commit not found", kind="commit_not_found", commit=id_)


def starting_with(tx: ReadTransaction, commits: Prefix, prefix: str) -> list[str]:
    """The ids of commits that begin with these digits: none, one, or two where there are more."""
    ids: list[str] = []
    for key in tx.keys(starting(commits.packed + b"\x20" + prefix.encode())):
        ids.append(str(commits.unpack(key)[0]))
        if len(ids) == 2:
            break
    return ids


def read_commits(tx: ReadTransaction, commits: Prefix) -> Iterator[Commit]:
    """All commits, in the order of their ids.

    Raises: `Corrupt`.
    """
    for key, row in tx.scan(commits.range()):
        yield _decode(row, str(commits.unpack(key)[0]))


def _decode(row: bytes, id_: str) -> Commit:
    commit = commit_form.stored(row, "a commit cannot be read", kind="commit_damaged", commit=id_)
    if commit.id != id_:
        raise Corrupt("a commit has the name of another", kind="commit_damaged", commit=id_, found=commit.id)
    return commit
