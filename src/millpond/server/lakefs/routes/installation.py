"""The node as an installation: its health, and what clients ask about its storage before they use it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from starlette.responses import Response

from millpond.server.lakefs.errors import json_answer

if TYPE_CHECKING:
    from millpond.server.lakefs.call import Call

__all__ = ("API_VERSION", "HANDLERS")

API_VERSION = "1.84.0"
"""The version of lakeFS whose API this is: clients compare it, as numbers, with what they need."""
_EVERYWHERE = r"^(s3|local)://"


def _storage_config() -> dict[str, Any]:
    """The storage, as clients see it: bytes lie below a namespace, and the node signs URLs itself."""
    return {
        "blockstore_type": "local", "blockstore_namespace_example": "local://example/",
        "blockstore_namespace_ValidityRegex": _EVERYWHERE, "default_namespace_prefix": "local://",
        "pre_sign_support": True, "pre_sign_support_ui": False, "pre_sign_multipart_upload": True,
        "import_support": True, "import_validity_regex": _EVERYWHERE, "blockstore_id": "", "blockstore_description": "",
    }  # fmt: skip


def _version_config() -> dict[str, Any]:
    """The version of the API. Without a `version_context`: lakectl takes any but lakeFS' own for another edition."""
    return {"version": API_VERSION}


def _get_config(_call: Call) -> Response:
    """`GET /config`."""
    storage = _storage_config()
    return json_answer({
        "version_config": _version_config(), "storage_config": storage, "storage_config_list": [storage],
        "ui_config": {"custom_viewers": []}, "capabilities_config": {"async_ops": False},
    })  # fmt: skip


def _get_version(_call: Call) -> Response:
    """`GET /config/version`."""
    return json_answer(_version_config())


def _get_storage(_call: Call) -> Response:
    """`GET /config/storage`."""
    return json_answer(_storage_config())


async def _check_health(_call: Call) -> Response:
    """`GET /healthcheck`."""
    return Response(status_code=204)


HANDLERS = {
    ("GET", "/healthcheck"): _check_health,
    ("GET", "/config"): _get_config,
    ("GET", "/config/version"): _get_version,
    ("GET", "/config/storage"): _get_storage,
}
