"""The map of a load: made when it is missing, and gone again when the load fails."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from millpond.errors import Invalid, NotFound
from millpond.maps.model.definition import MapDefinition, parse_value_type

if TYPE_CHECKING:
    from millpond.client.pond import RemotePond
    from millpond.pipelines.requests import Target
    from millpond.pond import Pond

__all__ = ("map_for_load", "refuse_other")


@contextmanager
def map_for_load(pond: Pond | RemotePond, name: str, target: Target, branch: str = "") -> Iterator[None]:
    """Make the map of a target when it is missing; when the load fails, it goes again, unless it has rows.

    Raises: `Invalid` when the map that is there is another than the target says.
    """
    here = pond.branch(branch) if branch else pond
    try:
        refuse_other(here.map(name).definition, target)
        is_new = False
    except NotFound:
        if not target.kind:
            raise
        if branch:  # staged: the load commits it
            pond.branch(branch).create_map(name, kind=target.kind, value=target.value or None, commit=False)
        else:
            pond.create_map(name, kind=target.kind, value=target.value or None, exist_ok=True)
        is_new = True
    try:
        yield
    except Exception:
        if is_new:
            _drop_empty(pond, name, branch)
        raise


def refuse_other(definition: MapDefinition, target: Target) -> None:
    """Refuse a target that says another kind, or value, than its map has.

    Raises: `Invalid`, kind `pipeline_target`.
    """
    for what, there, stated in (
        ("kind", definition.kind.value, target.kind),
        ("value", str(definition.value or ""), str(parse_value_type(target.value) if target.value else "")),
    ):
        if stated and stated != there:
            raise Invalid("the map is another than the target of the load", kind="pipeline_target",
                          map=definition.name, **{f"map_{what}": there, "target": stated},
                          hint="change the target, or load another map")  # fmt: skip


def _drop_empty(pond: Pond | RemotePond, name: str, branch: str) -> None:
    """Drop a map without rows: who still writes parts for it is refused, and makes it anew."""
    from millpond.refs.face import POND
    from millpond.refs.map_entries import map_path

    if branch:
        pond.repository(POND).branch(branch).reset(path=map_path(name), force=True)
        return
    with suppress(NotFound):
        info = pond.map(name).info()
        if not info["rows"] and not info["parts_queued"]:
            pond.drop_map(name)
