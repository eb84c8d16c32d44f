"""Values of repositories as a node writes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from millpond.versions.diffs import Change
from millpond.versions.graph.commits import Commit
from millpond.versions.objects.entries import DEFAULT_CONTENT_TYPE, Entry
from millpond.versions.objects.uploads import relative_address
from millpond.versions.paging import CommonPrefix
from millpond.versions.repository import Named
from millpond.versions.repository_context import RepositoryRecord

__all__ = ("change_of", "commit_of", "entry_of", "listed_of", "named_of", "record_of")


def record_of(model: Mapping[str, Any]) -> RepositoryRecord:
    """A repository."""
    return RepositoryRecord(
        model["id"], model["uid"], model["storage_namespace"], model["default_branch"], model["creation_date"],
        model["read_only"], model["metadata"],
    )  # fmt: skip


def named_of(model: Mapping[str, Any]) -> Named:
    """A branch or a tag."""
    return Named(model["id"], model["commit_id"])


def commit_of(model: Mapping[str, Any]) -> Commit:
    """A commit."""
    return Commit(
        model["id"], model["meta_range_id"], tuple(model["parents"]), model["committer"], model["message"],
        model["creation_date"], model["metadata"], model["generation"],
    )  # fmt: skip


def entry_of(namespace: str, model: Mapping[str, Any]) -> Entry:
    """An object of a repository whose bytes lie below a namespace."""
    return Entry(
        model["path"], relative_address(namespace, model["physical_address"]), model["size_bytes"], model["mtime"],
        model["checksum"], model.get("content_type", DEFAULT_CONTENT_TYPE), model.get("metadata") or {},
    )  # fmt: skip


def listed_of(namespace: str, model: Mapping[str, Any]) -> Entry | CommonPrefix:
    """An object, or a common prefix, of a listing."""
    return CommonPrefix(model["path"]) if model["path_type"] == "common_prefix" else entry_of(namespace, model)


def change_of(namespace: str, model: Mapping[str, Any]) -> Change | CommonPrefix:
    """A change with both of its sides, or a common prefix of changes."""
    if model["type"] == "prefix_changed":
        return CommonPrefix(model["path"])
    left, right = (
        None if side is None else entry_of(namespace, side) for side in (model["left"], model["right"])
    )  # fmt: skip
    return Change(model["type"], model["path"], left, right)
