"""The place of a snapshot on nodes, in the form in which a job carries it to its tasks.

    {"nodes": ["http://n1:7433", "http://n2:7433"], "map": "m", "entry": 412, "subset": "", "branch": "", "ref": ""}

| field | | |
|---|---|---|
| `nodes` | the nodes of the pond, the primary first | |
| `map` | the map's name | |
| `entry` | the last entry of the log that shaped the map: another node may have the same rows | 0: not known |
| `subset` | the spec of its bounds, see `SnapshotBounds.spec` | empty: the whole map |
| `branch`, `ref` | the branch or the ref at which the map is | both empty: `main` |

A field that is missing has its default. One that is not known is refused, not ignored: it would say that another
snapshot is meant, and the reader would answer from the wrong one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from millpond.errors import Invalid
from millpond.json_forms import FormError, JsonForm
from millpond.maps.snapshots.manifest import SnapshotManifest

__all__ = ("SnapshotPin",)


@dataclass(frozen=True, slots=True)
class SnapshotPin:
    """The address of one snapshot of a map."""

    nodes: tuple[str, ...]
    map: str
    entry: int = 0
    subset: str = ""
    branch: str = ""
    ref: str = ""

    @property
    def at(self) -> tuple[tuple[str, str], ...]:
        """The branch or the ref, as queries name it."""
        return tuple((name, text) for name, text in (("branch", self.branch), ("ref", self.ref)) if text)

    def __post_init__(self) -> None:
        if not self.nodes or not self.map or self.entry < 0:
            raise Invalid(
                "a snapshot is found at a node, under the name of a map", kind="snapshot_pin",
                nodes=", ".join(self.nodes), map=self.map, entry=self.entry,
            )  # fmt: skip

    def of(self, manifest: SnapshotManifest) -> SnapshotPin:
        """The place of a snapshot of this map, which may be a subset."""
        return self if manifest.bounds is None else replace(self, subset=manifest.bounds.spec)

    def to_json(self) -> str:
        """The form above; the same place always gives the same text."""
        return _FORM.encode(self).decode()

    @classmethod
    def from_json(cls, text: str) -> SnapshotPin:
        """The place that `to_json` wrote.

        Raises: `Invalid` for any other text, naming what is wrong with it.
        """
        try:
            return _FORM.decode(text)
        except FormError as error:
            raise Invalid(
                "this is not the place of a snapshot", kind="snapshot_pin", text=text, reason=error,
                hint="plan the job again, with one version of Millpond everywhere",
            ) from None  # fmt: skip


_FORM = JsonForm(SnapshotPin)
