"""Letting go of manifests whose rows are to be purged: commits of the past lose them, what is in use keeps them.

| named by | |
|---|---|
| a branch, with what is staged | stays: its rows are deleted there |
| a tag | stays, until the tag is deleted |
| the merge base of two branches | stays: without it they could not be merged |
| other commits | is let go: who asks there gets `ref_collected` |
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import suppress
from itertools import combinations

from millpond.errors import Invalid
from millpond.kernel.space import Transaction
from millpond.kernel.steps import step
from millpond.maps.model.definition import MapDefinition, folder_name
from millpond.maps.model.keyspaces import NAMED
from millpond.refs.changes import StateChange, commit_changes
from millpond.refs.face import MAIN
from millpond.refs.states import RefStates
from millpond.versions.collect import Marked
from millpond.versions.commits import Message
from millpond.versions.merges import common_base

__all__ = ("let_go",)


def let_go(states: RefStates, definition: MapDefinition, manifests: Collection[str]) -> dict[str, str]:
    """Let go of those manifests of a map that only commits of the past name; the others, with who names each.

    Raises: `Corrupt`, `NotFound` when a commit cannot be read: then all stay.
    """
    states.record()
    _record_fold(states, definition, manifests)
    site, folder = states.repository.site, folder_name(definition)
    keys = [NAMED.pack(folder, id_) for id_ in sorted(manifests)]
    with site.space.read() as tx:
        rows = {key: tx.get(key) for key in keys}
    holders: dict[str, str] = {}
    for expression, words in _in_use(states):  # later than the rows: what was named in between has another mark
        state = states.map(expression, definition.name)
        if state is not None and state.folder == folder and state.manifest in manifests:
            holders.setdefault(state.manifest, words)
    retained = {NAMED.pack(folder, id_) for id_ in holders}

    def act(tx: Transaction) -> None:
        for key, row in rows.items():
            if row is not None and key not in retained and tx.get(key) == row:
                tx.delete(key)

    site.space.write(act)
    step("refs.let_go")
    return holders


def _record_fold(states: RefStates, definition: MapDefinition, manifests: Collection[str]) -> None:
    """Let the head commit of `main` name the fold that its map is by now, where it names one of the manifests."""
    entry, head = states.map(f"{MAIN}@", definition.name), states.layers_for(definition).head().manifest
    if entry is None or head is None or entry.manifest not in manifests or entry.version != head.shard_version:
        return
    if entry.manifest != head.id:
        words = Message(f"Purge {definition.name}")
        commit_changes(states.tree(words), MAIN, [StateChange(entry, entry.with_manifest(head))])


def _in_use(states: RefStates) -> Iterator[tuple[str, str]]:
    """The refs whose states are in use, and what is to be done there."""
    site = states.repository.site
    marked = Marked.read(site)
    for name in sorted(marked.branches):
        for expression in (name, f"{name}@"):
            yield expression, f"branch {name}: delete them there with --branch {name} --now, or delete the branch"
    for id_ in sorted(marked.tags):
        yield id_, f"a tag of commit {id_[:12]}: delete the tag"
    heads = {name: record.commit_id for name, record in sorted(marked.branches.items())}
    for (left, one_head), (right, other_head) in combinations(heads.items(), 2):
        with suppress(Invalid):  # they have none
            base = common_base(site, one_head, other_head)
            yield base.id, f"the merge base of {left} and {right}: merge or delete one of them"
