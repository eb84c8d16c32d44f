"""Applies commands and writes their records to topics: `… FOLDER BROKER CLUSTER`. Its steps may kill it."""

from __future__ import annotations

import sys
from contextlib import suppress
from threading import Event

from littlehorse.model import OutputTopicConfig, PutTenantRequest

from millpond.clock import ManualClock, SystemClock
from millpond.errors import Unavailable
from millpond.kernel.space import Space
from millpond.server.workflows.outbox import Outbox
from millpond.server.workflows.output_relay import relay_of
from millpond.settings import load_settings
from millpond.stores.lmdb.space import LmdbSpace
from millpond.testing.faults import arm
from millpond.workflows.engine.metadata.tenancy import CLUSTER
from millpond.workflows.outputs import WaitingOutput
from millpond.workflows.processor import Processor
from tests.crash.commands_killed import commands

SECONDS = 60


def relay_to(broker: str, cluster: str, space: Space, newest: int) -> Outbox[WaitingOutput]:
    settings = load_settings(workflows_output=f"kafka://{broker}/{cluster}").workflows
    return relay_of(settings, 0, space, ManualClock(), newest=newest)


def turned(relay: Outbox[WaitingOutput]) -> int:
    """A turn, as soon as the brokers are ready for it."""
    clock = SystemClock()
    until = clock.monotonic() + SECONDS
    while clock.monotonic() < until:
        with suppress(Unavailable):
            return relay.turn()
        clock.wait(Event(), clock.monotonic() + 0.2)
    raise AssertionError("the brokers take no record")


def main(folder: str, broker: str, cluster: str) -> None:
    space, clock = LmdbSpace(folder), ManualClock(1_700_000_000_000)
    processor = Processor(space, clock, lambda _: None, outputs=True)
    relay = relay_to(broker, cluster, space, 0)
    topics = (CLUSTER, PutTenantRequest(id="acme", output_topic_config=OutputTopicConfig()))
    with arm():
        for number, (tenant, command) in enumerate([topics, *(("acme", command) for command in commands())]):
            future = processor.submit(tenant, command)
            while not future.done():
                processor.turn()
            future.result(0)
            if number % 2:
                turned(relay)
        turned(relay)
    space.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
