"""The node as an installation: its health, and what clients ask about its storage before they use it."""

from __future__ import annotations

from typing import Any

import msgspec

from millpond.server.lakefs.dialect import operations
from millpond.server.lakefs.needs import ANYBODY, PAIR

__all__ = ("API_VERSION", "Config", "StorageConfig", "Version", "routes")

API_VERSION = "1.84.0"
"""The version of lakeFS whose API this is: clients compare it, as numbers, with what they need."""
_EVERYWHERE = r"^(s3|local)://"
routes = operations("installation")


class Version(msgspec.Struct):
    """The version of the API. Without a `version_context`: lakectl takes any but lakeFS' own for another edition."""

    version: str = API_VERSION


class StorageConfig(
    msgspec.Struct, rename={"namespace_validity_regex": "blockstore_namespace_ValidityRegex"}
):  # fmt: skip
    """The storage, as clients see it: bytes lie below a namespace, and the node signs URLs itself."""

    blockstore_type: str = "local"
    blockstore_namespace_example: str = "local://example/"
    namespace_validity_regex: str = _EVERYWHERE
    default_namespace_prefix: str = "local://"
    pre_sign_support: bool = True
    pre_sign_support_ui: bool = False
    pre_sign_multipart_upload: bool = True
    import_support: bool = True
    import_validity_regex: str = _EVERYWHERE
    blockstore_id: str = ""
    blockstore_description: str = ""


class Config(msgspec.Struct):
    """All of the configuration."""

    version_config: Version
    storage_config: StorageConfig
    storage_config_list: list[StorageConfig]
    ui_config: dict[str, list[Any]]
    capabilities_config: dict[str, bool]


@routes.get("/config", PAIR)
def _get_config() -> Config:
    storage = StorageConfig()
    return Config(Version(), storage, [storage], {"custom_viewers": []}, {"async_ops": False})


@routes.get("/config/version", PAIR)
def _get_version() -> Version:
    return Version()


@routes.get("/config/storage", PAIR)
def _get_storage() -> StorageConfig:
    return StorageConfig()


@routes.get("/healthcheck", ANYBODY, status=204)
async def _check_health() -> None:
    """204."""
