"""A node that may have few files: maps and idle connections share some of them, and leave the store its own."""

from __future__ import annotations

import json
import os
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from urllib.parse import urlsplit

import pytest

import millpond
from millpond.maps.shard.open_shards import connections_of_files

FILES = 192
MAPS = 24
OWN = 8
"""The connections of a client; the others are of two more addresses, as one may have half of all."""


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """A node in a process of few files."""
    command = [sys.executable, "-m", "millpond", "serve", "--data", str(tmp_path / "pond"), "--port", "0", "--json"]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "MILLPOND_SERVER_ACCESS": "open"},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (FILES, FILES)),
    ) as process:
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())["url"]
            assert process.poll() is None, "it is alive"
        finally:
            process.terminate()
            process.communicate()


def test_idle_connections_and_many_maps_leave_files_for_loads(url: str) -> None:
    place = urlsplit(url)
    assert place.hostname is not None and place.port is not None
    with millpond.open(url) as pond, ExitStack() as idle:
        maps = [pond.create_map(f"m{number}", kind="state", value="long") for number in range(MAPS)]

        def connect(number: int) -> socket.socket:
            other = f"127.0.0.{2 + number % 2}", 0
            made = socket.create_connection((place.hostname, place.port), timeout=30, source_address=other)
            return idle.enter_context(closing(made))

        held = [connect(number) for number in range(connections_of_files(FILES) - OWN)]
        sent_away = [connect(number) for number in range(FILES)][-FILES // 2 :]
        assert {line.makefile("rb").readline() for line in sent_away} == {b"HTTP/1.1 503 Service Unavailable\r\n"}
        for line in held[:OWN]:
            line.close()
        for _ in range(2):
            for number, made in enumerate(maps):
                made.load([{"key": "k", "value": number}], again=True)
        pond.merge()
        assert [made.get("k") for made in maps] == list(range(MAPS))
        assert [made.snapshot().lookup(["k"]).to_pylist() for made in maps[:10]] == [[n] for n in range(10)]
        assert pond.verify().ok
