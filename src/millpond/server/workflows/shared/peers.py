"""Calls to the other processes: a command for a partition that is theirs, rows of it.

Invariants:
* a call that may have reached the other process is not sent again: its error says that the end is not known;
* `Elsewhere` is raised only when nothing was done.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
from grpc import StatusCode

from millpond.client.wire_errors import KIND_KEY, from_grpc
from millpond.errors import MillpondError, Unavailable, Uncertain

if TYPE_CHECKING:
    from millpond.settings import Settings

__all__ = ("ELSEWHERE", "METHODS", "SERVICE", "Elsewhere", "Peers")

SERVICE = "millpond.Workflows"
METHODS = ("Submit", "Rows", "Workers", "Members")
ELSEWHERE = "partition_elsewhere"
_STOPPING = "node_stopping"
_CONNECT_SECONDS = 1.0
_CALL_SECONDS = 60.0


class Elsewhere(Unavailable):
    """A partition that is not at the process that was called, or a process that cannot be reached; nothing was done."""

    kind = ELSEWHERE


class Peers:
    """The other processes, by their addresses. Used from the event loop it was made in."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._channels: dict[str, grpc.aio.Channel] = {}

    async def call(self, address: str, method: str, request: bytes) -> bytes:
        """The response of another process.

        Raises: `Elsewhere`; the error that the other process answers; `Uncertain`, kind `command_moved`.
        """
        channel = self._channel(address)
        await _ready(channel, address)
        token = self._settings.client.token
        calling: Any = channel.unary_unary(f"/{SERVICE}/{method}")
        try:
            return bytes(
                await calling(request, timeout=_CALL_SECONDS,
                              metadata=[("authorization", f"Bearer {token}")] if token else None)
            )  # fmt: skip
        except grpc.aio.AioRpcError as error:
            raise _classify_error(error, address) from None

    async def close(self) -> None:
        """Let go of all connections."""
        for channel in self._channels.values():
            await channel.close()
        self._channels.clear()

    def _channel(self, address: str) -> grpc.aio.Channel:
        channel = self._channels.get(address)
        if channel is None:
            settings = self._settings
            options = [("grpc.max_receive_message_length", -1), ("grpc.max_reconnect_backoff_ms", 1_000)]
            if settings.secure:
                trusted = Path(settings.tls.ca).read_bytes() if settings.tls.ca else None
                own = Path(settings.tls.key).read_bytes(), Path(settings.tls.cert).read_bytes()
                credentials = grpc.ssl_channel_credentials(trusted, *own)
                channel = grpc.aio.secure_channel(address, credentials, options=options)
            else:
                channel = grpc.aio.insecure_channel(address, options=options)
            self._channels[address] = channel
        return channel


async def _ready(channel: grpc.aio.Channel, address: str) -> None:
    """Wait until there is a connection: what is sent without one is not known to have gone nowhere."""
    try:
        async with asyncio.timeout(_CONNECT_SECONDS):
            await channel.channel_ready()
    except TimeoutError:
        raise Elsewhere("the process cannot be reached", address=address, hint="it may be stopping") from None


def _classify_error(error: grpc.aio.AioRpcError, address: str) -> MillpondError:
    metadata = dict(list(error.trailing_metadata() or ()))  # its own type is no Mapping for dict()
    kind, details = metadata.get(KIND_KEY), error.details() or error.code().name
    if kind in (ELSEWHERE, _STOPPING):  # one that stops does nothing more: the partition comes to another one
        return Elsewhere(details)
    if error.code() in (StatusCode.UNAVAILABLE, StatusCode.CANCELLED, StatusCode.DEADLINE_EXCEEDED) and kind is None:
        return Uncertain(
            "the connection to the partition's owner was lost", kind="command_moved", address=address,
            hint="look if it was done before you send it again",
        )  # fmt: skip
    return from_grpc(address, metadata, error.code().name, details, "workflows_peer")
