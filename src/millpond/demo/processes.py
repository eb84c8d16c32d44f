"""A server of workflows and a worker of pipelines, as processes of their own that can be ended at any moment.

Invariant: what is started is ended by `end`, or by the `with` block; a driver of Spark without a worker ends by itself.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from millpond.errors import Unavailable
from millpond.json_forms import FormError, parse_object

__all__ = ("PipelineWorker", "WorkflowServer")

_END_SECONDS = 30.0
_COMMAND = "from millpond.cli.main import main; main()"


@dataclass(slots=True)
class _Process:
    """A command of ours that prints one line of JSON when it is ready; the rest goes to a log."""

    log: Path
    process: subprocess.Popen[bytes] | None = field(default=None, init=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        """End the process, and wait until it has ended. Ending twice is harmless."""
        process, self.process = self.process, None
        if process is None:
            return
        with suppress(ProcessLookupError):
            process.send_signal(number)
        try:
            process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        assert process.stdout is not None
        process.stdout.close()

    def begin(self, words: list[str], first: str = "", **environment: str) -> dict[str, Any]:
        """Start the command; what it prints when it is ready. `first` is Python that runs before it.

        Raises: `Unavailable` naming the log when it ends instead.
        """
        assert self.process is None, "it runs already"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", f"{first}{_COMMAND}", *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=log, env=os.environ | environment,
            )  # fmt: skip
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        try:
            return parse_object(line)
        except FormError:
            self.end()
            raise Unavailable("a process did not start", kind="process_start", command=words[0], log=self.log,
                              hint="the log says why") from None  # fmt: skip


@dataclass(slots=True)
class WorkflowServer(_Process):
    """`millpond serve` on ports that are free when it first starts, and the same ones afterwards.

    With `stories`, runs tell their story as events.
    """

    pond: Path = Path("pond")
    stories: bool = False
    port: int = 0
    grpc_port: int = 0

    @property
    def url(self) -> str:
        """The address of HTTP."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def server(self) -> str:
        """The address of gRPC."""
        return f"127.0.0.1:{self.grpc_port}"

    def start(self) -> None:
        """Begin to serve; it returns when the server is ready.

        Raises: `Unavailable` naming the log when it does not start.
        """
        ready = self.begin(
            ["serve", "--data", str(self.pond), "--port", str(self.port), "--grpc-port", str(self.grpc_port), "--json"],
            MILLPOND_WORKFLOWS_EVENTS="on" if self.stories else "off",
        )
        self.port, self.grpc_port = int(str(ready["url"]).rpartition(":")[2]), int(ready["grpc_port"])


@dataclass(slots=True)
class PipelineWorker(_Process):
    """`millpond worker millpond.pipelines`, with its driver of Spark.

    `heartbeat_seconds`, if it is less, takes the place of the 5 s after which a worker that lost its server is back.
    """

    served: WorkflowServer = field(kw_only=True)
    master: str = "local[*]"
    heartbeat_seconds: int | None = None

    def start(self) -> None:
        """Begin to work; it returns when the tasks are defined.

        Raises: `Unavailable` naming the log when it does not start.
        """
        first = ""
        if self.heartbeat_seconds is not None:
            first = f"import littlehorse.worker as w; w.HEARTBEAT_INTERVAL_SECONDS = {self.heartbeat_seconds}; "
        words = ["worker", "millpond.pipelines", "--server", self.served.server, "--pond", self.served.url]
        self.begin([*words, "--master", self.master, "--json"], first)
