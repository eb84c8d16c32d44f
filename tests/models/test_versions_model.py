"""Repositories against a model of dicts: every act on branches, and every mix of layers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, precondition, rule

from millpond.clock import ManualClock
from millpond.errors import Conflict, Invalid, NotFound
from millpond.ranges import Boundaries, scan, write
from millpond.stores.memory import MemorySpace
from millpond.stores.objects import MemoryObjects, ObjectStore
from millpond.versions.branch import Branch
from millpond.versions.merges import MergeConflict, merge_trees
from millpond.versions.objects.entries import Entry, batch_of, entries_of
from millpond.versions.paging import CommonPrefix
from millpond.versions.repositories import Repositories
from millpond.versions.repository import Repository
from millpond.versions.repository_context import RepositoryContext
from tests.rings.sampling import examples

pytestmark = pytest.mark.usefixtures("processor")

SMALL = Boundaries(rows_min=2, rows_max=6, bits=1)
State = dict[str, str]
Choose = Callable[[str | None, str | None], str | None]
PATHS = [
    f"{folder}{name}" for folder in ("", "a/", "a/b/", "b/", "\x01/") for name in ("", "x", "y", "zz") if folder + name
]
PREFIXES = ["", "a", "a/", "a/b", "b/", "z", "\x01"]
paths = st.sampled_from(PATHS)
prefixes = st.sampled_from(PREFIXES)
contents = st.sampled_from(["1", "2", "3"])


def new_repository() -> Repository:
    places: dict[str, ObjectStore] = {}
    repositories = Repositories(
        MemorySpace(), ManualClock(1_600_000_000_000), lambda where: places.setdefault(where, MemoryObjects()),
        boundaries=SMALL,
    )  # fmt: skip
    return repositories.create("model")


def entry(path: str, content: str) -> Entry:
    return Entry(path, f"data/{content}", len(content), 0, content)


def state_of(repository: Repository, ref: str) -> State:
    listed = repository.ref(ref).list(amount=1000).results
    return {found.path: found.checksum for found in listed if isinstance(found, Entry)}


def changes(old: State, new: State) -> dict[str, str]:
    out = dict.fromkeys(old.keys() - new.keys(), "removed") | dict.fromkeys(new.keys() - old.keys(), "added")
    return out | {path: "changed" for path in old.keys() & new.keys() if old[path] != new[path]}


def merged(
    base: State, ours: State, theirs: State, choose: Callable[[str | None, str | None], str | None] | None
) -> State | None:
    """The per-key rule; None for a conflict that nobody chooses for."""
    out: State = {}
    for path in base.keys() | ours.keys() | theirs.keys():
        b, o, t = base.get(path), ours.get(path), theirs.get(path)
        if o == t or t == b:
            value = o
        elif o == b:
            value = t
        elif choose is None:
            return None
        else:
            value = choose(o, t)
        if value is not None:
            out[path] = value
    return out


def common_prefixes(state: State, prefix: str, after: str) -> list[str]:
    shown: list[str] = []
    for path in sorted(state, key=str.encode):
        if not path.startswith(prefix) or path.encode() <= after.encode():
            continue
        cut = path.find("/", len(prefix))
        name = path if cut < 0 else path[: cut + 1]
        if name not in shown and not (name == after and cut >= 0):
            shown.append(name)
    return shown


class Versions(RuleBasedStateMachine):
    """One repository; the model is the state of each branch, and the tree and parents of each commit."""

    branches = Bundle("branches")

    @initialize(target=branches)
    def begin(self) -> str:
        self.repository = new_repository()
        first = self.repository.branch("main").head().id
        self.trees: dict[str, State] = {first: {}}
        self.heads = {"main": first}
        self.staged: dict[str, State] = {"main": {}}
        self.count = 0
        return "main"

    def branch(self, name: str) -> Branch:
        return self.repository.branch(name)

    def moved(self, name: str, tree: State) -> None:
        head = self.branch(name).head()
        self.trees[head.id] = dict(tree)
        self.heads[name] = head.id
        self.staged[name] = dict(tree)

    def clean(self, name: str) -> bool:
        return self.staged[name] == self.trees[self.heads[name]]

    @rule(target=branches, source=branches)
    @precondition(lambda self: self.count < 4)
    def create(self, source: str) -> str:
        self.count += 1
        name = f"b{self.count}"
        self.repository.create_branch(name, source)
        self.heads[name] = self.heads[source]
        self.staged[name] = dict(self.trees[self.heads[source]])
        return name

    @rule(name=branches, path=paths, content=contents)
    def put(self, name: str, path: str, content: str) -> None:
        self.branch(name).staging.link(entry(path, content))
        self.staged[name][path] = content

    @rule(name=branches, path=paths, content=contents)
    def put_if_absent(self, name: str, path: str, content: str) -> None:
        if path in self.staged[name]:
            with pytest.raises(Conflict):
                self.branch(name).staging.link(entry(path, content), if_absent=True)
        else:
            self.branch(name).staging.link(entry(path, content), if_absent=True)
            self.staged[name][path] = content

    @rule(name=branches, path=paths, to=paths)
    def move(self, name: str, path: str, to: str) -> None:
        model, branch = self.staged[name], self.branch(name)
        if path not in model:
            with pytest.raises(NotFound):
                branch.staging.move(path, to)
            return
        assert branch.staging.move(path, to).path == to
        model[to] = model.pop(path)

    @rule(name=branches, some=st.lists(paths, max_size=4, unique=True))
    def delete(self, name: str, some: list[str]) -> None:
        there = sum(path in self.staged[name] for path in some)
        assert self.branch(name).staging.delete_many(some) == there
        for path in some:
            self.staged[name].pop(path, None)

    @rule(name=branches, prefix=prefixes)
    def delete_prefix(self, name: str, prefix: str) -> None:
        self.branch(name).staging.delete_prefix(prefix)
        self.staged[name] = {
            path: content for path, content in self.staged[name].items() if not path.startswith(prefix)
        }

    @rule(name=branches, rows=st.dictionaries(paths, st.one_of(st.none(), contents), min_size=1, max_size=6))
    def push(self, name: str, rows: dict[str, str | None]) -> None:
        ordered = sorted(rows, key=str.encode)
        table = pa.table({
            "path": ordered, "checksum": [rows[path] or "" for path in ordered],
            "size": [len(rows[path] or "") for path in ordered], "deleted": [rows[path] is None for path in ordered],
        })  # fmt: skip
        self.branch(name).staging.push(table.to_batches())
        for path, content in rows.items():
            if content is None:
                self.staged[name].pop(path, None)
            else:
                self.staged[name][path] = content

    @rule(name=branches)
    def compact(self, name: str) -> None:
        self.branch(name).staging.compact()

    @rule(name=branches, allow_empty=st.booleans())
    def commit(self, name: str, *, allow_empty: bool) -> None:
        self.repository.context.clock.advance(1000)  # type: ignore[attr-defined]
        if self.clean(name) and not allow_empty:
            with pytest.raises(Invalid, match="no changes"):
                self.branch(name).commit()
        else:
            self.branch(name).commit("all", allow_empty=allow_empty)
            self.moved(name, self.staged[name])

    @rule(name=branches, prefix=prefixes)
    def commit_some(self, name: str, prefix: str) -> None:
        head, staged = self.trees[self.heads[name]], self.staged[name]
        tree = {path: content for path, content in head.items() if not path.startswith(prefix)}
        tree |= {path: content for path, content in staged.items() if path.startswith(prefix)}
        if tree == head:
            with pytest.raises(Invalid, match="no changes"):
                self.branch(name).commit("some", prefixes=[prefix])
        else:
            self.branch(name).commit("some", prefixes=[prefix])
            self.moved(name, tree)
            self.staged[name] = staged

    @rule(name=branches, what=st.sampled_from(["all", "path", "prefix"]), path=paths, prefix=prefixes)
    def reset(self, name: str, what: str, path: str, prefix: str) -> None:
        head, staged = self.trees[self.heads[name]], self.staged[name]
        if what == "all":
            self.branch(name).reset()
            self.staged[name] = dict(head)
            return
        hit = (lambda found: found == path) if what == "path" else (lambda found: found.startswith(prefix))
        self.branch(name).reset(path=path if what == "path" else None, prefix=None if what == "path" else prefix)
        self.staged[name] = {p: c for p, c in staged.items() if not hit(p)} | {p: c for p, c in head.items() if hit(p)}

    @rule(name=branches, other=branches, prefix=prefixes)
    def restore(self, name: str, other: str, prefix: str) -> None:
        target, staged = self.trees[self.heads[other]], self.staged[name]
        expected = {p: c for p, c in staged.items() if not p.startswith(prefix)}
        expected |= {p: c for p, c in target.items() if p.startswith(prefix)}
        assert self.branch(name).staging.restore(prefix, f"{other}@") == len(changes(staged, expected))
        self.staged[name] = expected

    @rule(name=branches, source=branches, strategy=st.sampled_from(["", "source-wins", "dest-wins"]))
    def merge(self, name: str, source: str, strategy: str) -> None:
        context = self.repository.context
        context.clock.advance(1000)  # type: ignore[attr-defined]
        base_commit = self.repository.merge_base(source, name).id
        base, ours, theirs = (self.trees[id_] for id_ in (base_commit, self.heads[name], self.heads[source]))
        choose = {"": None, "source-wins": lambda o, t: t, "dest-wins": lambda o, t: o}[strategy]
        expected = merged(base, ours, theirs, choose)  # type: ignore[arg-type]
        shown = {found.path: found.type for found in self.repository.diff(name, source, amount=1000).results}
        assert shown == self.three_dot(base, ours, theirs)
        act = lambda: self.branch(name).merge(source, strategy=strategy)  # noqa: E731
        if not self.clean(name):
            with pytest.raises(Invalid, match="dirty branch"):
                act()
        elif base_commit == self.heads[source]:
            with pytest.raises(Invalid, match="no changes"):
                act()
        elif expected is None:
            with pytest.raises(MergeConflict) as error:
                act()
            assert set(error.value.paths) == {path for path, kind in shown.items() if kind == "conflict"}
        else:
            act()
            self.moved(name, expected)

    @staticmethod
    def three_dot(base: State, ours: State, theirs: State) -> dict[str, str]:
        out = {}
        for path, kind in changes(base, theirs).items():
            b, o, t = base.get(path), ours.get(path), theirs.get(path)
            if o != t:
                out[path] = kind if o == b else "conflict"
        return out

    @rule(name=branches, steps=st.integers(0, 2))
    def revert(self, name: str, steps: int) -> None:
        log = list(self.branch(name).log(limit=5))
        self.repository.context.clock.advance(1000)  # type: ignore[attr-defined]
        reverted = log[min(steps, len(log) - 1)]
        number = 1 if reverted.merge else None
        ours = self.trees[self.heads[name]]
        parent = self.trees[reverted.parents[0]] if reverted.parents else {}
        expected = merged(self.trees[reverted.id], ours, parent, None)
        act = lambda: self.branch(name).revert(reverted.id, parent_number=number)  # noqa: E731
        if not self.clean(name):
            with pytest.raises(Invalid, match="dirty"):
                act()
        elif expected is None:
            with pytest.raises(MergeConflict):
                act()
        elif expected == ours:
            with pytest.raises(Invalid, match="no changes"):
                act()
        else:
            act()
            self.moved(name, expected)

    @rule(name=branches, source=branches)
    def cherry_pick(self, name: str, source: str) -> None:
        commit = self.branch(source).head()
        self.repository.context.clock.advance(1000)  # type: ignore[attr-defined]
        base = self.trees[commit.parents[0]] if commit.parents else {}
        expected = merged(base, self.trees[self.heads[name]], self.trees[commit.id], None)
        act = lambda: self.branch(name).cherry_pick(source, parent_number=1 if commit.merge else None)  # noqa: E731
        if not self.clean(name):
            with pytest.raises(Invalid, match="dirty"):
                act()
        elif expected is None:
            with pytest.raises(MergeConflict):
                act()
        else:
            act()
            self.moved(name, expected)

    @rule(name=branches, other=branches, force=st.booleans())
    def reset_hard(self, name: str, other: str, *, force: bool) -> None:
        if force or self.clean(name):
            self.branch(name).staging.reset_hard(f"{other}@", force=force)
            self.moved(name, self.trees[self.heads[other]])
        else:
            with pytest.raises(Invalid, match="dirty"):
                self.branch(name).staging.reset_hard(other)

    @rule(
        name=branches, prefix=prefixes, after=st.sampled_from(["", "a", "a/", "a/x", "zz"]), amount=st.integers(1, 5),
        delimiter=st.sampled_from(["", "/"]), committed=st.booleans(), reverse=st.booleans(),
    )  # fmt: skip
    def pages(
        self, name: str, prefix: str, after: str, amount: int, delimiter: str, *, committed: bool, reverse: bool
    ) -> None:
        state = self.trees[self.heads[name]] if committed else self.staged[name]
        ref = self.repository.ref(name + "@" * committed)
        if reverse:
            after = ""
        if delimiter:
            expected = common_prefixes(state, prefix, after)
        else:
            inside = [path for path in state if path.startswith(prefix) and path.encode() > after.encode()]
            expected = sorted(inside, key=str.encode)
        found: list[str] = []
        while True:
            page = ref.list(prefix, delimiter=delimiter, after=after, amount=amount, reverse=reverse)
            found += [item.path for item in page.results]
            after = page.next_offset
            if not page.has_more:
                break
        assert found == (expected[::-1] if reverse else expected)

    @rule(name=branches, prefix=prefixes, delimiter=st.sampled_from(["", "/"]), amount=st.integers(1, 4))
    def uncommitted(self, name: str, prefix: str, delimiter: str, amount: int) -> None:
        found, after = [], ""
        while True:
            page = self.branch(name).diff(prefix, delimiter=delimiter, after=after, amount=amount)
            found += [item.path if isinstance(item, CommonPrefix) else (item.path, item.type) for item in page.results]
            after = page.next_offset
            if not page.has_more:
                break
        differing = changes(self.trees[self.heads[name]], self.staged[name])
        if delimiter:
            assert [item if isinstance(item, str) else item[0] for item in found] == common_prefixes(
                dict.fromkeys(differing, ""), prefix, ""
            )
        else:
            assert found == sorted(
                ((path, kind) for path, kind in differing.items() if path.startswith(prefix)),
                key=lambda item: item[0].encode(),
            )

    @rule(name=branches, path=paths)
    def stat(self, name: str, path: str) -> None:
        for ref, state in ((name, self.staged[name]), (f"{name}@", self.trees[self.heads[name]])):
            if path in state:
                assert self.repository.ref(ref).stat(path).checksum == state[path]
            else:
                with pytest.raises(KeyError):
                    self.repository.ref(ref).stat(path)

    @rule(left=branches, right=branches)
    def two_dot(self, left: str, right: str) -> None:
        for ref, state in ((right, self.trees[self.heads[right]]), (f"{right}$", self.staged[right])):
            found = self.repository.diff(left, ref, three_dots=False, amount=1000).results
            assert {item.path: item.type for item in found} == changes(self.trees[self.heads[left]], state)

    @invariant()
    def states_are_those_of_the_model(self) -> None:
        for name, staged in getattr(self, "staged", {}).items():
            assert state_of(self.repository, name) == staged
            assert state_of(self.repository, f"{name}@") == self.trees[self.heads[name]]


Versions.TestCase.settings = settings(max_examples=examples(4, 12), stateful_step_count=25, deadline=None)
TestVersions = Versions.TestCase


@pytest.mark.usefixtures("processor")
@pytest.mark.sample(1)
@pytest.mark.parametrize("seed", range(4))
def test_thousands_of_random_merges_are_right_or_refused(seed: int) -> None:
    """Four keys and three contents, so that the same bytes often lie under other paths."""
    chance = np.random.default_rng(seed)
    context = new_repository().context
    some = ["a", "b", "c", "d"]
    for _ in range(examples(60, 250)):
        base, ours, theirs = (random_state(chance, some) for _ in range(3))
        trees = [written(context, state) for state in (base, ours, theirs)]
        expected = merged(base, ours, theirs, None)
        if expected is None:
            with pytest.raises(MergeConflict):
                merge_trees(context, *trees)
        else:
            batches = scan(context.ranges, context.index(merge_trees(context, *trees)))
            rows = [row for batch in batches for row in entries_of(batch)]
            assert {row.path: row.checksum for row in rows} == expected


def written(context: RepositoryContext, state: State) -> str:
    """The tree of a state."""
    batch = batch_of([entry(path, state[path]) for path in sorted(state)])
    return write(context.ranges, [batch], SMALL).id


def random_state(chance: np.random.Generator, some: list[str]) -> State:
    """Some of the paths, with any content."""
    return {path: "123"[chance.integers(3)] for path in some if chance.random() < 0.7}
