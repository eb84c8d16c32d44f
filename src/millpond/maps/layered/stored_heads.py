"""The heads of layered maps at one position of the log, and the maps that only commits and branches have: what a backup
begins with to copy their layers.

The file is an Arrow stream of the form of a clone's state: the name of a map, and its `StoredLayers` as JSON.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from millpond.json_forms import JsonForm
from millpond.maps.layered.history import Change
from millpond.maps.log.clone import read_rows, write_rows

__all__ = ("StoredLayers", "read_heads", "write_heads")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredLayers:
    """The snapshots of a layered map that are copied, by their ids: the first of `manifests` is the head, others are
    those of its history, `changes`; `rows` and `bytes` are of the head. Commits and branches name those that are
    `named`, also of a map without a head: one that was dropped, renamed or put in a shard, or that only a branch has.
    """

    map: str
    incarnation: str
    manifests: tuple[str, ...]
    rows: int
    bytes: int
    changes: tuple[Change, ...] = ()
    named: tuple[str, ...] = ()

    @property
    def folder(self) -> str:
        """The name of the folder that they lie in."""
        return f"{self.map}.{self.incarnation}"

    @property
    def snapshots(self) -> tuple[str, ...]:
        """All of them, each once."""
        return tuple(dict.fromkeys((*self.manifests, *self.named)))


_FORM = JsonForm(StoredLayers)


def write_heads(file: Path, heads: Iterable[StoredLayers]) -> None:
    """Write heads."""
    write_rows(file, ((head.map.encode(), _FORM.encode(head)) for head in heads))


def read_heads(file: Path) -> tuple[StoredLayers, ...]:
    """The heads in a file.

    Raises: `Corrupt` when it cannot be read.
    """
    return tuple(_FORM.decode(value) for _, value in read_rows(file))
