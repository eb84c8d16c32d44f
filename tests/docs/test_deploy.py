"""The files below `deploy/` start nodes: each is read as systemd or Docker reads it, and its commands are run.

Neither systemd as the first process nor a Docker engine is needed, so neither is tried. The unit's command runs as a
process with the unit's environment, in a mount namespace in which the package and its environment are read-only
(where the system allows to make one). The services of the compose file run as processes of this machine with their
environment, on free ports instead of addresses of their own; their health checks run as they stand. The image itself is
not built.
"""

from __future__ import annotations

import configparser
import functools
import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import urllib3
import yaml

from millpond.cli.terminal.exits import EXIT_USAGE, EXITS
from millpond.errors import Denied, Invalid
from millpond.nodes.limits import LIMITS
from millpond.server.run import END_SECONDS
from millpond.settings import SETTINGS, unknown_in_environment
from tests.docs.snippets import ROOT
from tests.ports import free_ports

pytestmark = pytest.mark.full

DEPLOY = ROOT / "deploy"
UNIT = DEPLOY / "millpond.service"
SHUTDOWN_SECONDS = 60


# -- systemd ------------------------------------------------------------------------------------------


class Unit(configparser.RawConfigParser):
    """A unit of systemd: names keep their case, and a name that stands twice has both values."""

    def __init__(self) -> None:
        super().__init__(
            strict=False, dict_type=_Values, interpolation=None, delimiters=("=",), comment_prefixes=("#",)
        )
        self.read(UNIT)

    def optionxform(self, optionstr: str) -> str:
        return optionstr


class _Values(dict[str, Any]):
    """Lists of a name that stands twice are joined."""

    def __setitem__(self, name: str, value: Any) -> None:
        if isinstance(value, list) and isinstance(self.get(name), list):
            value = self[name] + value
        super().__setitem__(name, value)


def unit_environment(unit: Unit, folders: Mapping[str, Path]) -> dict[str, str]:
    """The environment that systemd would give, with its folders in place of `%S`, `%C` and `%E`."""
    found: dict[str, str] = {}
    for line in unit["Service"]["Environment"].splitlines():
        name, _, value = line.partition("=")
        found[name] = re.sub(r"%([SCE])", lambda letter: str(folders[letter[1]]), value)
    return found


@functools.cache
def can_mount() -> bool:
    """True when this user may make a mount namespace and mounts in it."""
    if shutil.which("unshare") is None:
        return False
    tried = [*_namespace(), "sh", "-c", "mount -o remount,bind,ro /"]
    return subprocess.run(tried, capture_output=True, check=False).returncode == 0


def _namespace() -> list[str]:
    return ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user", "--mount"]


def read_only_but(folders: Sequence[Path], command: Sequence[str]) -> list[str]:
    """The command in a file system that is read-only but for these folders, as `ProtectSystem=strict` makes it."""
    if not can_mount():
        return list(command)
    binds = "".join(f'mount --bind "{folder}" "{folder}"; ' for folder in folders)
    roots = "; ".join(f'mount --bind "{place}" "{place}"; mount -o remount,bind,ro "{place}"' for place in _read_only())
    return [*_namespace(), "sh", "-ec", f'{roots}; {binds}exec "$@"', "sh", *command]


