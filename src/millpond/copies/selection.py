"""The selection of what is copied of a pond: all of it, or some maps, with runs of workflows or without.

What cannot be copied is refused before anything is made at the target.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from millpond.errors import Invalid
from millpond.maps.loads.pond_folder import StorageFolder
from millpond.maps.model.definition import MapDefinition, Store
from millpond.nodes.folder_content import RUNS, lying_elsewhere, runs_elsewhere
from millpond.pond import Pond

if TYPE_CHECKING:
    from millpond.client.pond import RemotePond

__all__ = ("Selection",)


@dataclass(frozen=True, slots=True)
class Selection:
    """The maps by name, or none of them for the whole pond; and if runs of workflows may stay behind."""

    maps: tuple[str, ...]
    without_runs: bool

    def definitions(self, source: Pond | RemotePond) -> list[MapDefinition]:
        """The definitions of the maps.

        Raises: `NotFound`.
        """
        return [source.catalogue.find(name) for name in self.maps] or list(source.catalogue.list())

    def refuse_shards(self, definitions: Sequence[MapDefinition], pond: str) -> None:
        """Refuse maps in shards.

        Raises: `Invalid`, kind `copy_unsupported`.
        """
        if sharded := _sharded(definitions):
            raise Invalid(
                "maps in shards are not copied", kind="copy_unsupported", part="shards", pond=pond,
                maps=", ".join(sharded), hint=f"put them in layers first: millpond alter {sharded[0]} --store layers; "
                "or copy the whole pond from a folder or a node to a new folder",
            )  # fmt: skip

    def refuse_parts(self, parts: Sequence[str], pond: str) -> None:
        """Refuse a pond with these parts, when it is copied whole with them.

        Raises: `Invalid`, kind `copy_unsupported`.
        """
        runs = [part for part in parts if part.startswith(RUNS)]
        others = ", ".join(part for part in parts if part not in runs)
        if others and not self.maps:
            raise Invalid(
                "a part of the pond is not copied", kind="copy_unsupported", part=others, pond=pond,
                hint="copy it from its folder or bucket; maps by name, where it lies in several places: maps=['NAME']",
            )  # fmt: skip
        if runs and not self.maps and not self.without_runs:
            raise Invalid(
                "runs of workflows are not copied", kind="copy_unsupported", part=", ".join(runs), pond=pond,
                hint="leave them behind: without_runs=True; runs in the space of a pond, or in its bucket, are copied",
            )  # fmt: skip

    def needs_backup(self, definitions: Sequence[MapDefinition]) -> bool:
        """True for a pond with what goes by a backup only."""
        return not self.maps and bool(_sharded(definitions))

    def refuse(self, source: Pond, definitions: Sequence[MapDefinition]) -> None:
        """Refuse a pond with what cannot be copied.

        Raises: as `refuse_shards`, `refuse_parts`.
        """
        self.refuse_shards(definitions, source.location.address)
        runs = runs_elsewhere(source.folder) if isinstance(source.location, StorageFolder) else []
        self.refuse_parts(lying_elsewhere(source) + runs, source.location.address)


def _sharded(definitions: Sequence[MapDefinition]) -> list[str]:
    """The names of those maps that lie in shards."""
    return [definition.name for definition in definitions if definition.store is Store.SHARD]
