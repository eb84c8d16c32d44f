"""A connection of Airflow as a place: the addresses of a node, and a token.

host, port      HTTP, 7433; host may begin with https://
password        the token
extra           {"workflows": "host:7434", "tenant": "default", "tls_ca": "/etc/ca.pem"}
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseHook

from millpond.airflow.location import NodeLocation
from millpond.errors import Invalid, MillpondError

if TYPE_CHECKING:
    from airflow.sdk import Connection

__all__ = ("CONNECTION", "HTTP_PORT", "MillpondHook", "location_of")

CONNECTION = "millpond_default"
HTTP_PORT = 7433


def location_of(connection: Connection) -> NodeLocation:
    """The place that a connection names.

    Raises: `Invalid` for one without a host.
    """
    scheme, separator, host = str(connection.host or "").rpartition("://")
    if not host:
        raise Invalid("the connection names no node", kind="airflow_connection", connection=connection.conn_id,
                      hint="give its host, such as pond.example, and port, such as 7433")  # fmt: skip
    port, extra = int(connection.port or HTTP_PORT), connection.extra_dejson
    return NodeLocation(
        f"{scheme or 'http'}{separator or '://'}{host}:{port}", str(extra.get("workflows", f"{host}:{port + 1}")),
        str(extra.get("tenant", "default")), str(connection.password or ""), str(extra.get("tls_ca", "")),
    )  # fmt: skip


class MillpondHook(BaseHook):
    """A connection to a node, as Airflow's pages of connections show and try it."""

    conn_name_attr = "millpond_conn_id"
    default_conn_name = CONNECTION
    conn_type = "millpond"
    hook_name = "Millpond"

    def __init__(self, millpond_conn_id: str = CONNECTION) -> None:
        super().__init__()
        self.millpond_conn_id = millpond_conn_id

    def get_conn(self) -> NodeLocation:
        """The node."""
        return location_of(self.get_connection(self.millpond_conn_id))

    def test_connection(self) -> tuple[bool, str]:
        """True when the node answers, and what it says."""
        try:
            with self.get_conn().open() as pond:
                return True, f"a pond at position {pond.log.position()[0]}"
        except MillpondError as error:
            return False, str(error)

    @classmethod
    def get_ui_field_behaviour(cls) -> dict[str, Any]:
        """The fields that a connection has not, and what others are called."""
        return {"hidden_fields": ["schema", "login"], "relabeling": {"password": "Token"}, "placeholders": {}}
