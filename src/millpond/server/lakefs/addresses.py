"""Addresses that clients name: of bytes below the namespace, or elsewhere where the settings allow it; and namespaces.

Invariants:
* An address below the namespace lies in `data/`: never among ranges, nor outside.
* An address elsewhere begins with one of `versions.sources`, and is a path without `..`.
* A namespace is `local://NAME`, or begins with one of `versions.namespaces`. It means what it says: nothing in it is an
  escape, a query, or a way up.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from millpond.errors import Denied, Invalid
from millpond.stores.objects.sources import split_address
from millpond.versions.objects.uploads import DATA, is_full_address, relative_address

if TYPE_CHECKING:
    from millpond.versions.repository_context import RepositoryContext

__all__ = ("NAMESPACES", "check_import", "check_namespace", "check_source", "checked_address", "checked_column")

NAMESPACES = r"^(s3|gs|https?|mem|local|transient)://.*$"
"""The namespaces that clients may send; places that cannot be opened are refused by the store."""
_ESCAPES = re.compile(r"[%?#\\\x00-\x1f\x7f]")
_LOCAL = "local://"

_NAME = rf"^{DATA}/[A-Za-z0-9_+=-][A-Za-z0-9._+=,-]*(/[A-Za-z0-9_+=-][A-Za-z0-9._+=,-]*)*$"

_ONE_NAME = re.compile(_NAME)


def check_source(allowed: Sequence[str], address: str) -> None:
    """Refuse an address elsewhere that the settings do not allow.

    Raises: `Denied`, kind `source_denied`; `Invalid` for text that is no address.
    """
    split_address(address)
    if not any(_begins(address, start) for start in allowed):
        raise Denied(
            "objects may not be taken from there", kind="source_denied", address=address,
            hint="add the place to versions.sources, such as s3://bucket/ or local:///folder/",
        )  # fmt: skip


def check_import(namespace: str, allowed: Sequence[str], address: str, *, prefix: bool) -> None:
    """Refuse to import from a place that the settings do not allow, or what is the repository's own already.

    Raises: as `check_source`; `Invalid`, kind `import_own`.
    """
    own = namespace.rstrip("/")
    if _begins(address, own) or (prefix and own.startswith(address)):
        raise Invalid(
            "invalid import source: the repository's own objects lie there", kind="import_own", address=address,
            namespace=namespace, hint="name a place outside of the namespace",
        )  # fmt: skip
    check_source(allowed, address)


def _begins(address: str, start: str) -> bool:
    return address.startswith(start) if start.endswith("/") else f"{address}/".startswith(f"{start}/")


def check_namespace(allowed: Sequence[str], namespace: str) -> None:
    """Refuse a place for a repository that the settings do not allow, or that is a folder of the machine.

    Raises: `Invalid`, kind `namespace_place`; `Denied`, kind `namespace_denied`.
    """
    name = namespace.partition("://")[2].rstrip("/")
    plain = not {"", ".", ".."} & set(name.split("/")) and not _ESCAPES.search(name)
    if not plain or not re.match(NAMESPACES, namespace):
        raise Invalid(
            "a node puts no repository there", kind="namespace_place", place=namespace,
            hint="name none, or local://NAME, a folder of the pond, or s3://bucket/prefix",
        )  # fmt: skip
    if not namespace.startswith(_LOCAL) and not any(_begins(namespace, start) for start in allowed):
        raise Denied(
            "repositories may not be put there", kind="namespace_denied", place=namespace,
            hint="name local://NAME, a folder of the node, or add the place to versions.namespaces: s3://bucket/prefix/",
        )  # fmt: skip


def checked_address(context: RepositoryContext, allowed: Sequence[str], address: str) -> str:
    """The address as an entry has it: the name below the namespace, or the whole URL.

    Raises: as `check_source`.
    """
    name = relative_address(context.namespace, address)
    if is_full_address(name):
        check_source(allowed, name)
    elif not _ONE_NAME.fullmatch(name):
        raise _outside(name)
    return name


def checked_column(context: RepositoryContext, allowed: Sequence[str], addresses: pa.Array) -> pa.Array:
    """A column of addresses as entries have them.

    Raises: as `check_source`.
    """
    own = f"{context.namespace.rstrip('/')}/"
    if pc.any(pc.starts_with(addresses, own)).as_py():
        addresses = pa.array([relative_address(context.namespace, address) for address in addresses.to_pylist()])
    inside = pc.match_substring_regex(addresses, _NAME)
    if pc.all(inside).as_py() is not False:
        return addresses
    for address in pc.unique(addresses.filter(pc.invert(inside))).to_pylist():
        if not is_full_address(address):
            raise _outside(address)
        check_source(allowed, address)
    return addresses


def _outside(address: str) -> Invalid:
    return Invalid(
        "address is outside of the repository's data", kind="address_invalid", address=address,
        hint="upload to an address of staging/backing, or name the whole address of an object elsewhere",
    )  # fmt: skip
