"""The guide for operators: its three nodes run, fail and come back as it says, and it names all there is."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import urllib3

from millpond.settings import Settings
from tests.docs.snippets import ROOT, snippets
from tests.nodes.conftest import free_ports

PAGE = "docs/nodes.md"
TEXT = (ROOT / PAGE).read_text(encoding="utf-8")
PORTS = ("7433", "7434", "7435")


class Shell:
    """Types a block of the guide, on ports that are free; what it starts with `&` ends with the test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ports = dict(zip(PORTS, map(str, free_ports(3)), strict=True))
        self.jobs: list[subprocess.Popen[bytes]] = []
        self.starting: list[str] = []
        programs = folder / ".bin"
        programs.mkdir()
        (programs / "millpond").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m millpond "$@"\n')
        (programs / "millpond").chmod(0o755)
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
        """Start a node, or end one."""
        if line.startswith("kill %"):
            self.end(self.jobs[int(line.removeprefix("kill %")) - 1])
            return
        words = line.removesuffix(" &").split()
        if "--port" not in words:
            words += ["--port", self.ports["7433"]]
        self.jobs.append(subprocess.Popen(words, cwd=self.folder, env=self.environment, start_new_session=True))
        self.starting.append(words[words.index("--port") + 1])

    def wait_until_ready(self) -> None:
        """A person who types is slower than a node that starts."""
        pool, pause = urllib3.PoolManager(retries=False), threading.Event()
        while self.starting:
            port = self.starting.pop()
            for _ in range(600):
                try:
                    if pool.request("GET", f"http://127.0.0.1:{port}/readyz", timeout=5).status == 200:
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
        self.end(*(job for job in self.jobs if job.poll() is None))


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    made = Shell(tmp_path)
    with ExitStack() as ended:
        ended.callback(made.close)
        yield made


def test_three_nodes_do_what_the_guide_says(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    blocks = [snippet for snippet in snippets(PAGE) if snippet.heading == "Three nodes"]
    (settings,) = [snippet.text for snippet in blocks if snippet.language == "toml"]
    (shell.folder / "millpond.toml").write_text(shell.on_free_ports(settings))
    start, load, fail = [snippet.text for snippet in blocks if snippet.language == "sh"]
    shell.type(start)
    printed = shell.type(load)
    assert "loaded 3 rows into weather" in printed
    assert "all nodes agree" in printed
    printed = shell.type(fail)
    assert "the load is not on every node, so it is on none" in printed
    assert "as expected" in printed
    assert "33.1" in printed, "reads go on"
    assert printed.rstrip().endswith("all nodes agree")
    (python,) = [snippet.text for snippet in blocks if snippet.language == "python"]
    exec(compile(shell.on_free_ports(python), PAGE, "exec"), {})
    (promised,) = re.findall(r"^print\(.*\)  # (.*)$", python, re.MULTILINE)
    assert capsys.readouterr().out.strip() == promised


def test_the_node_of_the_readme_serves(shell: Shell) -> None:
    blocks = [snippet for snippet in snippets("README.md") if snippet.language == "sh"]
    (served,) = [snippet.text for snippet in blocks if snippet.serves]
    (prepared,) = [
        snippet.text for snippet in blocks if snippet.heading == "Five minutes" and "millpond load" in snippet.text
    ]
    shell.type("".join(line for line in prepared.splitlines(True) if not line.startswith("millpond enrich")))
    printed = shell.type(served)
    assert "rows into weather" in printed
    assert "18.4" in printed


def test_every_setting_that_is_named_is_one() -> None:
    for name in re.findall(r"`([a-z]+(?:_[a-z]+)+)`", TEXT):
        assert name in Settings.model_fields or name in KNOWN or _is_kind(name), name


KNOWN = ("replicate", "maintenance_suspended")


def _is_kind(name: str) -> bool:
    return f"`{name}`" in (ROOT / "docs" / "errors.md").read_text(encoding="utf-8") or name.startswith("millpond_")


def test_every_job_and_its_interval_is_explained() -> None:
    intervals = [name for name in Settings.model_fields if name.endswith("_interval") and "retry" not in name]
    assert len(intervals) == 10
    for name in intervals:
        assert f"`{name}`" in TEXT, name
    for job in (
        "merge",
        "condense",
        "retain",
        "compact",
        "snapshot",
        "cleanup",
        "orphans",
        "replicate",
        "compare",
        "verify",
    ):
        assert f"`{job}`" in TEXT, job


def test_every_metric_that_is_named_is_one() -> None:
    from millpond.server import metrics

    for name in re.findall(r"`(millpond_\w+)`", TEXT):
        assert f"`{name}`" in (metrics.__doc__ or ""), name