def _read_only() -> list[Path]:
    """The install: the package, and the Python that runs it."""
    return [ROOT / "src", Path(sys.prefix)]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_understands_the_unit(tmp_path: Path) -> None:
    command = tmp_path / "millpond"
    command.write_text("#!/bin/sh\n")
    command.chmod(0o755)
    copy = tmp_path / "millpond.service"
    copy.write_text(UNIT.read_text().replace("/opt/millpond/bin/millpond", str(command)))
    done = subprocess.run(["systemd-analyze", "verify", str(copy)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_unit_starts_a_node(tmp_path: Path) -> None:
    unit = Unit()
    folders = {letter: tmp_path / name for letter, name in (("S", "lib"), ("C", "cache"), ("E", "etc"))}
    own = [folder / "millpond" for folder in folders.values()]
    for folder in own:
        folder.mkdir(parents=True)
    (own[2] / "millpond.toml").write_text((DEPLOY / "millpond.toml").read_text())
    (port,) = free_ports(1)
    words = unit["Service"]["ExecStart"].split()
    assert words[0] == "/opt/millpond/bin/millpond"
    environment = unit_environment(unit, folders) | {"MILLPOND_SERVER_PORT": str(port), "HOME": "/nonexistent"}
    command = read_only_but(own, [sys.executable, "-m", "millpond", *words[1:]])
    with running(command, environment, tmp_path) as process:
        assert wait_for(port, "/readyz", process)["ready"]
        assert (own[0] / "pond" / "pond.json").is_file()
        if can_mount():
            tried = ["sh", "-c", f'touch "{ROOT}/src/millpond/written"']
            inside = subprocess.run(read_only_but(own, tried), capture_output=True, text=True, check=False)
            assert "Read-only" in inside.stderr
    assert process.returncode == 0, "it ends in order when systemd says so"


def test_the_unit_waits_for_the_node_to_end_and_does_not_repeat_mistakes() -> None:
    service = Unit()["Service"]
    assert int(service["TimeoutStopSec"]) > LIMITS.shutdown_seconds + END_SECONDS
    assert service["RestartPreventExitStatus"].split() == [
        str(code) for code in (EXIT_USAGE, EXITS[Invalid], EXITS[Denied])
    ]
    assert service.get("MemoryDenyWriteExecute") is None


# -- Docker -------------------------------------------------------------------------------------------


class Compose:
    """The compose file with its variables filled in, on free ports of this machine."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        text = re.sub(r"\$\{(\w+):\?[^}]*\}", lambda name: variables[name[1]], (DEPLOY / "compose.yaml").read_text())
        self.services: dict[str, dict[str, Any]] = yaml.safe_load(text)["services"]
        self.ports = dict(zip(self.services, free_ports(len(self.services)), strict=True))

    def here(self, text: str, own: str) -> str:
        """Text of a service, with addresses of this machine in place of those of the containers."""
        for name, port in self.ports.items():
            text = text.replace(f"http://{name}:7433", f"http://127.0.0.1:{port}")
        return text.replace("127.0.0.1:7433", f"127.0.0.1:{self.ports[own]}")

    def environment(self, name: str, volume: Path) -> dict[str, str]:
        """The environment of a service, with a folder of this machine in place of its volume."""
        (mounted,) = [place.partition(":")[2] for place in self.services[name]["volumes"]]
        found = self.services[name]["environment"]
        local = {key: self.here(value, name).replace(mounted, str(volume)) for key, value in found.items()}
        return local | {
            "MILLPOND_SERVER_PORT": str(self.ports[name]),
            "MILLPOND_SERVER_HOST": "127.0.0.1",
            "HOME": str(volume),
        }

    def health_check(self, name: str) -> list[str]:
        """The command that tells whether the service is healthy."""
        how, *words = self.services[name]["healthcheck"]["test"]
        assert how == "CMD"
        return [self.here(word, name) for word in words]


def test_the_services_of_the_compose_file_form_a_pond(tmp_path: Path) -> None:
    token = "a token for a trial"
    digest = hashlib.sha256(token.encode()).hexdigest()
    compose = Compose({"MILLPOND_CLIENT_TOKEN": token, "MILLPOND_TOKEN_SHA256": digest})
    with ExitStack() as ended:
        for name, service in compose.services.items():
            volume = tmp_path / name
            volume.mkdir()
            command = read_only_but([volume], [sys.executable, "-m", "millpond", *service["command"]])
            process = ended.enter_context(running(command, compose.environment(name, volume), volume))
            wait_for(compose.ports[name], "/healthz", process)
        for name in compose.services:
            wait_for(compose.ports[name], "/readyz", process)
            checked = subprocess.run(compose.health_check(name), capture_output=True, text=True, check=False)
            assert checked.returncode == 0, checked.stderr
        first = next(iter(compose.services))
        inside = compose.environment(first, tmp_path / first)
        assert "weather" in millpond(inside, tmp_path, "create", "weather", "--kind", "state", "--value", "long")
        assert "all nodes agree" in millpond(inside, tmp_path, "verify")
        denied = millpond({**inside, "MILLPOND_CLIENT_TOKEN": "another"}, tmp_path, "maps", code=EXITS[Denied])
        assert "token" in denied
    ended_health = subprocess.run(compose.health_check(first), capture_output=True, check=False)
    assert ended_health.returncode != 0, "a node that is down is not healthy"


def test_the_compose_file_names_what_there_is() -> None:
    compose = Compose({"MILLPOND_CLIENT_TOKEN": "t", "MILLPOND_TOKEN_SHA256": "0" * 64})
    for service in compose.services.values():
        assert (DEPLOY / service["build"]["context"] / service["build"]["dockerfile"]).resolve().is_file()
        for name in service["environment"]:
            assert name in ("MILLPOND_POND", "NUMBA_CACHE_DIR") or name in {
                f"MILLPOND_{setting.replace('.', '_').upper()}" for setting in SETTINGS
            }
        (published,) = service["ports"]
        assert published.startswith("127.0.0.1:") and published.endswith(":7433")
        assert service["stop_grace_period"] == f"{SHUTDOWN_SECONDS}s"


def test_the_image_copies_what_there_is_and_serves() -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    copied = [word for line in re.findall(r"^COPY (.*) \S+$", text, re.MULTILINE) for word in line.split()]
    assert copied
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    for name in copied:
        assert (ROOT / name).exists()
        assert f"!{name}" in ignored
    assert "millpond warm" in text
    assert re.search(r'^ENTRYPOINT \["millpond"\]\nCMD \["serve"\]$', text, re.MULTILINE)


# -- processes ----------------------------------------------------------------------------------------


@contextmanager
def running(command: Sequence[str], environment: Mapping[str, str], folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process with nothing in its environment but what is given; it is told to end, as systemd and Docker do."""
    process = subprocess.Popen(command, cwd=folder, env=_whole(environment), start_new_session=True)
    try:
        yield process
        process.send_signal(signal.SIGTERM)
        process.wait(SHUTDOWN_SECONDS)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def millpond(environment: Mapping[str, str], folder: Path, *words: str, code: int = 0) -> str:
    """The output of a command in a service's environment."""
    done = subprocess.run(
        [sys.executable, "-m", "millpond", *words], cwd=folder, env=_whole(environment), capture_output=True, text=True,
        timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def _whole(environment: Mapping[str, str]) -> dict[str, str]:
    programs = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    return {"PATH": programs, "PYTHONPATH": str(ROOT / "src"), "PYTHONDONTWRITEBYTECODE": "1", **environment}


def wait_for(port: int, path: str, process: subprocess.Popen[bytes]) -> dict[str, Any]:
    """The answer of a route when it is 200."""
    with urllib3.PoolManager(retries=False) as pool:
        for _ in range(900):
            assert process.poll() is None, f"the node ended with {process.returncode}"
            try:
                response = pool.request("GET", f"http://127.0.0.1:{port}{path}", timeout=5)
                if response.status == 200:
                    return dict(response.json())
            except urllib3.exceptions.HTTPError:
                pass
            threading.Event().wait(0.1)
    raise AssertionError(f"{path} is not well")


def test_the_environment_of_the_files_is_understood(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in unit_environment(Unit(), {"S": Path("s"), "C": Path("c"), "E": Path("e")}):
        monkeypatch.setenv(name, "x")
    assert unknown_in_environment() == []
