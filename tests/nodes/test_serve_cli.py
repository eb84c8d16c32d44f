"""`millpond serve`, `config` and `token` as a user runs them: processes of their own."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import urllib3
from typer.testing import CliRunner

from millpond.cli.main import app
from millpond.nodes.tokens import hash_token
from millpond.server import run as service
from tests.ports import free_ports

pytestmark = pytest.mark.sample(4, of="file")


def environment(variables: Mapping[str, str], *, ours: bool = False) -> dict[str, str]:
    return {name: value for name, value in variables.items() if name.startswith("MILLPOND_") == ours}


@dataclass(frozen=True)
class Said:
    """The output of a command."""

    returncode: int
    stdout: str
    stderr: str


def run(*arguments: str) -> Said:
    """A command in this process, in the current folder."""
    done = CliRunner().invoke(app, list(arguments), prog_name="millpond")
    assert "Traceback" not in done.stderr
    return Said(done.exit_code, done.stdout, done.stderr)


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "250")
    for name in environment(os.environ, ours=True):
        monkeypatch.delenv(name)
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    yield
    root.handlers[:] = before  # `serve` says how much is logged
    root.setLevel(level)


@contextmanager
def serving(folder: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A served pond, and the line it printed when it was ready."""
    process = subprocess.Popen(
        [sys.executable, "-m", "millpond", "serve", *arguments], cwd=folder, env=environment(os.environ), text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        yield process, process.stdout.readline()
    finally:
        process.kill()
        process.communicate()


def ask(url: str, path: str) -> Any:
    with urllib3.PoolManager(retries=False) as pool:
        return json.loads(pool.request("GET", url + path).data)


def until_running(url: str, count: int) -> None:
    """Wait until so many requests are being answered, the one that asks among them."""
    pause = threading.Event()
    with urllib3.PoolManager(retries=False) as pool:
        for _ in range(500):
            if f"millpond_requests_running {count}.0" in pool.request("GET", url + "/metrics").data.decode():
                return
            pause.wait(0.02)
    raise AssertionError("nobody waits")


def test_a_pond_is_served_until_interrupted(tmp_path: Path) -> None:
    with serving(tmp_path, "--port", "0") as (process, line):
        found = re.fullmatch(
            r"serving pond at (http://127\.0\.0\.1:\d+) \(alone, 0 maps\); its routes: \1/docs; gRPC: port \d+\n", line
        )
        assert found, line
        assert ask(found[1], "/readyz") == {"ready": True, "reasons": []}

        refused = run("serve", "--port", "0")
        assert (refused.returncode, refused.stdout) == (6, "")
        assert refused.stderr.startswith("error: the pond is served")
        port = found[1].rpartition(":")[2]
        refused = run("serve", "--port", port, "--data", "other", "--json")
        assert (refused.returncode, json.loads(refused.stderr)["error"]["kind"]) == (7, "port_in_use")

        process.send_signal(signal.SIGTERM)
        output, said = process.communicate(timeout=10)
        assert (process.returncode, output) == (0, "")
        assert "Traceback" not in said
        assert [line.split(" ", 1)[1] for line in said.splitlines()] == ["INFO millpond.server: stopping"]


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_it_ends_while_somebody_waits(tmp_path: Path, how: signal.Signals) -> None:
    with serving(tmp_path, "--port", "0", "--json") as (process, line):
        url = json.loads(line)["url"]
        waiter = threading.Thread(target=lambda: ask(url, "/v1/log?wait=30"), daemon=True)
        waiter.start()
        until_running(url, 2)
        # a connection that is open and says nothing
        host, _, port = url.removeprefix("http://").rpartition(":")
        with socket.create_connection((host, int(port))):
            process.send_signal(how)
            process.wait(15)
        assert process.returncode == 0
        waiter.join(5)
        assert not waiter.is_alive()


def test_a_node_ends_in_time_whatever_its_threads_are_at(tmp_path: Path) -> None:
    child = [sys.executable, "-m", "tests.nodes.stuck_child", str(tmp_path / "pond")]
    variables = environment(os.environ) | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    process = subprocess.Popen(child, env=variables, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=10)
        assert process.returncode == 1
        assert "in wait" in said, "it shows what they were at"
    finally:
        process.kill()


def test_everything_can_be_said_in_a_file(tmp_path: Path) -> None:
    [port] = free_ports(1)
    (tmp_path / "node.toml").write_text(
        f'[server]\ndata = "elsewhere"\nport = {port}\ngrpc_port = "off"\n'
        f'[nodes]\nurls = ["http://127.0.0.1:{port}"]\nintervals.merge = "100ms"\n'
    )
    with serving(tmp_path, "--config", "node.toml", "--json") as (_, line):
        assert json.loads(line) == {
            "url": f"http://127.0.0.1:{port}",
            "grpc_port": None,
            "data": "elsewhere",
            "role": "primary",
            "maps": [],
        }
        folder = tmp_path / "elsewhere"
        assert (folder / "pond.json").exists()
        modes = {stat.S_IMODE(place.stat().st_mode) for place in (folder, *folder.rglob("*"))}
        assert modes == {0o600, 0o700}, "a node's files are its user's alone"


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--host", "0.0.0.0"], 11, "needs tokens"),
        (["--set", "prot=1"], 5, "did you mean server.port?"),
        (["--set", "port"], 2, "GROUP.NAME=VALUE"),
        (["--set", "maps.part_retention=soon"], 5, "such as 10min"),
        (["--config", "nowhere.toml"], 5, "does not exist"),
        (["--nodes", "http://a:1,http://b:1"], 5, "not among"),
        (["--data", "taken"], 5, "the folder holds something else"),
        (["--data", "taken/thesis.txt"], 5, "a file, not a folder"),
        (["--tls-cert", "a.pem"], 5, "given together"),
    ],
)
def test_what_is_wrong_is_one_sentence(tmp_path: Path, arguments: list[str], code: int, said: str) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "thesis.txt").write_text("all of it")
    done = run("serve", "--port", "0", *arguments)
    assert done.returncode == code
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_a_port_that_is_taken_as_the_node_begins_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        monkeypatch.setattr(
            service, "choose_port", lambda _settings, _port: port
        )  # as if it had been free a moment ago
        said = run("serve", "--port", "0")
    assert (said.returncode, said.stdout) == (7, "")
    assert f"error: the port for gRPC is in use (host=127.0.0.1, port={port})" in said.stderr


