"""The operations that layered maps do not have: one list, refused everywhere alike, and shown in the docs."""

from __future__ import annotations

from millpond.errors import Invalid
from millpond.maps.model.definition import MapDefinition, Store

__all__ = ("UNSUPPORTED", "need_shard", "one_state", "refuse_settings", "unsupported")

UNSUPPORTED = {
    "update_time": "retain by effective_time, or alter the map to store='shard', which keeps a time for each row",
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


def refuse_settings(definition: MapDefinition) -> MapDefinition:
    """The definition, when its store can keep to its settings.

    Raises: `Invalid`, kind `store_unsupported`.
    """
    if definition.retain_by == "update_time":
        need_shard(definition, "update_time")
    return definition
