"""The operations that `versions/protocols.py` declares, performed by requests to a node."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, get_args, get_origin

from millpond.client.request_values import encoded
from millpond.client.versions.api import VersionsApi
from millpond.client.versions.models import change_of, commit_of, entry_of, listed_of, named_of, record_of
from millpond.json_forms import JsonForm, plain
from millpond.kernel.operations import Operation
from millpond.versions.diffs import Change
from millpond.versions.graph.commits import Commit
from millpond.versions.merges import resolutions_of
from millpond.versions.objects.entries import Entry
from millpond.versions.paging import Listing, Page
from millpond.versions.repository import Named
from millpond.versions.repository_context import RepositoryRecord

__all__ = ("perform",)

_MODELS: Mapping[type, Callable[[dict[str, Any]], Any]] = {
    Commit: commit_of, Named: named_of, RepositoryRecord: record_of,
}  # fmt: skip
_LOCATED: Mapping[type, Callable[[str, dict[str, Any]], Any]] = {Entry: listed_of, Change: change_of}
"""Models whose addresses lie below the namespace of their repository, as listings have them."""


def perform(
    api: VersionsApi, operation: Operation, names: Mapping[str, str], arguments: Mapping[str, Any], namespace: str = ""
) -> Any:
    """The result of an operation on a thing with these names; `namespace` is that of its repository.

    Raises: what the node answers; as `VersionsApi.at`.
    """
    rules = {"resolutions": resolutions_of(arguments["resolutions"])} if "resolutions" in arguments else {}
    requested = operation.request(names, encoded({**arguments, **rules}, plain))
    path, result = api.at(*requested.segments), operation.result
    if get_origin(result) is Page:
        return _page(api, path, dict(requested.query), get_args(result)[0], namespace)
    if operation.method == "GET":
        answer = api.get(path, requested.query)
    else:
        answer = api.change(
            operation.method, path, requested.body or None, query=requested.query, repeatable=operation.repeatable
        )
    if result is type(None):
        return None
    if operation.answer:
        return answer.json()[operation.answer]
    if result is Entry:
        return entry_of(namespace, answer.json())
    model = _MODELS.get(result)
    return answer.read(JsonForm(result)) if model is None else model(answer.json())


def _page(api: VersionsApi, path: str, query: dict[str, Any], item: type, namespace: str) -> Page[Any]:
    prefix, delimiter, after = (query.pop(name, "") for name in ("prefix", "delimiter", "after"))
    listing = Listing(prefix, delimiter, after, query.pop("amount", None), bool(query.get("reverse")))
    decode = partial(_LOCATED[item], namespace) if item in _LOCATED else _MODELS[item]
    return api.page(path, listing, decode, **query)
