"""Branches of maps in a pipeline: made, loaded on, read and merged, each once, and left as they are when that fails.

    branch ─▶ load ─▶ check ─▶ merge          each says in its output which `commit` the branch was at
                        └─ fails: the branch stays

Invariants:
* a branch with changes that were not merged is no beginning: it is refused, or made anew where the step says so;
* a query reads a branch at one commit, and a check says which;
* a merge brings the commit that the last step of the run on the branch left, or read. When the branch moved since,
  nobody checked what is there, and the merge is refused. That commit comes once, however often the merge is tried.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

from millpond.errors import AlreadyExists, Invalid, NotFound
from millpond.maps.model.definition import Store
from millpond.pipelines.attempt_threads import while_it_lasts
from millpond.pipelines.reads import head_of, map_of
from millpond.pipelines.requests import Target
from millpond.pipelines.step import Failed
from millpond.pipelines.targets import map_for_load
from millpond.refs.face import MAIN, check_no_main, sharded_map

if TYPE_CHECKING:
    from millpond.client.pond import RemotePond
    from millpond.maps.protocols import PondLike
    from millpond.pipelines.plan import Plan
    from millpond.pond import Pond
    from millpond.refs.protocols import RefsLike
    from millpond.versions.graph.commits import Commit

__all__ = ("begin_branch", "branch_to_load", "checked_head", "exceeded", "has_branches", "load_on",
           "merge_branch", "on_branch", "refuse_sharded", "stays", "whole_branch")  # fmt: skip

SHOWN = 5
"""The rows, or keys, that a report names."""


def has_branches(plan: Plan) -> bool:
    """True for a plan whose steps make, load on, or merge branches."""
    return any(step.kind in ("branch", "merge") or "branch" in step.inputs for step in plan.steps)


def begin_branch(pond: Pond | RemotePond, name: str, source: str, *, anew: bool) -> dict[str, Any]:
    """Make a branch at a ref; one without changes of its own, or `anew`, is put there.

    Raises: `Failed`, `branch-unmerged`.
    """
    refs = pond.refs
    check_no_main(name)
    try:
        refs.create_branch(name, source)
    except AlreadyExists:
        own = [] if anew else _unmerged(refs, name, source)
        if own:
            shown = "; ".join(own)
            raise Failed("branch-unmerged", f"the branch {name} has changes that were not merged: {shown}; merge or "
                         "delete it, or say anew=True", {"branch": name, "first": own}) from None  # fmt: skip
        refs.reset(name, source)
    return {"branch": name, "commit": head_of(refs, name).id}


def _unmerged(refs: RefsLike, name: str, source: str) -> list[str]:
    """The first changes of a branch that neither its source nor `main` has."""
    for other in dict.fromkeys((source, MAIN)):
        rows = refs.diff(other, head_of(refs, name).id, three_dots=True, limit=SHOWN).to_pylist()
        if not rows:
            return []
    return [" ".join(str(value) for value in row.values() if value is not None) for row in rows]


def branch_to_load(pond: Pond | RemotePond, name: str, map: str) -> None:
    """Let a branch be ready for a load of a map: it is made when it is missing; one without changes of its own is
    brought up to `main`.

    Raises: `Invalid` for `main`, a map in a shard, and a pond that has no branches.
    """
    refs = pond.refs
    check_no_main(name)
    refuse_sharded(pond, map)
    with suppress(AlreadyExists):
        refs.create_branch(name)
    if not _unmerged(refs, name, MAIN):
        _without_news(lambda: refs.merge(MAIN, name), "branch_dirty")  # what is staged goes first


def load_on(pond: Pond | RemotePond, branch: str, key: str, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Load files on a branch, once under the key.

    Raises: as `branch_to_load` and `BranchPond.load_files`.
    """
    branch_to_load(pond, branch, inputs["map"])
    target = Target(kind=inputs["kind"], value=inputs["value"])
    with while_it_lasts() as look, map_for_load(pond, inputs["map"], target, branch):
        result = pond.branch(branch).load_files(
            inputs["files"], inputs["map"], columns=inputs.get("columns"), written=inputs.get("format"),
            max_rejects=inputs["max_rejects"], source=key, load_id=key, advance=look,
        )  # fmt: skip
    return {
        "map": inputs["map"], "load": key, "rows": result.rows, "rejected": result.rejected,
        "position": result.position, "branch": branch, "commit": result.commit or head_of(pond.refs, branch).id,
    }  # fmt: skip


def refuse_sharded(pond: PondLike, name: str) -> None:
    """Refuse a map that has no branches.

    Raises: `Invalid`, kind `refs_store`.
    """
    with suppress(NotFound):
        if pond.map(name).definition.store is Store.SHARD:
            raise sharded_map(name)


def _without_news(merge: Any, *kinds: str) -> Commit | None:
    """The commit of a merge; None when it brings nothing, or is refused as one of some kinds."""
    try:
        return cast("Commit", merge())
    except Invalid as error:
        if error.kind not in ("no_changes", *kinds):
            raise
    return None


