"""The history of a simulated pond: what was proposed to it, and what its maps hold after each entry of its log.

Invariants:
* The log only grows: an entry that was seen once stays as it is.
* Every load in it was proposed, and none is in it twice. What was acknowledged is in it, but for a load that brought
  nothing new: all its parts are the same as parts of other loads.
* The rows of a map are those of the brute-force model after some entry: nothing of a load is visible without the rest.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from millpond.maps.model.definition import MapDefinition
from tests.harness.models import MapModel, bits_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from millpond.maps.log.log import Entry
    from tests.harness.models import Row

__all__ = ("History", "Proposal")

Proposal = dict[str, list[list["Row"]]]
"""The parts of a load, by map; addresses are unique within a part."""


@dataclass(slots=True)
class History:
    """The log as the simulation saw it grow, and the models of all maps at each of its positions."""

    proposed: dict[str, Proposal] = field(default_factory=dict)
    entries: list[Entry] = field(default_factory=list)
    models: list[dict[str, MapModel]] = field(default_factory=lambda: [{}])
    loads: set[str] = field(default_factory=set)
    repeated: set[str] = field(default_factory=set)

    @property
    def position(self) -> int:
        """The last position that was seen."""
        return len(self.entries)

    def follow(self, first: int, entries: Iterable[Entry]) -> None:
        """Take the log of the primary, from the first position that it retains."""
        found, known = list(entries), self.position - first + 1
        assert known >= 0, f"the log lost the entries {self.position + 1} to {first - 1} before they were seen"
        assert found[:known] == self.entries[first - 1 :], "the log lost or changed an entry"
        for entry in found[known:]:
            self.models.append(self._after(entry, copy.deepcopy(self.models[-1])))
            self.entries.append(entry)

    def acknowledge(self, loads: set[str]) -> None:
        """Check that loads, all that were acknowledged until now, are in the log or brought nothing new."""
        for load in sorted(loads - self.loads - self.repeated):
            known = [
                _content(part) in self.models[-1][name].parts
                for name, parts in self.proposed[load].items() for part in parts
            ]  # fmt: skip
            assert all(known), f"{load} was acknowledged, and is lost"
            self.repeated.add(load)

    def _after(self, entry: Entry, models: dict[str, MapModel]) -> dict[str, MapModel]:
        name = entry.maps[0]
        if entry.kind in ("create", "alter"):
            definition = MapDefinition.from_dict(entry.body["definition"])
            model = models.setdefault(name, MapModel(definition.kind)) if entry.kind == "alter" else None
            models[name] = model or MapModel(definition.kind)
            models[name].overwrite = definition.overwrite
        elif entry.kind == "drop":
            del models[name]
        elif entry.kind == "load":
            self._load(entry.body["load"], models)
        elif entry.kind == "condense":
            models[name].condense(entry.body["before"])
        else:
            assert entry.kind == "retain", entry.kind
            models[name].retain(entry.body["before"])
        return models

    def _load(self, load: str, models: dict[str, MapModel]) -> None:
        assert load in self.proposed, f"{load} was never proposed"
        assert load not in self.loads, f"{load} was entered twice"
        self.loads.add(load)
        for name, parts in self.proposed[load].items():
            models[name].load([(_content(part), part) for part in parts])


def _content(part: list[Row]) -> object:
    """The content of a part: the same for parts with the same rows."""
    return bits_of(sorted(part))
