"""Imports: started, watched, canceled."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

from starlette.responses import Response

from millpond.server.lakefs.addresses import check_source
from millpond.server.lakefs.bodies import OneOf, takes
from millpond.server.lakefs.errors import json_answer
from millpond.server.lakefs.models import commit_model
from millpond.versions.commits import Message
from millpond.versions.imports.jobs import ImportState
from millpond.versions.imports.locations import Location, ObjectLocation, PrefixLocation, TableLocation

if TYPE_CHECKING:
    from millpond.server.lakefs.call import Call

__all__ = ("HANDLERS",)

_IMPORT = "/repositories/{repository}/branches/{branch}/import"
_LOCATIONS: dict[str, type[PrefixLocation | ObjectLocation | TableLocation]] = {
    "common_prefix": PrefixLocation, "object": ObjectLocation, "table": TableLocation,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class _ImportLocation:
    type: Annotated[str, OneOf("common_prefix", "object", "table")]
    path: str
    destination: str


@dataclass(frozen=True, slots=True)
class _CommitCreation:
    message: str
    metadata: dict[str, str] = field(default_factory=dict)
    date: int | None = None


@dataclass(frozen=True, slots=True)
class _ImportCreation:
    paths: list[_ImportLocation]
    commit: _CommitCreation | None = None
    force: bool = False


@takes(_ImportCreation)
def _start(call: Call) -> Response:
    """An import that is committed; without `commit` it is staged."""
    creation, branch = call.json(_ImportCreation), call.branch
    for location in creation.paths:
        check_source(call.node.settings.versions.sources, location.path)
    locations: list[Location] = [_LOCATIONS[source.type](source.path, source.destination) for source in creation.paths]
    words = creation.commit
    message = None if words is None else Message(words.message, call.committer(), words.metadata, words.date)
    jobs = call.node.pond.repositories.imports
    id_ = jobs.start(branch.site, branch.name, locations, message, force=creation.force)
    call.note(import_id=id_)
    return json_answer({"id": id_}, 202)


def _status(call: Call) -> Response:
    branch = call.branch
    record = call.node.pond.repositories.imports.get(branch.site, branch.name, call.query.needed("id"))
    answer: dict[str, Any] = {
        "completed": record.state is ImportState.COMPLETED,
        "update_time": datetime.fromtimestamp(record.updated_ms / 1000, UTC).isoformat(timespec="milliseconds"),
        "ingested_objects": record.entries,
    }  # fmt: skip
    if record.index:
        answer["metarange_id"] = record.index
    if record.commit:
        answer["commit"] = commit_model(call.repository.ref(record.commit).head())
    if record.error:
        answer["error"] = {"message": record.error}
    return json_answer(answer)


def _cancel(call: Call) -> Response:
    branch = call.branch
    call.node.pond.repositories.imports.cancel(branch.site, branch.name, call.query.needed("id"))
    return Response(status_code=204)


HANDLERS = {("POST", _IMPORT): _start, ("GET", _IMPORT): _status, ("DELETE", _IMPORT): _cancel}
