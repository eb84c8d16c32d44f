"""A terminal that types the blocks of a guide, with nodes that go on behind its back."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import urllib3

from tests.docs.snippets import ROOT
from tests.ports import free_ports
from tests.rings.forked import script
from tests.rings.servers import shared

PORTS = ("7433", "7434", "7435", "7443", "7453")


class Shell:
    """Types a block of a guide, on ports that are free; what it starts with `&` ends with the test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ports = dict(zip(PORTS, map(str, free_ports(len(PORTS))), strict=True))
        self.jobs: dict[int, subprocess.Popen[bytes]] = {}
        self.starting: list[str] = []
        programs = folder / ".bin"
        programs.mkdir()
        python = f'#!/bin/sh\nexec "{sys.executable}" "$@"\n'
        for name, text in (("millpond", script(shared("commands"))), ("python", python)):
            (programs / name).write_text(text)
            (programs / name).chmod(0o755)
        self.environment = os.environ | {
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT / "src"),
        }  # fmt: skip
        self.environment.pop("MILLPOND_POND", None)

    def on_free_ports(self, text: str) -> str:
        return re.sub("|".join(PORTS), lambda found: self.ports[found[0]], text)

    def type(self, text: str) -> str:
        """Type the lines; what they print, on the screen and as errors."""
        printed, lines = "", ""
        for line in self.on_free_ports(text).splitlines():
            if line.startswith("export "):
                name = line.removeprefix("export ").partition("=")[0]
                self.environment[name] = self.run(f'{line}\nprintf %s "${name}"')
            elif line.endswith(" &") or line.startswith("kill %"):
                printed += self.run(lines) if lines else ""
                lines = ""
                self.control(line)
            else:
                lines += line + "\n"
        return printed + (self.run(lines) if lines else "")

    def run(self, lines: str) -> str:
        self.wait_until_ready()
        done = subprocess.run(
            ["bash", "-euc", lines], cwd=self.folder, env=self.environment, capture_output=True, text=True,
            timeout=300, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    def control(self, line: str) -> None:
        """Start a node or another program, or end one."""
        if line.startswith("kill %"):
            self.end(self.jobs.pop(int(line.removeprefix("kill %"))))
            return
        words = line.removesuffix(" &").split()
        serves = "serve" in words
        if serves and "--port" not in words:
            words += ["--port", self.ports["7433"]]
        number = max(self.jobs, default=0) + 1  # as bash counts
        self.jobs[number] = subprocess.Popen(words, cwd=self.folder, env=self.environment, start_new_session=True)
        if serves:
            self.starting.append(words[words.index("--port") + 1])

    def wait_until_ready(self) -> None:
        """A person who types is slower than a node that starts."""
        pool, pause = urllib3.PoolManager(retries=False), threading.Event()
        while self.starting:
            port = self.starting.pop()
            for _ in range(600):
                try:
                    answer = pool.request("GET", f"http://127.0.0.1:{port}/readyz", timeout=5)
                    # A node that is to be added is ready when it is a member.
                    if answer.status == 200 or b"it is no member" in answer.data:
                        break
                except urllib3.exceptions.HTTPError:
                    pass
                pause.wait(0.1)
            else:
                raise AssertionError(f"the node at {port} is not ready")

    def end(self, *jobs: subprocess.Popen[bytes]) -> None:
        for job in jobs:
            job.send_signal(signal.SIGTERM)
        for job in jobs:
            job.wait(60)

    def close(self) -> None:
        self.end(*(job for job in self.jobs.values() if job.poll() is None))
