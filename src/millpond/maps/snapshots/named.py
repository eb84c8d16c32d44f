"""The manifests of a map that somebody above names, and keeps: commits and branches do."""

from __future__ import annotations

from millpond.kernel.space import ReadTransaction
from millpond.maps.model.keyspaces import NAMED

__all__ = ("named_in",)


def named_in(tx: ReadTransaction, folder: str) -> set[str]:
    """The ids of the manifests that are named, of the map whose files lie in this folder; it may be dropped."""
    return {str(NAMED.unpack(key)[1]) for key in tx.keys(NAMED[folder].range())}
