"""Manifests that stand in for others: a purge writes a state anew without the rows; commits go on to name the old one.

    ("maps", "stand in", folder of the map, manifest)    the manifest that counts instead, and its size, as JSON

Invariants:
* whoever reads the state of a map at a ref gets the manifest that counts;
* a manifest that stands in has no other that stands in for it: it takes over what the one before stood in for;
* a row is put in the write that names the new manifest, and names the old one no more; it stays as long as that.
"""

from __future__ import annotations

from dataclasses import dataclass

from millpond.json_forms import JsonForm
from millpond.kernel.space import ReadTransaction, Transaction
from millpond.maps.model.keyspaces import NAMED, STAND_IN

__all__ = ("StandIn", "forget_stand_ins", "put_stand_in", "stand_in_for")


@dataclass(frozen=True, slots=True)
class StandIn:
    """A manifest that stands in for another, and the bytes of its file."""

    manifest: str
    size: int


_FORM = JsonForm(StandIn)


def stand_in_for(tx: ReadTransaction, folder: str, manifest: str) -> StandIn | None:
    """The manifest that counts in place of another; None where that one counts."""
    row = tx.get(STAND_IN.pack(folder, manifest))
    return None if row is None else _FORM.decode(row)


def put_stand_in(tx: Transaction, folder: str, manifest: str, new: StandIn, mark: str) -> None:
    """Let a manifest stand in for another, and be named in its place. `mark`: another one each time."""
    row = _FORM.encode(new)
    for key, earlier in list(tx.scan(STAND_IN[folder].range())):
        if _FORM.decode(earlier).manifest == manifest:
            tx.put(key, row)
    tx.put(STAND_IN.pack(folder, manifest), row)
    tx.put(NAMED.pack(folder, new.manifest), mark.encode())
    tx.delete(NAMED.pack(folder, manifest))


def forget_stand_ins(tx: Transaction) -> None:
    """Forget what stands in and is not named any more."""
    for key, row in list(tx.scan(STAND_IN.range())):
        folder, _ = STAND_IN.unpack(key)
        if tx.get(NAMED.pack(folder, _FORM.decode(row).manifest)) is None:
            tx.delete(key)
