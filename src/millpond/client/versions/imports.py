"""Imports into a branch on a node: the node reads the sources; here it is only watched."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from millpond.client.versions.models import commit_of
from millpond.errors import Invalid
from millpond.versions.imports.importing import Imported
from millpond.versions.imports.locations import ObjectLocation, PrefixLocation, TableLocation

if TYPE_CHECKING:
    from millpond.client.versions.api import VersionsApi
    from millpond.versions.imports.locations import Location
    from millpond.versions.repository_context import RepositoryRecord

__all__ = ("RemoteImports",)

_TYPES = {PrefixLocation: "common_prefix", ObjectLocation: "object", TableLocation: "table"}
_LOOK_SECONDS = 0.2


class RemoteImports:
    """Imports into a branch."""

    def __init__(self, api: VersionsApi, record: RepositoryRecord, branch: str) -> None:
        self._api = api
        self._path = partial(api.at, "repositories", record.name, "branches", branch, "import")

    def commit(
        self, locations: Sequence[Location], message: str = "", *, metadata: Mapping[str, str] | None = None,
        created: int | None = None, force: bool = False,
    ) -> Imported:  # fmt: skip
        """Import and commit; on a branch with nothing staged. Returns when it is done.

        Raises: `NotFound`, `Denied`, `Unavailable` for branch or source; `Invalid` for an address or a dirty branch,
        and kind `import_failed` when it fails later.
        """
        words = {"message": message, "metadata": dict(metadata or {}), "date": created}
        return self._run({"paths": list(map(_model, locations)), "commit": words, "force": force})

    def stage(self, locations: Sequence[Location], *, force: bool = False) -> Imported:
        """Import over what is staged, as one segment; nothing is removed.

        Raises: as `commit`.
        """
        return self._run({"paths": list(map(_model, locations)), "force": force})

    def _run(self, body: Mapping[str, Any]) -> Imported:
        id_ = self._api.change("POST", self._path(), body).json()["id"]
        clock, never = self._api.clock, threading.Event()
        while True:
            status = self._api.get(self._path(), {"id": id_}).json()
            if "error" in status:
                raise Invalid("the import failed", kind="import_failed", reason=status["error"]["message"])
            if status["completed"]:
                commit = commit_of(status["commit"]) if "commit" in status else None
                return Imported(status["ingested_objects"], status.get("metarange_id", ""), commit)
            clock.wait(never, clock.monotonic() + _LOOK_SECONDS)


def _model(location: Location) -> dict[str, str]:
    return {"type": _TYPES[type(location)], "path": location.address, "destination": location.destination}
