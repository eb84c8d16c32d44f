"""The repositories of a node: made, found, listed and deleted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import NoneType
from typing import Any

from millpond.argument_types import need_type
from millpond.client.transport import Connection
from millpond.client.versions.api import VersionsApi
from millpond.client.versions.models import record_of
from millpond.client.versions.operations import perform
from millpond.client.versions.repository import RemoteRepository
from millpond.json_forms import JsonForm
from millpond.kernel.operations import Operation
from millpond.versions.protocols import RepositoriesOperations
from millpond.versions.restores import Restored

__all__ = ("RemoteRepositories",)

_RESTORED = JsonForm(Restored)


class RemoteRepositories(RepositoriesOperations):
    """All repositories of a node. Nodes that share a database have the same ones; others have each their own."""

    def __init__(self, connection: Connection) -> None:
        self._api, self._url = VersionsApi(connection), connection.url

    def __repr__(self) -> str:
        return f"RemoteRepositories({self._url!r})"

    def _perform(self, operation: Operation, arguments: Mapping[str, Any]) -> Any:
        return perform(self._api, operation, {}, arguments)

    def create(
        self, name: str, namespace: str | None = None, *, default_branch: str = "main", read_only: bool = False,
        metadata: Mapping[str, str] | None = None,
    ) -> RemoteRepository:  # fmt: skip
        """A new repository with one branch and one commit; without a namespace its bytes lie beside the node's pond.

        Raises: `AlreadyExists`; `Invalid` for names, kind `namespace_used` for a namespace of another repository, and
        kind `namespace_place` for a folder; `Denied` for a place that the node's `versions.namespaces` does not name.
        """
        need_type("metadata", metadata, Mapping, NoneType)
        body = {
            "name": name, "storage_namespace": namespace or "", "default_branch": default_branch,
            "read_only": read_only, "metadata": dict(metadata or {}),
        }  # fmt: skip
        made = self._api.change("POST", self._api.at("repositories"), body)
        return RemoteRepository(self._api, record_of(made.json()))

    def get(self, name: str) -> RemoteRepository:
        """The repository of that name.

        Raises: `NotFound`.
        """
        return RemoteRepository(self._api, record_of(self._api.get(self._api.at("repositories", name)).json()))

    def restore(self, name: str, chunks: Iterable[bytes], *, force: bool = False) -> Restored:
        """Restore the commits, tags, branches and settings of a dump, all or none; `chunks` are its bytes.

        See `Repositories.restore`.

        Raises: `Invalid`, kinds `dump_damaged`, `dump_format`, `dump_incomplete`; `Conflict`, kinds `repository_used`
        and `repository_lives`.
        """
        path = self._api.at("repositories", name, "refs", "restore")
        return self._api.change("POST", path, query={"force": force}, body=chunks).read(_RESTORED)

    def delete(self, name: str) -> None:
        """Delete a repository: its branches, tags and commits. Its namespace stays as it is, and is never used again.

        Raises: `NotFound`.
        """
        self._api.change("DELETE", self._api.at("repositories", name), query={"force": "true"})
