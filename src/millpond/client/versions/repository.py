"""A repository of a node: its branches, tags and commits, and its settings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from types import NoneType
from typing import Any, TypeVar

import pyarrow as pa

from millpond.argument_types import need_type
from millpond.client.transport import Response
from millpond.client.versions.api import VersionsApi
from millpond.client.versions.branch import RemoteBranch
from millpond.client.versions.differences import difference_batches
from millpond.client.versions.models import change_of, record_of
from millpond.client.versions.operations import perform
from millpond.client.versions.reference import RemoteReference
from millpond.errors import NotFound
from millpond.json_forms import JsonForm, parse_list, plain
from millpond.kernel.operations import Operation
from millpond.versions.diffs import Change
from millpond.versions.faces import RepositoryFace
from millpond.versions.graph.commits import Commit
from millpond.versions.paging import Listing, Page
from millpond.versions.protocols import RepositoryOperations
from millpond.versions.repository_context import (
    CompactionRules,
    ProtectedBranches,
    RepositoryRecord,
    Retention,
    no_setting,
)

__all__ = ("RemoteRepository",)

T = TypeVar("T")
_CHUNK_BYTES = 1 << 20


class RemoteRepository(RepositoryFace, RepositoryOperations):
    """A repository on a node. Its methods raise `NotFound` once it is deleted."""

    def __init__(self, api: VersionsApi, record: RepositoryRecord) -> None:
        self._api = api
        self.record = record
        self.name = record.name

    def _perform(self, operation: Operation, arguments: Mapping[str, Any]) -> Any:
        return perform(self._api, operation, {"repository": self.name}, arguments, self.record.namespace)

    def __repr__(self) -> str:
        return f"RemoteRepository({self.name!r})"

    def _at(self, *names: str) -> str:
        return self._api.at("repositories", self.name, *names)

    # -- references -----------------------------------------------------------------------------------

    def branch(self, name: str) -> RemoteBranch:
        """A branch to read and to change; it is looked up when it is used."""
        return RemoteBranch(self._api, self.record, name)

    def ref(self, expression: str) -> RemoteReference:
        """A state to read: `main`, `main@`, `v1~2`, a commit's id or its first digits."""
        return RemoteReference(self._api, self.record, expression)

    def create_branch(self, name: str, source: str, *, hidden: bool = False, force: bool = False) -> RemoteBranch:
        """A new branch at the commit of a ref; what is staged elsewhere stays there.

        Raises: `AlreadyExists`; `Invalid` for a name; `Conflict` for a name that is a commit's id; `NotFound`.
        """
        body = {"name": name, "source": source, "hidden": hidden, "force": force}
        self._api.change("POST", self._at("branches"), body)
        return self.branch(name)

    # -- comparing ------------------------------------------------------------------------------------

    def diff(
        self, left: str, right: str, prefix: str = "", *, three_dots: bool = True, delimiter: str = "",
        after: str = "", amount: int = 100,
    ) -> Page[Change]:  # fmt: skip
        """One page of differences: what `right` changed since the merge base, or all that turns `left` into `right`.

        Raises: `Invalid`, `NotFound`.
        """
        return self._api.page(
            self._at("refs", left, "diff", right), Listing(prefix, delimiter, after, amount),
            partial(change_of, self.record.namespace), type="three_dot" if three_dots else "two_dot",
        )  # fmt: skip

    def diff_rows(
        self, left: str, right: str, prefix: str = "", *, three_dots: bool = True
    ) -> Iterator[pa.RecordBatch]:  # fmt: skip
        """All differences of two commits, as batches with the columns of `diffs.DIFFERENCES`.

        Raises: as `diff`.
        """
        old, new = (self.ref(ref).head().id for ref in (left, right))
        return difference_batches(
            lambda after: self.diff(old, new, prefix, three_dots=three_dots, after=after, amount=1_000)
        )

    def merge_base(self, left: str, right: str) -> Commit:
        """The merge base of two refs.

        Raises: `Invalid`, kind `no_merge_base`; `NotFound`.
        """
        answer = self._api.get(self._at("refs", left, "merge", right)).json()
        return self.ref(answer["base_commit_id"]).head()

    def dump(self) -> Iterator[bytes]:
        """The commits, tags, branches and settings as lines of JSON; `RemoteRepositories.restore` reads them.

        What is staged is not in it, nor are bytes. A dump that is cut ends without its last line.
        """
        with self._api.stream(self._at("refs", "dump"), {}) as body:
            yield from iter(lambda: body.read(_CHUNK_BYTES), b"")

    # -- settings -------------------------------------------------------------------------------------

    def setting(self, kind: type[T]) -> tuple[T | None, str]:
        """A setting (`ProtectedBranches`, `Retention`, `CompactionRules`) and its tag; None when it was never set."""
        form = _form_of(kind)
        try:
            answer = self._api.get(self._at("settings", form.name))
        except NotFound as error:
            if error.kind != "setting_not_found":
                raise
            return None, ""
        tag = answer.headers.get("ETag", "")
        return (form.read(answer), tag) if tag else (None, "")

    def set(self, value: object, *, expected: str | None = None) -> str:
        """Store a setting, which holds at once; `expected` is the tag it must have had. The new tag.

        Raises: `Conflict`, kind `setting_changed`.
        """
        form = _form_of(type(value))
        headers = None if expected is None else {"If-Match": f'"{expected}"'}
        answer = self._api.change(
            "PUT", self._at("settings", form.name), form.write(value), headers=headers, repeatable=expected is None
        )
        return answer.headers["ETag"]

    def clear(self, kind: type) -> None:
        """Forget a setting, if it was ever set."""
        self._api.change("DELETE", self._at("settings", _form_of(kind).name), repeatable=True)

    def alter(
        self, *, metadata: Mapping[str, str] | None = None, read_only: bool | None = None
    ) -> RepositoryRecord:  # fmt: skip
        """Replace the repository's metadata; let it be read-only."""
        need_type("metadata", metadata, Mapping, NoneType)
        body = {"metadata": None if metadata is None else dict(metadata), "read_only": read_only}
        self.record = record_of(self._api.change("PATCH", self._at(), body, repeatable=True).json())
        return self.record


@dataclass(frozen=True, slots=True)
class _SettingForm:
    """The name of a setting in its path, and its form on the wire."""

    name: str
    read: Callable[[Response], Any]
    write: Callable[[Any], Any]


def _read_protected(answer: Response) -> ProtectedBranches:
    return ProtectedBranches(tuple(rule["pattern"] for rule in parse_list(answer.data)))


def _write_protected(value: ProtectedBranches) -> Any:
    return [{"pattern": pattern} for pattern in value.patterns]


def _read_retention(answer: Response) -> Retention:
    rules = answer.json()
    days = {rule["branch_id"]: rule["retention_days"] for rule in rules["branches"]}
    return Retention(rules["default_retention_days"], days)


def _write_retention(value: Retention) -> Any:
    branches = [{"branch_id": name, "retention_days": days} for name, days in value.branch_days.items()]
    return {"default_retention_days": value.default_days, "branches": branches}


_RULES = JsonForm(CompactionRules)
_SETTINGS: Mapping[type, _SettingForm] = {
    ProtectedBranches: _SettingForm("branch_protection", _read_protected, _write_protected),
    Retention: _SettingForm("gc_rules", _read_retention, _write_retention),
    CompactionRules: _SettingForm("compaction", lambda answer: answer.read(_RULES), plain),
}


def _form_of(kind: object) -> Any:
    if not isinstance(kind, type) or kind not in _SETTINGS:
        raise no_setting(kind)
    return _SETTINGS[kind]
