"""Backups that have rows which were purged elsewhere: a purge names them, and they stay as they are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from millpond.maps.loads.deletion import DeleteReport, rows_held
from millpond.maps.model.definition import MapDefinition, folder_name
from millpond.maps.predicates.predicate import predicate
from millpond.nodes.backups.layout import list_backups
from millpond.nodes.backups.stored_layers import layers_below
from millpond.stores.objects import open_objects

__all__ = ("naming_backups",)

_WAY_OUT = "'millpond backup create PLACE --full', then 'millpond backup prune PLACE --keep 1'"


def naming_backups(report: DeleteReport, definition: MapDefinition, where: str, location: str) -> DeleteReport:
    """The report of a purge, with the backups in a place that may have such rows among what is `left`; without a place
    it stays as it is.

    Raises: `Unavailable`, `Denied`, when the place cannot be read; `Corrupt`, naming the file.
    """
    if not location:
        return report
    left = (*report.left, *_backups(definition, where, location, report.position))
    return replace(report, left=left, purged=report.purged and not left)


def _backups(definition: MapDefinition, where: str, location: str, position: int) -> Iterator[str]:
    objects, this = open_objects(location), folder_name(definition)
    rows = rows_held(layers_below(objects, this), definition, predicate(definition, where))
    for backup in list_backups(objects):
        layers = (stored for stored in backup.layers if stored.folder == this)
        if any(id_ in rows for stored in layers for id_ in stored.snapshots):
            yield f"backup {backup.id}: it has such rows; {_WAY_OUT}"
        elif backup.base_position < position and any(
            f"{stored.map}.{stored.incarnation}" == this for stored in backup.shards
        ):
            yield f"backup {backup.id}: its copy of the map was not read; {_WAY_OUT}"
