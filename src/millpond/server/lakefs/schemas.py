"""JSON schemas: those of bodies are read from their dataclasses, those of answers are written here.

    schema_of(_TagCreation)   {"type": "object", "required": ["id", "ref"], "properties": {…}}
    ANSWERS["Ref"]            {"type": "object", "required": ["id", "commit_id"], …}

An answer may have more fields than its schema says.
"""

from __future__ import annotations

import dataclasses
import types
from typing import Annotated, Any, TypeAlias, Union, get_args, get_origin, get_type_hints

from millpond.server.lakefs.bodies import OneOf, Pattern

__all__ = ("ANSWERS", "reference_to", "schema_of")

_Schema: TypeAlias = dict[str, Any]
TEXT: _Schema = {"type": "string"}
FLAG: _Schema = {"type": "boolean"}
NUMBER: _Schema = {"type": "integer", "format": "int64", "minimum": -(1 << 63), "maximum": (1 << 63) - 1}
TEXTS: _Schema = {"type": "object", "additionalProperties": TEXT}
_SCALARS: dict[Any, _Schema] = {str: TEXT, bool: FLAG, int: NUMBER}


def reference_to(name: str) -> _Schema:
    """A reference to a schema of the document."""
    return {"$ref": f"#/components/schemas/{name}"}


def schema_of(type_: Any) -> _Schema:
    """The schema of a value that `bodies.py` reads as this type.

    >>> schema_of(list[str | None])["items"]
    {'type': 'string', 'nullable': True}
    """
    origin, parts = get_origin(type_), get_args(type_)
    if origin is Annotated:
        return schema_of(parts[0]) | _rules(parts[1:])
    if origin in (Union, types.UnionType):
        [inner] = [part for part in parts if part is not types.NoneType]
        return _nullable(schema_of(inner))
    if origin is list:
        return {"type": "array", "items": schema_of(parts[0])}
    if origin is dict:
        return {"type": "object", "additionalProperties": schema_of(parts[1])}
    return _of_dataclass(type_) if dataclasses.is_dataclass(type_) else dict(_SCALARS[type_])


def _rules(rules: tuple[Any, ...]) -> _Schema:
    stated: _Schema = {}
    for rule in rules:
        match rule:
            case Pattern(expression):
                stated["pattern"] = expression
            case OneOf():
                stated["enum"] = [str(word) for word in rule.words]
    return stated


def _nullable(schema: _Schema) -> _Schema:
    return schema | {"nullable": True}


def _of_dataclass(type_: Any) -> _Schema:
    hints, properties, required = get_type_hints(type_, include_extras=True), {}, []
    for field in dataclasses.fields(type_):
        schema = schema_of(hints[field.name])
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            required.append(field.name)
        properties[field.name] = schema
    about = " ".join((type_.__doc__ or "").split())
    shown = {} if about.startswith(f"{type_.__name__}(") else {"description": about}
    return {"type": "object", **shown, "required": required, "properties": properties}


# -- answers ----------------------------------------------------------------------------------------------


def _object(required: dict[str, _Schema], **optional: _Schema) -> _Schema:
    return {"type": "object", "required": list(required), "properties": required | optional}


def _array(items: _Schema) -> _Schema:
    return {"type": "array", "items": items}


def _page(name: str) -> _Schema:
    return _object({"pagination": reference_to("Pagination"), "results": _array(reference_to(name))})


_STORAGE_FLAGS = ("pre_sign_support", "pre_sign_support_ui", "import_support")
_PREPARED = {"run_id": TEXT, "gc_commits_location": TEXT, "gc_addresses_location": TEXT}
_TASK = {"id": TEXT, "done": FLAG, "update_time": TEXT}
_DUMP = {"commits_meta_range_id": TEXT, "tags_meta_range_id": TEXT, "branches_meta_range_id": TEXT}
_DESCRIBED = {"checksum": TEXT, "mtime": NUMBER, "content_type": TEXT, "metadata": TEXTS}
_PROBLEM = _object({"path": TEXT, "status_code": NUMBER, "message": TEXT})

