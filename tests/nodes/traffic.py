"""A writer and readers that work while nodes change, and hold every answer against what was acknowledged."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Self

import millpond
from millpond.errors import Unavailable, Uncertain
from tests.nodes.following import rows, until


class Traffic:
    """A writer that loads ever larger numbers, and readers that never see a number fall below what was acknowledged."""

    def __init__(self, url: str, *, reads_stop: bool) -> None:
        """`reads_stop`: while the primary is away for long, no node may answer."""
        self.url, self.reads_stop = url, reads_stop
        self.tried = self.acknowledged = self.answers = 0
        self.faults: list[str] = []
        self.over = threading.Event()
        self.threads = [threading.Thread(target=act) for act in (self.write, self.read, self.read)]

    def __enter__(self) -> Self:
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.over.set()
        for thread in self.threads:
            thread.join()

    def write(self) -> None:
        with millpond.open(self.url, client_synchronise=True, client_attempts=1) as pond:
            loaded = pond.map("m")
            while not self.over.is_set():
                self.tried = self.acknowledged + 1
                try:
                    loaded.load(rows("a", value=self.tried))
                except (Unavailable, Uncertain):
                    self.over.wait(0.05)  # it is loaded again
                except Exception as error:
                    self.faults.append(repr(error))
                    return
                else:
                    self.acknowledged = self.tried

    def read(self) -> None:
        with millpond.open(self.url, client_attempts=20) as pond:
            read = pond.map("m")
            while not self.over.is_set():
                least = self.acknowledged
                try:
                    value = read.get("a")
                except Exception as error:
                    if self.reads_stop and isinstance(error, Unavailable):
                        continue
                    self.faults.append(repr(error))
                    return
                if not least <= value <= self.tried:
                    self.faults.append(f"{value} is not between {least} and {self.tried}")
                self.answers += 1

    def goes_on(self) -> None:
        """Wait for one more load, begun from now on, and one more answer."""
        loads, answers = self.acknowledged + 1, self.answers
        until(lambda: self.faults or (self.acknowledged > loads and self.answers > answers))
        assert not self.faults, self.faults
