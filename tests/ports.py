"""Ports of the loopback for servers that tests start, and start again.

They lie below those that outgoing connections are given: no connection takes one while its server is off.
"""

from __future__ import annotations

import socket
from contextlib import suppress

from tests.harness.cluster import free_port


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on, as on the next ones, where gRPC is served."""
    found: list[int] = []
    while len(found) < count:
        port = free_port()
        with suppress(OSError), socket.create_server(("127.0.0.1", port + 1)):
            found += [port] * (not {port - 1, port, port + 1} & set(found))
    return found