ANSWERS: dict[str, _Schema] = {
    "Error": _object({"message": TEXT}),
    "Pagination": _object({"has_more": FLAG, "next_offset": TEXT, "results": NUMBER, "max_per_page": NUMBER}),
    "Repository": _object(
        {"id": TEXT, "creation_date": NUMBER, "default_branch": TEXT, "storage_namespace": TEXT},
        storage_id=TEXT, read_only=FLAG, uid=TEXT, metadata=TEXTS,
    ),
    "RepositoryList": _page("Repository"),
    "Metadata": TEXTS,
    "Ref": _object({"id": TEXT, "commit_id": TEXT}),
    "RefList": _page("Ref"),
    "Commit": _object(
        {
            "id": TEXT, "parents": _array(TEXT), "committer": TEXT, "message": TEXT, "creation_date": NUMBER,
            "meta_range_id": TEXT,
        },
        metadata=TEXTS, generation=NUMBER, version=NUMBER,
    ),
    "CommitList": _page("Commit"),
    "ObjectStats": _object(
        {"path": TEXT, "path_type": {"enum": ["object", "common_prefix"]}, "physical_address": TEXT, "checksum": TEXT,
         "mtime": NUMBER},
        physical_address_expiry=NUMBER, size_bytes=NUMBER, metadata=TEXTS, content_type=TEXT,
    ),
    "ObjectStatsList": _page("ObjectStats"),
    "ObjectProperties": _object({}, storage_class=TEXT),
    "ObjectErrorList": _object({}, errors=_array(_PROBLEM), deleted=NUMBER),
    "Diff": _object(
        {"type": {"enum": ["added", "removed", "changed", "conflict", "prefix_changed"]}, "path": TEXT},
        path_type=TEXT, size_bytes=NUMBER, right=_nullable({"type": "object", "properties": _DESCRIBED}),
    ),
    "DiffList": _page("Diff"),
    "MergeResult": _object({"reference": TEXT}),
    "FindMergeBaseResult": _object({"source_commit_id": TEXT, "destination_commit_id": TEXT, "base_commit_id": TEXT}),
    "StagingLocation": _object({"physical_address": TEXT}, presigned_url=TEXT, presigned_url_expiry=NUMBER),
    "PresignMultipartUpload": _object({"upload_id": TEXT, "physical_address": TEXT}, presigned_urls=_array(TEXT)),
    "SignedPart": _object({"presigned_url": TEXT, "presigned_url_expiry": NUMBER}),
    "Started": _object({"id": TEXT}),
    "ImportStatus": _object(
        {"completed": FLAG, "update_time": TEXT},
        ingested_objects=NUMBER, metarange_id=TEXT, commit=reference_to("Commit"), error=reference_to("Error"),
    ),
    "Staged": _object({"staged": NUMBER}),
    "Copied": _object({"copied": NUMBER}),
    "RestoredPrefix": _object({"changes": NUMBER}),
    "StagedState": {"type": "object"},
    "Compaction": {"type": "object"},
    "Collection": {"type": "object"},
    "Restored": {"type": "object"},
    "BranchProtectionRules": _array(_object({"pattern": TEXT})),
    "RetentionRules": _object(
        {"default_retention_days": NUMBER, "branches": _array(_object({"branch_id": TEXT, "retention_days": NUMBER}))}
    ),
    "CompactionRules": _object({"deletions": NUMBER, "sealed_tokens": NUMBER, "pause_ms": NUMBER}),
    "Location": _object({"location": TEXT}),
    "PreparedCommits": _object(_PREPARED, gc_commits_presigned_url=TEXT),
    "PreparedCommitsStatus": _object({"task_id": TEXT, "completed": FLAG, "update_time": TEXT}),
    "PreparedUncommitted": _object({"run_id": TEXT, "gc_uncommitted_location": TEXT}),
    "RefsDump": _object(_DUMP),
    "RefsDumpStatus": _object(_TASK | {"refs": reference_to("RefsDump")}),
    "RefsRestoreStatus": _object(_TASK),
    "ActionRunList": _page("Metadata"),
    "Config": _object({"version_config": reference_to("Version"), "storage_config": reference_to("StorageConfig")}),
    "Version": _object({"version": TEXT}),
    "StorageConfig": _object(
        {"blockstore_type": TEXT, "blockstore_namespace_example": TEXT, **dict.fromkeys(_STORAGE_FLAGS, FLAG)}
    ),
    "CollectionConfig": _object({"grace_period": NUMBER}),
    "CurrentUser": _object({"user": _object({"id": TEXT, "creation_date": NUMBER})}),
    "AuthenticationToken": _object({"token": TEXT, "token_expiration": NUMBER}),
    "SetupState": _object({"state": TEXT}),
    "UsageReport": _object({"installation_id": TEXT, "reports": {"type": "array"}}),
}  # fmt: skip
"""Schemas of answers by their names."""
