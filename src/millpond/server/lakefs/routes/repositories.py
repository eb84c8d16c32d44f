"""Repositories and their metadata."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

from starlette.responses import Response

from millpond.errors import Denied
from millpond.server.lakefs.access import may
from millpond.server.lakefs.addresses import NAMESPACES, check_namespace
from millpond.server.lakefs.bodies import Pattern, takes
from millpond.server.lakefs.errors import ApiError, json_answer, wording
from millpond.server.lakefs.models import items, listing, repository_model

if TYPE_CHECKING:
    from millpond.server.lakefs.call import Call
    from millpond.versions.repository_context import RepositoryRecord

__all__ = ("AT_ONCE", "HANDLERS")

_PATH = "/repositories/{repository}"


@dataclass(frozen=True, slots=True)
class _RepositoryCreation:
    """The body of a creation. Samples are not made, and there is one storage."""

    name: Annotated[str, Pattern("^[a-z0-9][a-z0-9-]{2,62}$")]
    storage_namespace: Annotated[str, Pattern(NAMESPACES)]
    storage_id: str = ""
    default_branch: str = "main"
    sample_data: bool = False
    read_only: bool = False


@dataclass(frozen=True, slots=True)
class _OwnCreation:
    """The body of a creation by a client of Millpond: without a namespace it is the node's choice."""

    name: str
    storage_namespace: str = ""
    default_branch: str = "main"
    read_only: bool = False
    metadata: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Alteration:
    """Changes of a repository; metadata are replaced whole."""

    metadata: dict[str, str] | None = None
    read_only: bool | None = None


@dataclass(frozen=True, slots=True)
class _RepositoryMetadataSet:
    """Metadata to add, or to replace by name."""

    metadata: dict[str, str]


@dataclass(frozen=True, slots=True)
class _RepositoryMetadataKeys:
    """Names of metadata to remove."""

    keys: list[str] = field(default_factory=list)


def _list_repositories(call: Call) -> Response:
    """`GET /repositories`: those that the caller may read."""
    prefix, after, amount = call.query.text("prefix"), call.query.text("after"), call.query.amount()
    search = call.query.text("search")
    records: list[RepositoryRecord] = []
    more = True
    while more and len(records) <= amount:
        page = call.node.pond.repositories.list(prefix, after=after, amount=amount)
        more, after = page.has_more, page.next_offset
        records += [record for record in items(page) if search in record.name and may(call.caller, "read", record.name)]
    shown = records[:amount]
    has_more = len(records) > amount
    results = [repository_model(record, own=call.own) for record in shown]
    return json_answer(listing(results, has_more=has_more, next_offset=shown[-1].name if has_more else ""))


@takes(_RepositoryCreation)
def _create_repository(call: Call) -> Response:
    """`POST /repositories`."""
    if call.own:
        return _create_own(call, call.json(_OwnCreation))
    creation = call.json(_RepositoryCreation)
    call.need("admin", creation.name)
    if creation.storage_id:
        raise ApiError(400, f"no storage config found for id: {creation.storage_id}")
    check_namespace(call.node.settings.versions.namespaces, creation.storage_namespace)
    call.note(repository=creation.name)
    with wording({"branch_name": "argument default_branch: branch id: invalid value: validation error"}):
        made = call.node.pond.repositories.create(
            creation.name, creation.storage_namespace, default_branch=creation.default_branch or "main",
            read_only=creation.read_only,
        )  # fmt: skip
    return json_answer(repository_model(made.record), 201)


def _create_own(call: Call, creation: _OwnCreation) -> Response:
    """A repository for a client of Millpond."""
    call.need("admin", creation.name)
    call.note(repository=creation.name)
    if creation.storage_namespace:
        check_namespace(call.node.settings.versions.namespaces, creation.storage_namespace)
    made = call.node.pond.repositories.create(
        creation.name, creation.storage_namespace or None, default_branch=creation.default_branch,
        read_only=creation.read_only, metadata=creation.metadata,
    )  # fmt: skip
    return json_answer(repository_model(made.record, own=True), 201)


def _get_repository(call: Call) -> Response:
    """`GET /repositories/{repository}`."""
    return json_answer(repository_model(call.repository.record, own=call.own))


@takes(_Alteration)
def _alter_repository(call: Call) -> Response:
    """`PATCH /repositories/{repository}`, which lakeFS does not have."""
    alteration = call.json(_Alteration)
    record = call.repository.alter(metadata=alteration.metadata, read_only=alteration.read_only)
    return json_answer(repository_model(record, own=call.own))


def _delete_repository(call: Call) -> Response:
    """`DELETE /repositories/{repository}`."""
    record = call.repository.record
    if record.read_only and not call.query.flag("force"):
        raise Denied("read-only repository", kind="repository_read_only", repository=record.name)
    call.node.pond.repositories.delete(record.name)
    return Response(status_code=204)


def _get_metadata(call: Call) -> Response:
    """`GET /repositories/{repository}/metadata`."""
    return json_answer(call.repository.record.metadata)


@takes(_RepositoryMetadataSet)
def _set_metadata(call: Call) -> Response:
    """`POST /repositories/{repository}/metadata`: items are added, or replaced by name."""
    added = call.json(_RepositoryMetadataSet).metadata
    call.repository.alter(metadata=lambda metadata: {**metadata, **added})
    return Response(status_code=204)


@takes(_RepositoryMetadataKeys)
def _delete_metadata(call: Call) -> Response:
    """`DELETE /repositories/{repository}/metadata`."""
    removed = frozenset(call.json(_RepositoryMetadataKeys).keys)
    call.repository.alter(
        metadata=lambda metadata: {name: value for name, value in metadata.items() if name not in removed}
    )
    return Response(status_code=204)


AT_ONCE = frozenset((_get_repository, _get_metadata))
"""Handlers that read rows alone."""
HANDLERS = {
    ("GET", "/repositories"): _list_repositories,
    ("POST", "/repositories"): _create_repository,
    ("GET", _PATH): _get_repository,
    ("PATCH", _PATH): _alter_repository,
    ("DELETE", _PATH): _delete_repository,
    ("GET", f"{_PATH}/metadata"): _get_metadata,
    ("POST", f"{_PATH}/metadata"): _set_metadata,
    ("DELETE", f"{_PATH}/metadata"): _delete_metadata,
}
