"""Health, which everybody may ask for: few of its requests are received at once, each within seconds, and few watch.

A caller is known by its address, and what one address holds is bounded as `server/shares.py` says: whoever asks as
much as it can leaves room for those who look after the node.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any, Final

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health, health_pb2

from millpond.server.routes.table import On, RouteNeeds, Work
from millpond.server.rpc.dispatch import form_of
from millpond.server.shares import Shares

__all__ = ("NEEDS", "RECEIVED_MAX", "REQUEST_BYTES_MAX", "WATCHES_MAX", "Health")

RECEIVED_MAX: Final = 16
"""Requests that are received at once; each may take the memory of the largest message until its length is known."""
SECONDS: Final = 5.0
"""The time in which a request comes."""
REQUEST_BYTES_MAX: Final = 1 << 10
"""The largest request: it has nothing but the name of a service, and that of a watch is kept."""
NEEDS: Final = {
    name: RouteNeeds(None, On.NOTHING, work, REQUEST_BYTES_MAX)
    for name, work in (("Check", Work.CALL), ("Watch", Work.WATCH))
}
"""The needs of its methods."""
WATCHES_MAX: Final = 256
"""Watches of health that are open at once, shared between addresses."""


class Health:
    """The health of services, by the protocol of gRPC."""

    def __init__(self) -> None:
        self.states = health.aio.HealthServicer()
        self._received, self._watches = Shares(RECEIVED_MAX), Shares(WATCHES_MAX)

    def handler(self) -> grpc.GenericRpcHandler:
        """Its methods, as the server of gRPC takes them."""
        written, acts = health_pb2.HealthCheckResponse.SerializeToString, {"Check": self._check, "Watch": self._watch}
        methods = {name: form_of(needs.work)(acts[name], response_serializer=written) for name, needs in NEEDS.items()}
        return grpc.method_handlers_generic_handler(health.SERVICE_NAME, methods)

    async def _check(self, _requests: AsyncIterator[bytes], context: Any) -> Any:
        return await self.states.Check(await self._request(context), context)

    async def _watch(self, _requests: AsyncIterator[bytes], context: Any) -> None:
        with _held(self._watches, context) as has_room:
            if not has_room:
                await _refuse(context, "as many watch the health of the node as may; ask for it instead")
            await self.states.Watch(await self._request(context), context)

    async def _request(self, context: Any) -> health_pb2.HealthCheckRequest:
        request = await self._bytes(context)
        if len(request) > REQUEST_BYTES_MAX:
            await _refuse(context, f"a request of {len(request)} bytes; the name of a service has few")
        try:
            return health_pb2.HealthCheckRequest.FromString(request)
        except DecodeError:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the bytes are no such message")
        raise AssertionError("the call was ended")

    async def _bytes(self, context: Any) -> bytes:
        with _held(self._received, context) as has_room:
            if not has_room:
                await _refuse(context, "too many ask at once; ask again in a moment")
            try:
                async with asyncio.timeout(SECONDS):
                    request = await context.read()
            except TimeoutError:
                await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "the request does not come")
        return b"" if request is grpc.aio.EOF else request


async def _refuse(context: Any, reason: str) -> None:
    await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, reason)


@contextmanager
def _held(shares: Shares, context: Any) -> Iterator[bool]:
    address = str(context.peer()).rpartition(":")[0]
    with shares.holding(address) as has_room:
        yield has_room
