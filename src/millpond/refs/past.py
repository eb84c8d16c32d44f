"""Questions to a map at a ref as it was known at earlier moments: by the commits of the ref.

**Rule**: at a moment the map is what it was in the last commit by then of the ref's history, which goes from its commit
back along first parents. What a merge brought is known from the merge on; what is staged never was; on `main` a load
counts from its own moment on. So a row is never seen before the commit that brought it to the history.

Invariants:
* the moments of a history never fall, whatever clocks said: a change counts not before the one that it follows. Commits
  that do not change the map are none: the first of a pond is younger than the loads that are recorded on it;
* a commit tells its moment in milliseconds; one that does not counts from the end of its second on;
* a commit that has no such map, or one of that name with other files, knows nothing of it.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from millpond.maps.layered.past import History, Past
from millpond.maps.model.definition import folder_name
from millpond.refs.changes import moment_of
from millpond.refs.layers import RefLayers
from millpond.refs.map_entries import MapEntry
from millpond.refs.states import RefStates
from millpond.versions.graph.commits import Commit, get_commit

__all__ = ("RefPast",)


class _State(NamedTuple):
    """The state of the map in a commit, and since when; `begins`: nothing was known before that."""

    parent: str
    tree: str = ""
    manifest: str = ""
    moment_ms: int = 0
    begins: bool = True


class RefPast(Past):
    """The past of a map at a ref, by the rule above."""

    def __init__(self, layers: RefLayers, states: RefStates, ref: str) -> None:
        super().__init__(layers)
        self._states, self._ref = states, ref
        self._commits: dict[str, _State] = {}

    def mark(self) -> str:
        """The commit of the ref.

        Raises: `NotFound` when the ref is gone.
        """
        return self._states.resolve(self._ref)

    def history(self, until: str | None = None) -> History:
        """The history of the ref as it is now, or of a commit.

        Raises: `NotFound` when the ref is gone.
        """
        id_ = self.mark() if until is None else until
        self._read_back(id_)
        line = []
        while id_:
            line.append((id_, self._commits[id_]))
            id_ = line[-1][1].parent
        line.reverse()
        changed = [
            here for before, here in pairwise([("", _State("")), *line]) if here[1].manifest != before[1].manifest
        ]  # fmt: skip
        moments = np.array([state.moment_ms for _, state in changed], np.int64)
        manifests, commits = [state.manifest for _, state in changed], tuple(id_ for id_, _ in changed)
        whole = not changed or changed[0][1].begins
        return History(self._layers.definition.name, moments, manifests, whole, commits)

    def _read_back(self, id_: str) -> None:
        """Read the commits of a history that were not read yet."""
        context = self._states.repository.context
        unread = []
        with context.space.read() as tx:
            while id_ and id_ not in self._commits:
                unread.append(get_commit(tx, context.graph.commits, id_))
                id_ = next(iter(unread[-1].parents), "")
        for commit in reversed(unread):
            self._commits[commit.id] = self._state_in(commit)

    def _state_in(self, commit: Commit) -> _State:
        parent = next(iter(commit.parents), "")
        before = self._commits.get(parent, _State(""))
        if before.tree == commit.tree:
            return before._replace(parent=parent)
        state = self._states.map(commit.id, self._layers.definition.name)
        manifest = self._manifest(state)
        if manifest == before.manifest:
            return before._replace(parent=parent, tree=commit.tree)
        moment = max(moment_of(commit), before.moment_ms)
        return _State(parent, commit.tree, manifest, moment, _begins(commit, state))

    def _manifest(self, state: MapEntry | None) -> str:
        return "" if state is None or state.folder != folder_name(self._layers.definition) else state.manifest


def _begins(commit: Commit, state: MapEntry | None) -> bool:
    """True unless the commit recorded a load on `main`, and those before it were forgotten by then."""
    return state is None or state.version <= 1 or "position" not in commit.metadata
