"""Repositories and their metadata."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from millpond.errors import Denied, MillpondError
from millpond.nodes.node import Node
from millpond.nodes.tokens import Caller
from millpond.refs.face import POND
from millpond.server.lakefs.access import may
from millpond.server.lakefs.addresses import NAMESPACES, check_namespace
from millpond.server.lakefs.call import Call
from millpond.server.lakefs.dialect import operations
from millpond.server.lakefs.errors import ApiError, wording
from millpond.server.lakefs.models import (
    AMOUNT,
    Amount,
    Listing,
    Repository,
    listing,
    page_size,
    repository_model,
)
from millpond.server.lakefs.needs import REPOSITORY, change, read
from millpond.server.parameters import typed
from millpond.server.repositories import make_own
from millpond.server.routes.table import On
from millpond.versions.repository_context import RepositoryRecord

__all__ = (
    "Alteration", "RepositoryCreation", "RepositoryMetadataKeys", "RepositoryMetadataSet",
    "readable_repositories", "routes",
)  # fmt: skip

routes = operations("repositories")


class RepositoryCreation(msgspec.Struct):
    """A new repository. Samples are not made, and there is one storage. For a client of Millpond, a namespace that is
    left out is the node's choice."""

    name: str
    storage_namespace: str | UnsetType = UNSET
    storage_id: str = ""
    default_branch: str = "main"
    sample_data: bool = False
    read_only: bool = False
    metadata: dict[str, str] = {}


class _OfLakefs(RepositoryCreation):
    """As clients of lakeFS know it."""

    name: Annotated[str, Meta(pattern="^[a-z0-9][a-z0-9-]{2,62}$")]
    storage_namespace: Annotated[str, Meta(pattern=NAMESPACES)]


class Alteration(msgspec.Struct):
    """Changes of a repository; metadata are replaced whole."""

    metadata: dict[str, str] | None = None
    read_only: bool | None = None


class RepositoryMetadataSet(msgspec.Struct):
    """Metadata to add, or to replace by name."""

    metadata: dict[str, str]


class RepositoryMetadataKeys(msgspec.Struct):
    """Names of metadata to remove."""

    keys: list[str] = []


def readable_repositories(
    node: Node, caller: Caller, prefix: str, after: str, size: int, search: str = ""
) -> tuple[list[RepositoryRecord], bool]:
    """A page of the repositories that a caller may read; True when there are more."""
    if may(caller, "read", POND):
        with suppress(MillpondError):  # the others are listed where nothing can be written
            make_own(node)
    records: list[RepositoryRecord] = []
    more = True
    while more and len(records) <= size:
        page = node.pond.repositories.list(prefix, after=after, amount=size)
        more, after = page.has_more, page.next_offset
        records += [record for record in page.items if search in record.name and may(caller, "read", record.name)]
    return records[:size], len(records) > size


@routes.get("/repositories", read(On.ANY_REPOSITORY))
def _list_repositories(
    call: Call, prefix: str = "", after: str = "", amount: Amount = AMOUNT, search: str = ""
) -> Listing[Repository]:  # fmt: skip
    """Those that the caller may read."""
    shown, has_more = readable_repositories(call.node, call.caller, prefix, after, page_size(amount), search)
    results = [repository_model(record, own=call.own) for record in shown]
    return listing(results, has_more=has_more, next_offset=shown[-1].name if has_more else "")


@routes.post("/repositories", change("admin", On.BODY_REPOSITORY), status=201)
def _create_repository(call: Call, creation: RepositoryCreation, *, bare: bool = False) -> Repository:
    """A new one; a bare one takes the namespace that it had before, for a restore of its dump."""
    if not call.own:
        typed("body", msgspec.to_builtins(creation), _OfLakefs)
        if creation.storage_id:
            raise ApiError(400, f"no storage config found for id: {creation.storage_id}")
    call.need("admin", creation.name)
    if creation.storage_namespace:
        check_namespace(call.node.settings.versions.namespaces, creation.storage_namespace)
    call.note(repository=creation.name)
    with wording({"branch_name": "argument default_branch: branch id: invalid value: validation error"}):
        repository = call.node.pond.repositories.create(
            creation.name, creation.storage_namespace or None, default_branch=creation.default_branch or "main",
            read_only=creation.read_only, metadata=creation.metadata, bare=bare,
        )  # fmt: skip
    return repository_model(repository.record, own=call.own)


@routes.get(REPOSITORY, read(), at_once=True)
def _get_repository(call: Call) -> Repository:
    return repository_model(call.repository.record, own=call.own)


@routes.patch(REPOSITORY, change("admin", On.REPOSITORY))
def _alter_repository(call: Call, alteration: Alteration) -> Repository:
    """lakeFS does not have this."""
    record = call.repository.alter(metadata=alteration.metadata, read_only=alteration.read_only)
    return repository_model(record, own=call.own)


@routes.delete(REPOSITORY, change("admin", On.REPOSITORY, 0), status=204)
def _delete_repository(call: Call, *, force: bool = False) -> None:
    record = call.repository.record
    if record.read_only and not force:
        raise Denied("read-only repository", kind="repository_read_only", repository=record.name)
    call.node.pond.repositories.delete(record.name)


@routes.get(f"{REPOSITORY}/metadata", read(), at_once=True)
def _get_metadata(call: Call) -> dict[str, str]:
    return dict(call.repository.record.metadata)


@routes.post(f"{REPOSITORY}/metadata", change("admin", On.REPOSITORY), status=204)
def _set_metadata(call: Call, added: RepositoryMetadataSet) -> None:
    """Items are added, or replaced by name."""
    call.repository.alter(metadata=lambda metadata: {**metadata, **added.metadata})


@routes.delete(f"{REPOSITORY}/metadata", change("admin", On.REPOSITORY), status=204)
def _delete_metadata(call: Call, removed: RepositoryMetadataKeys) -> None:
    call.repository.alter(
        metadata=lambda metadata: {name: value for name, value in metadata.items() if name not in removed.keys}
    )