def on_branch(kind: str, inputs: dict[str, Any], branch: str) -> dict[str, Any]:
    """The inputs of a step of a run that has a branch instead of `main`: its loads, its maps, and its merges.

    Raises: `Invalid` for a step that changes `main` by itself.
    """
    if kind in ("condense", "retain"):
        raise Invalid("the step works on main alone, and the run on a branch", kind="pipeline_value", step=kind,
                      branch=branch, hint="give it a condition, or run without a branch")  # fmt: skip
    of_map = {"load": "branch", "branch": "from", "merge": "into"}.get(kind)
    if of_map is not None and inputs.get(of_map) in (None, MAIN):
        return {**inputs, of_map: branch}

    def placed(value: Any) -> Any:
        return value if isinstance(value, Mapping) else {"map": str(value), "branch": branch, "commit": branch}

    if kind == "check":
        return {**inputs, "maps": [placed(value) for value in inputs["maps"]]}
    return {**inputs, "map": placed(inputs["map"])} if kind == "enrich" else inputs


def whole_branch(pond: Pond | RemotePond, name: str, *, merged: bool) -> str:
    """Make a branch of `main` when it is missing; or merge all that it has: the commit, if there was something.

    Raises: as `Refs.merge`.
    """
    refs = pond.refs
    check_no_main(name)
    if merged:
        commit = _without_news(lambda: refs.merge(name, MAIN, message=f"Merge '{name}' into '{MAIN}'"))
        return "" if commit is None else commit.id
    with suppress(AlreadyExists):
        refs.create_branch(name)
    return ""


def exceeded(pond: Pond | RemotePond, values: list[Any], limits: Mapping[str, Any]) -> list[str]:
    """The limits of a check that the first of some maps and tables does not keep, in words.

    Raises: `Invalid` when there is none, or its rows are not told.
    """
    value = values[0] if values else {"path": ""}
    is_of_map = not isinstance(value, Mapping) or "map" in value
    rows = map_of(pond, value).info()["rows"] if is_of_map else value.get("rows")
    if not isinstance(rows, int):
        raise Invalid("limits are of a map, or of a table that says its rows", kind="pipeline_value",
                      limits=", ".join(limits), hint="check a load, or the output of sql or enrich")  # fmt: skip
    words = []
    least, most, changes = (limits.get(name) for name in ("rows_min", "rows_max", "changes_max"))
    if least is not None and rows < least:
        words.append(f"{rows} rows, less than {least}")
    if most is not None and rows > most:
        words.append(f"{rows} rows, more than {most}")
    if changes is not None:
        if not isinstance(value, Mapping) or "ref" not in value:
            raise Invalid("changes are counted on a branch", kind="pipeline_value", map=value,
                          hint="load on a branch, or leave out changes_max")  # fmt: skip
        words += _changed_too_much(pond, value, changes)
    return words


def _changed_too_much(pond: Pond | RemotePond, value: Mapping[str, Any], most: float) -> list[str]:
    """Words about a branch that changes more rows than a number, or than a share of those that `main` has, if any."""
    before, limit, words = 0, most, f"more than {most} rows change"
    if isinstance(most, float):
        with suppress(NotFound):
            before = int(pond.map(value["map"]).info()["rows"])
        if not before:
            return []
        limit, words = most * before, f"more than {most:.10g} of the {before} rows of main change"
    changed = pond.refs.diff(MAIN, value["ref"], map=value["map"], three_dots=True, limit=int(limit) + 2).num_rows
    return [words] if (changed / before if before else changed) > most else []


def stays(about: Mapping[str, Any]) -> str:
    """Words about the branch of what failed."""
    name = about.get("branch")
    return f"; the branch {name} stays: millpond diff pond/main...{name}" if name else ""


# -- merging ------------------------------------------------------------------------------------------


def checked_head(pond: Pond | RemotePond, branch: str, seen: list[Any]) -> str:
    """The commit that a branch is at: that which the last step of the run left there, or read.

    Raises: `Failed`, `branch-moved`, when it is another by now.
    """
    head, commits = head_of(pond.refs, branch).id, [*_commits(seen, branch)]
    if commits and commits[-1] != head:
        report = {"branch": branch, "commit": commits[-1], "head": head}
        raise Failed("branch-moved", f"the branch {branch} changed after the last step of this run on it; check it as "
                     f"it is{stays(report)}", report)  # fmt: skip
    return head


def _commits(value: Any, branch: str) -> Iterator[str]:
    if isinstance(value, list):
        for inner in value:
            yield from _commits(inner, branch)
    elif isinstance(value, Mapping):
        if value.get("branch") == branch and "commit" in value:
            yield value["commit"]
        yield from _commits(value.get("items", []), branch)


def merge_branch(
    pond: Pond | RemotePond, branch: str, commit: str, into: str, *, strategy: str, keep: bool
) -> dict[str, Any]:
    """Merge a commit of a branch into another branch, each map by key, once; without `keep` the branch goes then.

    Raises: `Failed`, `merge-conflict`, with the first keys.
    """
    from millpond.refs.merges import MapMergeConflict

    refs = pond.refs
    words = f"Merge '{branch}' into '{into}'"
    try:
        merged = _without_news(lambda: refs.merge(commit, into, message=words, strategy=strategy))
    except MapMergeConflict as error:
        keys = list(error.paths[:SHOWN])
        more = " …" if len(error.paths) > SHOWN else ""
        report = {"branch": branch, "into": into, "keys": keys}
        raise Failed("merge-conflict", f"both {branch} and {into} changed {', '.join(keys)}{more}{stays(report)}",
                     report) from None  # fmt: skip
    earlier = (own.id for own in refs.log(into, first_parent=True) if commit in own.parents)
    done = merged.id if merged is not None else next(earlier, "")
    if not keep:
        with suppress(NotFound):
            if head_of(refs, branch).id == commit:
                refs.delete_branch(branch)
    return {"into": into, "merged": branch, "commit": done}
