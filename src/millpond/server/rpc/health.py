"""Health, which everybody may ask for: few of its requests are received at once, and each within seconds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health, health_pb2

__all__ = ("Health",)

RECEIVED_MAX: Final = 32
"""Requests that are received at once; each may take the memory of the largest message."""
SECONDS: Final = 5.0
"""The time in which a request comes."""


class Health:
    """The health of services, by the protocol of gRPC."""

    def __init__(self) -> None:
        self.states = health.aio.HealthServicer()
        self._received = 0

    def handler(self) -> grpc.GenericRpcHandler:
        """Its methods, as the server of gRPC takes them."""
        written = health_pb2.HealthCheckResponse.SerializeToString
        methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            "Check": grpc.stream_unary_rpc_method_handler(self._check, response_serializer=written),
            "Watch": grpc.stream_stream_rpc_method_handler(self._watch, response_serializer=written),
        }
        return grpc.method_handlers_generic_handler(health.SERVICE_NAME, methods)

    async def _check(self, _requests: AsyncIterator[bytes], context: Any) -> Any:
        return await self.states.Check(await self._request(context), context)

    async def _watch(self, _requests: AsyncIterator[bytes], context: Any) -> None:
        await self.states.Watch(await self._request(context), context)

    async def _request(self, context: Any) -> health_pb2.HealthCheckRequest:
        if self._received >= RECEIVED_MAX:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many ask at once; ask again in a moment")
        self._received += 1
        try:
            async with asyncio.timeout(SECONDS):
                request = await context.read()
            return health_pb2.HealthCheckRequest.FromString(b"" if request is grpc.aio.EOF else request)
        except TimeoutError:
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "the request does not come")
        except DecodeError:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the bytes are no such message")
        finally:
            self._received -= 1
        raise AssertionError("the call was ended")
