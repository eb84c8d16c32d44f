"""Applies commands and tells their stories: `… FOLDER`. Its steps may kill it."""

from __future__ import annotations

import sys

from millpond.clock import ManualClock
from millpond.events.embedded.store import EmbeddedStore
from millpond.server.workflows.event_publisher import teller_of
from millpond.stores.lmdb.space import LmdbSpace
from millpond.testing.faults import arm
from millpond.workflows.processor import Processor
from tests.crash.commands_killed import commands


def main(folder: str) -> None:
    space, clock = LmdbSpace(folder), ManualClock(1_700_000_000_000)
    processor = Processor(space, clock, lambda _: None, stories=True)
    teller = teller_of(space, clock, EmbeddedStore(space, clock).append)
    with arm():
        for number, command in enumerate(commands()):
            future = processor.submit("acme", command)
            while not future.done():
                processor.turn()
            future.result(0)
            if number % 2:
                teller.turn()
        teller.turn()
    space.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