def test_tokens_come_and_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    token = run("token", "add", "loader", "--write", "weather*,people", "--read", "*").stdout.strip()
    assert re.fullmatch(r"mp_[0-9a-f]{64}", token)
    assert token not in (tmp_path / "pond" / "tokens.json").read_text()
    added = json.loads(run("token", "add", "nodes", "--admin", "*", "--json").stdout)
    assert added["sha256"] == hash_token(added["token"])
    assert run("token", "revoke", "loader", "--data", "other").returncode == 3
    assert "loader" in run("token", "list").stdout
    listed = [json.loads(line) for line in run("token", "list", "--json").stdout.splitlines()]
    assert [(entry["name"], entry["rights"]) for entry in listed] == [
        ("loader", {"read": ["*"], "write": ["weather*", "people"]}),
        ("nodes", {"admin": ["*"]}),
    ]
    assert run("token", "add", "loader", "--read", "*").returncode == 4
    assert run("token", "add", "nobody").returncode == 5
    assert run("token", "revoke", "nobody").returncode == 3
    assert run("token", "revoke", "loader").stdout == "revoked loader\n"
    last = run("token", "revoke", "nodes")
    assert (last.stdout, "nobody is let in" in last.stderr) == ("revoked nodes\n", True)
    assert "nobody is let in" in run("token", "list").stdout
    assert "may do everything" in run("token", "list", "--data", "fresh").stdout
    (tmp_path / "millpond.toml").write_text(
        f'[[server.tokens]]\nname = "shared"\nsha256 = "{added["sha256"]}"\nrights = {{admin = ["*"]}}\n'
    )
    with serving(tmp_path, "--port", "0", "--host", "0.0.0.0", "--json") as (_, line):
        port = json.loads(line)["url"].rpartition(":")[2]
        here = f"http://127.0.0.1:{port}"
        refused = run("maps", "--pond", here)
        monkeypatch.setenv("MILLPOND_CLIENT_TOKEN", added["token"])
        made = run("create", "m", "--kind", "state", "--pond", here)
        assert made.returncode == 0, made.stderr
        assert (refused.returncode, "wants a token" in refused.stderr) == (11, True)


def test_settings_are_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "millpond.toml").write_text('client.token = "mp_unshown"\n')
    monkeypatch.setenv("MILLPOND_SERVER_PORT", "8000")
    shown = run("config")
    assert "unshown" not in shown.stdout
    assert re.search(r"server.port +8000 +7433 +MILLPOND_SERVER_PORT +port to listen on", shown.stdout)
    changed = run("config", "--changed", "--set", "server.readers=3", "--json")
    settings_shown = [json.loads(line) for line in changed.stdout.splitlines()]
    assert [(setting["name"], setting["value"], setting["origin"]) for setting in settings_shown] == [
        ("server.port", 8000, "MILLPOND_SERVER_PORT"),
        ("server.readers", 3, "command line"),
        ("client.token", "********", "millpond.toml"),
    ]
    (tmp_path / "millpond.toml").write_text("server.prot = 1\n")
    assert "did you mean server.port?" in run("config").stderr


def test_a_misspelt_setting_in_the_environment_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = run("config", "--changed")
    assert (shown.returncode, shown.stdout.strip()) == (0, "every setting is its default")
    monkeypatch.setenv("MILLPOND_PROT", "8000")
    assert "MILLPOND_PROT in the environment is no setting" in run("config", "--changed").stderr


def test_an_address_that_is_none_is_an_error() -> None:
    result = run("maps", "--pond", "ftp://n1:7433")
    assert (result.returncode, "such as http://localhost:7433" in result.stderr) == (5, True)


def test_help_imports_nothing_heavy() -> None:
    heavy = ("starlette", "uvicorn", "pydantic", "numba")
    script = f"import sys; import millpond.cli.main; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    assert app.info.name == "millpond"
