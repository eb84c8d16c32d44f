"""The changes of maps on `main` that no commit says yet: one step for each entry of the log, and what its commit says.

Invariants:
* a step has the definition that its map had then: an alteration tells of the one before it;
* a map that was renamed is followed to its old name, which goes in the first step that has the new one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from millpond.maps.layered.history import Change
from millpond.maps.model.alteration import alteration
from millpond.maps.model.definition import MapDefinition
from millpond.refs.changes import Tree, dated
from millpond.refs.map_entries import MapEntry
from millpond.times.instants import instant_text
from millpond.versions.commits import Message
from millpond.versions.graph.commits import Commit

__all__ = ("RENAMED", "Step", "rows_in", "rows_of", "unrecorded")

STEPS_MAX = 100
"""The commits that are recorded at once."""
RENAMED = "renamed_from"
"""The metadata of the commit of a renaming."""
_ABOUT = ("where", "rows_removed", "before", "copied_from")


@dataclass(slots=True)
class Step:
    """A change of some maps on `main`: their states after it, by name, None for one that is gone; and its `changes`.

    `acts`: what was done, in words, each with the name of its map. `renamed`: the former name of one.
    """

    moment_ms: int
    states: dict[str, MapEntry | None] = field(default_factory=dict)
    changes: dict[str, Change] = field(default_factory=dict)
    acts: list[tuple[str, str]] = field(default_factory=list)
    renamed: str = ""

    def message(self) -> Message:
        """The words of its commit."""
        changes = self.changes.values()
        sources = sorted({change.source for change in changes if change.source})
        text = _words(self.acts) + (f" from {', '.join(sources)}" if sources else "")
        about = {name: str(change.facts[name]) for change in changes for name in _ABOUT if name in change.facts}
        loaded = {name: change.rows for name, change in self.changes.items() if change.kind == "load"}
        about |= rows_in(loaded) if loaded else {}
        about |= {RENAMED: self.renamed} if self.renamed else {}
        if changes:
            about["position"] = str(max(change.position for change in changes))
        about |= {"source": ", ".join(sources)} if sources else {}
        return dated(Message(text, metadata=about), self.moment_ms)


def rows_in(rows: Mapping[str, int]) -> dict[str, str]:
    """The metadata of a commit that says how many rows came into its maps; of several, into each."""
    several = {f"rows.{name}": str(count) for name, count in rows.items()} if len(rows) > 1 else {}
    return {"rows": str(sum(rows.values())), **several}


def rows_of(commit: Commit, name: str) -> int | None:
    """The rows that came into a map, or None where the commit does not say it."""
    rows = commit.metadata.get(f"rows.{name}", commit.metadata.get("rows"))
    return None if rows is None else int(rows)


def _words(acts: Sequence[tuple[str, str]]) -> str:
    """`Load planes, weather`; of several acts the one behind the other."""
    kinds: dict[str, list[str]] = {}
    for act, what in acts:
        kinds.setdefault(act, []).append(what)
    text = "; ".join(f"{act} {', '.join(sorted(set(what)))}" for act, what in kinds.items())
    return text[:1].upper() + text[1:]


def _act(name: str, change: Change, before: MapDefinition, after: MapDefinition) -> tuple[str, str]:
    """The act of a change, and what it was done to."""
    facts = change.facts
    if change.kind == "alter":
        return "alter", ": ".join(filter(None, (name, alteration(before, after))))
    if RENAMED in facts:
        return "rename", f"{facts[RENAMED]} to {name}"
    if "copied_from" in facts:
        return "copy", f"{facts['copied_from']} to {name}"
    if "where" in facts:
        return change.kind, f"{name} where {facts['where']}"
    if "before" in facts:
        return change.kind, f"{name} before {instant_text(facts['before'])}"
    return change.kind, name


def unrecorded(
    tree: Tree, before: Mapping[str, MapEntry], heads: Mapping[str, MapEntry], history: Mapping[str, Sequence[Change]]
) -> list[Step]:  # fmt: skip
    """The steps since maps were what they were `before`, the oldest first; `heads` are those of now."""
    steps: dict[int, Step] = {}
    last = Step(tree.context.clock.now_ms())
    for name, entry in heads.items():
        recorded = before.get(name)
        if entry.same_state(recorded):
            continue
        if not _add(steps, entry, recorded, history[name], before):
            last.states[name] = entry
            last.acts.append(("create", name) if recorded is None else ("change", name))
    gone = set(before) - heads.keys() - {name for step in steps.values() for name in step.states}
    last.states |= dict.fromkeys(gone)
    last.acts += [("drop", name) for name in gone]
    ordered = [step for _, step in sorted(steps.items())] + ([last] if last.states else [])
    early, late = ordered[:-STEPS_MAX], ordered[-STEPS_MAX:]
    for step in reversed(early):  # what a later one says goes before
        late[0].states = {**step.states, **late[0].states}
    return late


def _add(
    steps: dict[int, Step], entry: MapEntry, recorded: MapEntry | None, changes: Sequence[Change],
    before: Mapping[str, MapEntry],
) -> bool:  # fmt: skip
    """Add the changes of a map since it was recorded; False when they do not tell all."""
    old = next((str(change.facts[RENAMED]) for change in reversed(changes) if change.facts.get(RENAMED) in before), "")
    renamed = recorded is None and old in before
    if renamed:
        recorded = before[old]
    elif recorded is not None and recorded.folder != entry.folder:
        recorded = None
    since = 0 if recorded is None else recorded.version
    after = entry.definition
    first = next((position for position, change in enumerate(changes) if change.version > since), len(changes))
    for change in reversed(changes[first:]):
        step = steps.setdefault(change.position, Step(change.moment_ms))
        step.states[entry.name] = MapEntry(after, change.manifest, change.version)
        step.changes[entry.name] = change
        former = change.facts.get("former")
        then = after
        if former is not None:
            then = replace(MapDefinition.from_dict(former), name=after.name, incarnation=after.incarnation)
        step.acts.append(_act(entry.name, change, then, after))
        after = then
        if renamed and change is changes[first]:
            step.states[old], step.renamed = None, old
    return bool(changes) and changes[-1].version == entry.version and changes[-1].version > since
