"""From a place, as a person writes it, to its objects."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

from millpond.errors import Invalid
from millpond.stores.objects.folder import FolderObjects
from millpond.stores.objects.memory import MemoryObjects
from millpond.stores.objects.protocol import Objects, ObjectStore

__all__ = ("can_presign", "open_objects", "presign")

_URL = re.compile(r"([a-z][a-z0-9+]*)://")


def open_objects(where: str | Path, **config: object) -> ObjectStore:
    """The objects of a folder (made if missing), of `memory://`, or of `s3://bucket/prefix`.

    `config` is for S3 alone: `endpoint`, `region`, `allow_http`, `virtual_hosted_style_request` and what else obstore
    takes; the rest comes from the environment, as the credentials should.

    Raises: `Invalid` for a place that is not understood.
    """
    text = str(where)
    scheme = match[1] if (match := _URL.match(text)) else "file"
    if config and scheme != "s3":
        raise Invalid(
            "a folder takes no configuration", kind="objects_config", where=where, names=sorted(config),
            hint="leave it out",
        )  # fmt: skip
    if scheme == "file":
        return FolderObjects(text.removeprefix("file://"))
    if scheme == "memory":
        return MemoryObjects()
    if scheme == "s3":
        # obstore is a large library, and most ponds lie in folders.
        from millpond.stores.objects.bucket import BucketObjects

        return BucketObjects(text, config)
    raise Invalid(
        "objects cannot be opened", kind="objects_config", where=where, reason="an unknown kind of place",
        hint="name a folder, or a bucket such as s3://bucket/prefix",
    )  # fmt: skip


def presign(objects: Objects, name: str, seconds: int = 3600, method: Literal["GET", "PUT"] = "GET") -> str:
    """A URL by which anybody may read an object for so long, or write it.

    Raises: `Invalid`, kind `objects_unsupported`, for a place that has no URLs; `Denied` without credentials.
    """
    presigned = getattr(objects, "presigned", None)
    if presigned is None:
        raise Invalid(
            "this place gives no URLs for its objects", kind="objects_unsupported", operation="presign",
            where=objects.where, hint="only a bucket does: s3://bucket/prefix",
        )  # fmt: skip
    return str(presigned(name, seconds, method))


def can_presign(objects: Objects) -> bool:
    """True when the place has URLs of its own for its objects."""
    return hasattr(objects, "presigned")
