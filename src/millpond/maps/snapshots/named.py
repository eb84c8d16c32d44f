"""The manifests of maps that somebody above names, and keeps: commits and branches do."""

from __future__ import annotations

from millpond.kernel.space import ReadTransaction
from millpond.maps.model.keyspaces import NAMED

__all__ = ("named_everywhere", "named_in")


def named_in(tx: ReadTransaction, folder: str) -> set[str]:
    """The ids of the manifests that are named, of the map whose files lie in this folder; it may be dropped."""
    return {str(NAMED.unpack(key)[1]) for key in tx.keys(NAMED[folder].range())}


def named_everywhere(tx: ReadTransaction) -> dict[str, set[str]]:
    """The ids of all manifests that are named, by the folder of their map, which need not be on `main`."""
    named = dict[str, set[str]]()
    for key in tx.keys(NAMED.range()):
        folder, manifest = map(str, NAMED.unpack(key))
        named.setdefault(folder, set()).add(manifest)
    return named
