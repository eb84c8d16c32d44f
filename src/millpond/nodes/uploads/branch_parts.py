"""Parts that were sent for maps on a branch: they become a layer of each map, which the load enters there."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from millpond.errors import Conflict
from millpond.maps.loads.layered_load import layer_of_parts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from millpond.maps.loads.load import LoadResult
    from millpond.maps.loads.loading import Loading
    from millpond.maps.parts.part import PartFile
    from millpond.refs.loads import BranchLoad
    from millpond.refs.pond import BranchPond

__all__ = ("OnBranch", "enter_parts")


@dataclass(frozen=True, slots=True)
class OnBranch:
    """The branch of a load; the rest as in `BranchLoad`."""

    pond: BranchPond
    commit: bool = True
    again: bool = False
    drawn: bool = False


def enter_parts(pond: BranchPond, parts: Sequence[PartFile], load: BranchLoad, loading: Loading) -> LoadResult:
    """Enter parts as layers of their maps on a branch.

    Raises: `Corrupt` for a damaged part; `Conflict`, kind `map_incarnation`; as `BranchLoad.enter`.
    """
    began = loading.clock.monotonic()
    of_map: dict[str, list[PartFile]] = {}
    for part in parts:
        of_map.setdefault(part.manifest.map, []).append(part)
    with ExitStack() as held:
        written = []
        for name, sent in of_map.items():
            layers = pond.map(name).rows.layers
            if any(part.manifest.incarnation != layers.definition.incarnation for part in sent):
                raise Conflict(
                    "the part was written for an earlier map of this name", kind="map_incarnation", map=name,
                    branch=pond.ref, hint="write the rows again",
                )  # fmt: skip
            for part in sent:
                loading.loads.accepted.verify(part.file, layers.definition)
            held.enter_context(layers.loading())
            layer = layer_of_parts(layers, sent)
            written += [] if layer is None else [layer]
        result = load.enter(written)
    return replace(result, seconds=loading.clock.monotonic() - began)
