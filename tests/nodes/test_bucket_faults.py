"""Three nodes on one bucket, killed, emptied and started at random under load: nothing acknowledged is lost or doubled.

Each writer loads one row after another, each once, and sends a load again whose answer was lost.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

import pytest

import millpond
from millpond.errors import MillpondError, Unavailable
from tests.harness.buckets.fleet import Fleet, strikes_of

if TYPE_CHECKING:
    from pathlib import Path

    from tests.s3_server import S3Server

WRITERS, SEED = 3, 11


class Writer(threading.Thread):
    """Loads one row after another, and looks for what it loaded."""

    def __init__(self, number: int, addresses: str, until: threading.Event) -> None:
        super().__init__(daemon=True)
        self.number, self._addresses, self._until = number, addresses, until
        self.acknowledged, self.wrong = 0, list[str]()

    def run(self) -> None:
        with millpond.open(self._addresses, client_read_timeout="20s") as pond:
            target = pond.map("m")
            while not self._until.is_set():
                key = f"{self.number}-{self.acknowledged}"
                self._load(target, key)
                self.acknowledged += 1
                try:
                    seen = target.get(key)
                except MillpondError as error:
                    self.wrong.append(f"a read was refused: {error}")
                    continue
                if seen != self.acknowledged:
                    self.wrong.append(f"{key} was acknowledged, and is {seen}")

    def _load(self, target: object, key: str) -> None:
        for _ in range(20):
            try:
                target.load([{"key": key, "value": self.acknowledged + 1}], source=key)  # type: ignore[attr-defined]
            except Unavailable:
                continue  # the same data again: it is entered once
            except MillpondError as error:
                self.wrong.append(f"{key} was refused: {error}")
            return
        self.wrong.append(f"{key} was refused again and again")


@pytest.mark.full
@pytest.mark.parametrize("strikes", [2, 20])
@pytest.mark.usefixtures("process")
def test_nodes_on_a_bucket_stand_being_killed_and_emptied(strikes: int, tmp_path: Path, s3_server: S3Server) -> None:
    url = f"{s3_server.make_bucket(f'faults-{os.getpid()}-{strikes}')}/pond"
    fleet, until = Fleet(s3_server, url, tmp_path), threading.Event()
    try:
        for port in fleet.ports:
            fleet.start(port)
        with millpond.open(fleet.addresses) as pond:
            pond.create_map("m", kind="state", value="long")
        writers = [Writer(number, fleet.addresses, until) for number in range(WRITERS)]
        for writer in writers:
            writer.start()
        pause = threading.Event()
        for struck in strikes_of(SEED, fleet.ports, strikes):
            before = sum(writer.acknowledged for writer in writers)
            while sum(writer.acknowledged for writer in writers) < before + WRITERS and not _wrong(writers):
                pause.wait(0.05)
            for port, emptied in struck.items():
                fleet.kill(port, empty=emptied)
            for port in struck:
                fleet.start(port)
        until.set()
        for writer in writers:
            writer.join(60)
        assert _wrong(writers) == []
        keys = [f"{writer.number}-{load}" for writer in writers for load in range(writer.acknowledged)]
        for port in fleet.ports:
            with millpond.open(f"http://127.0.0.1:{port}") as pond:
                assert None not in pond.map("m").lookup(keys).to_pylist()
                loads = [entry for entry in pond.log.entries(0, 10_000) if entry.kind == "load"]
                sources = [entry.body["source"] for entry in loads]
                assert sorted(sources) == sorted(keys), "each counts once"
                assert pond.verify().ok
    finally:
        until.set()
        fleet.close()


def _wrong(writers: list[Writer]) -> list[str]:
    return [text for writer in writers for text in writer.wrong]
