"""Imports: started, watched, canceled."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from millpond.server.confined_files import read_table_confined
from millpond.server.lakefs.addresses import check_import
from millpond.server.lakefs.call import Call
from millpond.server.lakefs.dialect import Error, operations
from millpond.server.lakefs.models import Commit, Long, Started, Text, commit_model
from millpond.server.lakefs.needs import BRANCH, change, read
from millpond.server.routes.table import JSON_BYTES_MAX, On
from millpond.versions.commits import Message
from millpond.versions.imports.jobs import ImportState
from millpond.versions.imports.locations import Location, ObjectLocation, PrefixLocation, TableLocation

__all__ = ("ImportCommit", "ImportCreation", "ImportLocation", "ImportStatus", "routes")

_IMPORT = f"{BRANCH}/import"
_LOCATIONS: dict[str, type[PrefixLocation | ObjectLocation | TableLocation]] = {
    "common_prefix": PrefixLocation, "object": ObjectLocation, "table": TableLocation,
}  # fmt: skip
routes = operations("imports")


class ImportLocation(msgspec.Struct):
    """A place to import from, and the path below which its objects come."""

    type: Literal["common_prefix", "object", "table"]
    path: str
    destination: str


class ImportCommit(msgspec.Struct):
    """The words of the commit."""

    message: str
    metadata: dict[str, str] = {}
    date: Long | None = None


class ImportCreation(msgspec.Struct):
    """Places, and the words of a commit; without them the import is staged."""

    paths: list[ImportLocation]
    commit: ImportCommit | None = None
    force: bool = False


class ImportStatus(msgspec.Struct):
    """The progress of an import."""

    completed: bool
    update_time: str
    ingested_objects: int
    metarange_id: str | UnsetType = UNSET
    commit: Commit | UnsetType = UNSET
    error: Error | UnsetType = UNSET


@routes.post(_IMPORT, change("write", On.BRANCH, JSON_BYTES_MAX), status=202)
def _start_import(call: Call, creation: ImportCreation) -> Started:
    branch = call.branch
    for location in creation.paths:
        check_import(
            branch.context.namespace, call.node.settings.versions.sources, location.path,
            prefix=location.type == "common_prefix",
        )  # fmt: skip
    locations: list[Location] = [_LOCATIONS[source.type](source.path, source.destination) for source in creation.paths]
    words = creation.commit
    message = None if words is None else Message(words.message, call.committer(), words.metadata, words.date)
    jobs = call.node.pond.repositories.imports
    id_ = jobs.start(
        branch.context, branch.name, locations, message, force=creation.force, read_table=read_table_confined
    )
    call.note(import_id=id_)
    return Started(id_)


@routes.get(_IMPORT, read())
def _get_import_status(call: Call, id: Text) -> ImportStatus:
    branch = call.branch
    record = call.node.pond.repositories.imports.get(branch.context, branch.name, id)
    updated = datetime.fromtimestamp(record.updated_ms / 1000, UTC).isoformat(timespec="milliseconds")
    return ImportStatus(
        record.state is ImportState.COMPLETED, updated, record.entries, record.index or UNSET,
        commit_model(call.repository.ref(record.commit).head()) if record.commit else UNSET,
        Error(record.error) if record.error else UNSET,
    )  # fmt: skip


@routes.delete(_IMPORT, change("write", On.BRANCH, 0), status=204)
def _cancel_import(call: Call, id: Text) -> None:
    branch = call.branch
    call.node.pond.repositories.imports.cancel(branch.context, branch.name, id)
