"""Assets of Airflow: `millpond://NODE/MAP` and `millpond://NODE/REPOSITORY/BRANCH`.

An asset is updated from outside, when anybody loads the map or commits on the branch, by `watched`; and by a task that
has it among its outlets, as any asset is.
"""

from __future__ import annotations

from urllib.parse import SplitResult, unquote, urlsplit

from airflow.sdk import Asset, AssetWatcher

from millpond.airflow.hook import CONNECTION, HTTP_PORT
from millpond.airflow.triggers import DataTrigger
from millpond.errors import Invalid

__all__ = ("data_of", "sanitize_uri", "watched")


def sanitize_uri(parts: SplitResult) -> SplitResult:
    """The one form of an address, as Airflow asks for it: with a port.

    Raises: `Invalid` for one that names no node, or no data.
    """
    if not parts.hostname or parts.path in ("", "/"):
        raise Invalid("an asset of Millpond names a node, and a map or a branch", kind="airflow_asset",
                      uri=parts.geturl(), hint="millpond://pond.example/weather, …/REPOSITORY/BRANCH")  # fmt: skip
    return parts._replace(netloc=f"{parts.hostname}:{parts.port or HTTP_PORT}")


def data_of(uri: str) -> str:
    """The map, or REPOSITORY/BRANCH, of an asset.

    >>> data_of("millpond://pond.example:7433/flights/main"), data_of("millpond://pond.example/weather")
    ('flights/main', 'weather')

    Raises: `Invalid`.
    """
    return unquote(sanitize_uri(urlsplit(uri)).path.strip("/"))


def watched(uri: str, millpond_conn_id: str = CONNECTION) -> Asset:
    """An asset that is updated by each load or commit; the event holds its position or id as `mark`.

    Raises: `Invalid`.
    """
    trigger = DataTrigger(data_of(uri), millpond_conn_id)
    return Asset(uri, watchers=[AssetWatcher(name=f"{millpond_conn_id} {data_of(uri)}", trigger=trigger)])
