"""The operations that layered maps do not have: one list, refused everywhere alike, and shown in the docs."""

from __future__ import annotations

import os
from dataclasses import replace

from millpond.errors import Invalid
from millpond.maps.model.definition import Kind, MapDefinition, Store

__all__ = (
    "AGGREGATE_UNSUPPORTED",
    "STORES",
    "UNSUPPORTED",
    "aggregate_unsupported",
    "at_birth",
    "between_unsupported",
    "need_alerts",
    "need_shard",
    "one_state",
    "preferred_store",
    "sharded_as_can_be",
    "tracks_updates",
    "unsupported",
)

UNSUPPORTED = {
    "changes": "of layers those in a folder are a stream, as long as maps.history; alter it to store='shard'",
    "replication": "serve the pond from one node, or alter the map to store='shard' before",
    "shard": "read the map by lookup, scan or a snapshot: it has no shard",
}
"""Operations, each with the way out."""


def unsupported(name: str, operation: str) -> Invalid:
    """The error of an operation that a layered map does not have."""
    return Invalid(
        "a layered map does not do this", kind="store_unsupported", map=name, operation=operation,
        hint=UNSUPPORTED[operation],
    )  # fmt: skip


AGGREGATE_UNSUPPORTED = {
    "lookup": "say another scheme, or store='layers': interned values would pile up, for each load makes new ones",
    "window": "take a snapshot of all times, or of some keys",
    "fields": "make a new map with these fields, and load it again",
    "condense": "leave it out: rows of one bucket are one row anyway",
    "changes": "read the map by scan: what a load brings is not what a bucket holds",
}
"""Operations that aggregates do not have, each with the way out."""


def aggregate_unsupported(name: str, operation: str) -> Invalid:
    """The error of an operation that aggregates do not have."""
    return Invalid(
        "an aggregate does not do this", kind="aggregate_unsupported", map=name, operation=operation,
        hint=AGGREGATE_UNSUPPORTED[operation],
    )  # fmt: skip


def sharded_as_can_be(definition: MapDefinition) -> MapDefinition:
    """A definition whose store has what its settings ask for.

    Raises: `Invalid`, kind `aggregate_unsupported`.
    """
    if definition.kind is Kind.AGGREGATE and definition.store is Store.SHARD and definition.scheme == "lookup":
        raise aggregate_unsupported(definition.name, "lookup")
    return definition


def between_unsupported(definition: MapDefinition) -> Invalid:
    """The error of a question between two times to a map whose rows do not combine."""
    return Invalid(
        "only aggregates combine what lies between two times", kind="between_unsupported", map=definition.name,
        map_kind=definition.kind, hint="ask at a time, or scan the rows",
    )  # fmt: skip


def need_alerts(definition: MapDefinition) -> None:
    """Refuse alerts of a map whose rows are told as they come.

    Raises: `Invalid`, kind `alerts_unsupported`.
    """
    if definition.aggregation is None:
        raise Invalid(
            "only aggregates have alerts", kind="alerts_unsupported", map=definition.name,
            map_kind=definition.kind, hint="load into a map with kind='aggregate'",
        )  # fmt: skip


def one_state(definition: MapDefinition) -> Invalid:
    """The error of a question to a sharded map as it was known before."""
    return Invalid(
        "a sharded map has no state but the present one", kind="known_at_unsupported", map=definition.name,
        store=definition.store, hint="create the map with store='layers', or millpond alter NAME --store layers",
    )  # fmt: skip


def need_shard(definition: MapDefinition, operation: str) -> None:
    """Refuse an operation that only sharded maps have.

    Raises: `Invalid`, kind `store_unsupported`.
    """
    if definition.store is not Store.SHARD:
        raise unsupported(definition.name, operation)


# -- the store of a map that names none ---------------------------------------------------------------

STORES = ("auto", *Store)
"""The values of the setting `maps.store`."""
_VARIABLE = "MILLPOND_MAPS_STORE"


def preferred_store(stated: str | None = None) -> str:
    """The setting `maps.store`: as given, else as the environment says.

    >>> preferred_store("layers")
    'layers'

    Raises: `Invalid` for another word.
    """
    preferred = os.environ.get(_VARIABLE, "auto") if stated is None else stated
    if preferred not in STORES:
        raise Invalid("there is no such store", kind="setting_type", setting="maps.store",
                      value=repr(preferred)[:100], hint=f"one of: {', '.join(STORES)}")  # fmt: skip
    return preferred


def tracks_updates(definition: MapDefinition) -> bool:
    """True when the map's settings ask for update times."""
    untimed = definition.kind in (Kind.STATE, Kind.RANGED_STATE)
    retains = definition.retain_ms is not None and (untimed or definition.retain_by == "update_time")
    return retains or (not untimed and definition.condense_by == "update_time")


def at_birth(definition: MapDefinition, stated: Store | None, preferred: str, *, served: bool) -> MapDefinition:
    """The definition of a new map in the store that its maker stated, else in that of the setting `maps.store`.

    `served`: on a node.
    """
    layers = preferred == "layers" or (preferred == "auto" and not served)
    return replace(definition, store=stated or (Store.LAYERS if layers else Store.SHARD))
