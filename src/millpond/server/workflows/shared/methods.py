"""The methods by which the processes of one group call one another. A token needs the right `admin` on the tenant."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING

from millpond.server.armada.calls import Call, Means, Method, answering
from millpond.server.workflows.rights import need_tenant
from millpond.server.workflows.shared.peers import METHODS, SERVICE
from millpond.server.workflows.shared.wire import parts_of

if TYPE_CHECKING:
    from millpond.server.workflows.shared.service import SharedWorkflows

__all__ = ("peer_methods",)


def peer_methods(means: Means, service: SharedWorkflows) -> dict[str, Method]:
    """The methods of `millpond.Workflows`."""
    return {
        name: answering(means, f"/{SERVICE}/{name}", _admitted(partial(service.for_peer, name)), audited=False)
        for name in METHODS
    }  # fmt: skip


def _admitted(act: Callable[[bytes], Awaitable[bytes]]) -> Callable[[Call, bytes], Awaitable[bytes]]:
    async def admitted(call: Call, data: bytes) -> bytes:
        need_tenant(call.caller, "admin", str(parts_of(data)[1]))
        return await act(data)

    return admitted
