"""From an expression to a commit: `main~2`, `v1`, `3f2a`.

    expression   = base modifier* | base "@" | base "$"
    modifier     = "~" [number] | "^" [number]

| | means |
|---|---|
| `~n` | the n-th first parent; `~` is `~1`, `~0` the commit itself |
| `^n` | the n-th parent; `^` is `^1`, `^0` the commit itself |
| `@` | the head of a branch, without what is staged |
| `$` | a branch with what is staged |

A base is searched as a commit's whole id, a branch, a tag, then as the beginning of a commit's id.

Invariants:
* a branch or tag is found before a commit whose id begins so;
* a beginning that several commits share means none of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from millpond.errors import Invalid, NotFound
from millpond.kernel.keys import Prefix
from millpond.kernel.space import ReadTransaction
from millpond.versions.graph.commits import Commit, commit_not_found, find_commit, get_commit, starting_with
from millpond.versions.graph.names import is_commit_id

__all__ = ("Graph", "Resolved", "parse", "ref_not_found")

_ID_DIGITS = frozenset("0123456789abcdef")
_EXPRESSION = re.compile(r"(?P<base>[^\s~^@$]+)(?:(?P<steps>(?:[~^][0-9]*)*)|(?P<mark>[@$]))")
_STEP = re.compile(r"([~^])([0-9]*)")
_DIGITS_MAX = 9


@dataclass(frozen=True, slots=True)
class _Step:
    """One move: `~` along first parents so many times, or `^` to the parent of that number."""

    kind: str
    number: int


@dataclass(frozen=True, slots=True)
class _Expression:
    """A base, and the steps from there, or one of the marks `@` and `$`."""

    base: str
    steps: tuple[_Step, ...] = ()
    mark: str = ""


def parse(text: object) -> _Expression:
    """The expression that a text writes.

    >>> parse("main~2^")
    _Expression(base='main', steps=(_Step(kind='~', number=2), _Step(kind='^', number=1)), mark='')

    Raises: `Invalid`.
    """
    match = _EXPRESSION.fullmatch(text) if isinstance(text, str) else None
    # A tag may hold ~ in its name; such a tag is reached by its commit.
    if match is None:
        raise _refused(text)
    steps = []
    for kind, digits in _STEP.findall(match["steps"] or ""):
        if len(digits) > _DIGITS_MAX:
            raise _refused(text)
        steps.append(_Step(kind, int(digits) if digits else 1))
    return _Expression(match["base"], tuple(steps), match["mark"] or "")


def _refused(text: object) -> Invalid:
    return Invalid(
        "not a ref", kind="ref_invalid", ref=repr(text),
        hint="a branch, tag or commit, then ~n or ^n; or a branch with @ or $",
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Resolved:
    """The target of an expression: a commit; and the branch whose staged state is meant as well, if one is."""

    commit: str
    branch: str | None = None
    """The branch that was named, without steps."""
    staged: bool = False
    """True when the branch is meant with what is staged: named plainly, or with `$`."""
    explicit: bool = False
    """True when the expression said `$`."""


@dataclass(frozen=True, slots=True)
class Graph:
    """The commits, tags and branch heads of one repository."""

    commits: Prefix
    tags: Prefix
    head: Callable[[ReadTransaction, str], str | None]
    """The head of a branch, None when there is no such branch."""

    def resolve(self, tx: ReadTransaction, text: str) -> Resolved:
        """The target of an expression.

        Raises: `Invalid` for text that is none, a parent that is not there; `NotFound`.
        """
        expression = parse(text)
        commit, branch = self._base(tx, expression.base, text)
        if expression.mark and branch is None:
            raise Invalid(
                "only a branch has staged entries", kind="ref_invalid", ref=text, hint="leave out the @ or $"
            )  # fmt: skip
        if expression.steps:
            return Resolved(self._walk(tx, commit, expression, text))
        return Resolved(commit, branch, branch is not None and expression.mark != "@", expression.mark == "$")

    def commit(self, tx: ReadTransaction, text: str) -> Commit:
        """The commit of an expression; of a branch its head.

        Raises: as `resolve`; `Invalid` for `$`.
        """
        resolved = self.resolve(tx, text)
        if resolved.explicit:
            raise Invalid(
                "a commit is needed, not what is staged", kind="ref_staged", ref=text, hint="leave out the $"
            )  # fmt: skip
        return get_commit(tx, self.commits, resolved.commit)

    def _base(self, tx: ReadTransaction, base: str, text: str) -> tuple[str, str | None]:
        if is_commit_id(base) and tx.get(self.commits.pack(base)) is not None:
            return base, None
        head = self.head(tx, base)
        if head is not None:
            return head, base
        tag = tx.get(self.tags.pack(base))
        if tag is not None:
            return tag.decode(), None
        if _ID_DIGITS.issuperset(base):
            ids = starting_with(tx, self.commits, base)
            if len(ids) == 1:
                return ids[0], None
        raise ref_not_found(text)

    def _walk(self, tx: ReadTransaction, commit: str, expression: _Expression, text: str) -> str:
        for step in expression.steps:
            if step.kind == "~":
                for _ in range(step.number):
                    parents = get_commit(tx, self.commits, commit).parents
                    if not parents:
                        raise ref_not_found(text)
                    commit = parents[0]
            elif step.number:
                parents = get_commit(tx, self.commits, commit).parents
                if step.number > len(parents):
                    raise Invalid(
                        "the commit has fewer parents", kind="ref_invalid", ref=text, commit=commit,
                        parents=len(parents),
                    )  # fmt: skip
                commit = parents[step.number - 1]
        return commit

    def load(self, tx: ReadTransaction) -> Callable[[str], Commit]:
        """A function that finds commits by their ids, each read once."""
        commits: dict[str, Commit] = {}

        def load(id_: str) -> Commit:
            if id_ not in commits:
                commit = find_commit(tx, self.commits, id_)
                if commit is None:
                    raise commit_not_found(id_)
                commits[id_] = commit
            return commits[id_]

        return load


def ref_not_found(text: str) -> NotFound:
    """The error for a ref that names nothing."""
    return NotFound("not found", kind="ref_not_found", ref=text, hint="name a branch, a tag or a commit")
