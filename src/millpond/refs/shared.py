"""The layers of a map that several branches have: below them lies what both began with."""

from __future__ import annotations

from contextlib import suppress
from itertools import islice, takewhile
from typing import TYPE_CHECKING

from millpond.errors import Corrupt, NotFound
from millpond.maps.model.definition import folder_name
from millpond.maps.model.keyspaces import NAMED
from millpond.refs.face import MAIN
from millpond.refs.layers import manifest_of
from millpond.versions.keyspaces import BRANCH

if TYPE_CHECKING:
    from millpond.maps.snapshots.manifest import SnapshotManifest
    from millpond.refs.states import RefStates

__all__ = ("shared_layers",)

BRANCHES_MAX = 16
"""The branches whose states folds of an aggregate look at; what more of them share may be folded."""


def shared_layers(states: RefStates, manifest: SnapshotManifest, branch: str = MAIN) -> int:
    """The number of the oldest layers of a state of a map, on a branch, that another branch has, too."""
    folder = f"{manifest.map}.{manifest.incarnation}"
    with states.loading.space.read() as tx:
        if next(iter(tx.keys(NAMED[folder].range())), None) is None:
            return 0  # no commit has the map
    context = states.repository.context
    with context.space.read() as tx:
        names = [str(BRANCH[context.uid].unpack(key)[0]) for key in tx.keys(BRANCH[context.uid].range())]
    others = islice((name for name in names if name != branch), BRANCHES_MAX)
    return max((_in_common(manifest, _newest(states, name, manifest.map, folder)) for name in others), default=0)


def _newest(states: RefStates, branch: str, map: str, folder: str) -> SnapshotManifest | None:
    """The state of a map, by its files' folder, on a branch; None where it is not, or cannot be read."""
    with suppress(NotFound, Corrupt):
        if branch == MAIN:
            layers = states.loading.layers_of(map)
            return layers.head().manifest if layers and folder_name(layers.definition) == folder else None
        entry = states.map(branch, map)
        if entry is not None and entry.folder == folder:
            return manifest_of(states.layers_for(entry.definition), entry, branch)
    return None


def _in_common(left: SnapshotManifest, right: SnapshotManifest | None) -> int:
    layers = () if right is None else right.layers
    pairs = zip(reversed(left.layers), reversed(layers), strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
