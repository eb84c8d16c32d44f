"""Drivers that clusters run: the door to one, and what clusters say of them."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest

from millpond.cli.workflows.spark_location import check_mode
from millpond.errors import Invalid
from millpond.pipelines import cluster_doors, clusters
from millpond.pipelines.cluster_doors import STRANGERS_MAX, Door, admitted_by
from millpond.pipelines.clusters import ClusterDriver, State, submitted


@contextmanager
def pair() -> Iterator[tuple[socket.socket, IO[bytes], socket.socket, IO[bytes]]]:
    own, other = socket.socketpair()
    with own, other, own.makefile("rb") as own_lines, other.makefile("rb") as other_lines:
        yield own, own_lines, other, other_lines


def meeting(door: Door, worker: Callable[[socket.socket, IO[bytes]], bool]) -> tuple[bool, bool]:
    """True when the worker knows the driver for the one that it wants, and when the driver admits it."""
    with pair() as (own, own_lines, other, other_lines), ThreadPoolExecutor() as pool:

        def driver() -> bool:
            admits = door.admits(own, own_lines)
            if not admits:
                own.shutdown(socket.SHUT_RDWR)
            return admits

        admitted = pool.submit(driver)
        return worker(other, other_lines), admitted.result()


@pytest.fixture(autouse=True)
def _pairs_have_no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_doors, "keep_alive", lambda _: None)


def test_a_worker_and_a_driver_with_one_secret_know_each_other() -> None:
    door = Door()
    for _ in range(3):
        assert meeting(door, lambda worker, lines: admitted_by(worker, lines, door.secret)) == (True, True)


@pytest.mark.parametrize(
    "answer", [b"\n", b"a" * 200, b"0 0\n", b"\xff\xfe\n", b'{"key": "k"}\n', b"0" * 10_000 + b"\n"]
)
def test_strangers_are_not_admitted(answer: bytes) -> None:
    def stranger(worker: socket.socket, lines: IO[bytes]) -> bool:
        lines.readline()
        worker.sendall(answer)
        return bool(lines.readline())

    assert meeting(Door(), stranger) == (False, False)
    other = Door()
    assert meeting(Door(), lambda worker, lines: admitted_by(worker, lines, other.secret)) == (False, False)


def test_a_proof_that_was_heard_is_of_no_use() -> None:
    door, heard = Door(), list[bytes]()

    class Recording:
        def __init__(self, inner: socket.socket) -> None:
            self._inner = inner

        def sendall(self, data: bytes) -> None:
            heard.append(data)
            self._inner.sendall(data)

    def member(worker: socket.socket, lines: IO[bytes]) -> bool:
        return admitted_by(Recording(worker), lines, door.secret)  # type: ignore[arg-type]

    def replaying(worker: socket.socket, lines: IO[bytes]) -> bool:
        lines.readline()
        worker.sendall(heard[0])
        return bool(lines.readline())

    assert meeting(door, member) == (True, True)
    assert meeting(door, replaying) == (False, False)


def test_strangers_that_are_silent_hold_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_doors, "SECONDS", 1)
    door = Door()
    with pair() as (own, own_lines, _, _):
        assert not door.admits(own, own_lines)  # after a second
    for _ in range(STRANGERS_MAX):
        assert door._strangers.acquire(blocking=False)
    with pair() as (own, own_lines, _, _):
        assert not door.admits(own, own_lines)  # at once


@pytest.mark.parametrize(
    ("master", "said", "state"),
    [
        ("yarn", "Application Report : \n\tState : RUNNING\n\tFinal-State : UNDEFINED\n", State.GOES_ON),
        ("yarn", "Application Report : \n\tState : ACCEPTED\n\tFinal-State : UNDEFINED\n", State.GOES_ON),
        ("yarn", "Application Report : \n\tState : FINISHED\n\tFinal-State : SUCCEEDED\n", State.ENDED),
        ("yarn", "Application with id 'application_1_1' doesn't exist in RM or Timeline Server.", State.ENDED),
        ("yarn", "Retrying connect to server: 0.0.0.0/0.0.0.0:8032", State.UNKNOWN),
        ("k8s://https://h", "Application status (driver): \n\t pod name: p-driver\n\t phase: Running\n", State.GOES_ON),
        ("k8s://https://h", "Application status (driver): \n\t pod name: p-driver\n\t phase: Failed\n", State.ENDED),
        ("k8s://https://h", "No applications found.", State.ENDED),
        ("k8s://https://h", "", State.UNKNOWN),
    ],
)
def test_what_clusters_say(master: str, said: str, state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clusters, "_run", lambda *_: said)
    assert ClusterDriver(master, "some").state() is state


def test_the_id_of_a_driver_that_was_submitted(tmp_path: Path) -> None:
    log = tmp_path / "submitted"
    assert submitted("yarn", log) is None
    log.write_text("INFO Client: Uploading to application_17_0001/a.zip\n")
    assert submitted("yarn", log) is None
    log.write_text("INFO YarnClientImpl: Submitted application application_17_0001\n")
    assert submitted("yarn", log) == ClusterDriver("yarn", "application_17_0001")
    log.write_text("Deployed Spark application a with application ID spark-1 and submission ID ns:a-driver into Kub\n")
    assert submitted("k8s://h", log) == ClusterDriver("k8s://h", "ns:a-driver")


@pytest.mark.parametrize(
    ("words", "match"),
    [
        (("yarn", "here", None), "deploy_mode=here"),
        (("yarn", "cluster", None), "--shared FOLDER"),
        (("yarn", "client", "f"), "--deploy-mode cluster"),
        (("spark://h:7077", "cluster", "f"), "no drivers of Python"),
        (("", "cluster", "f"), r"local\[\*\]"),
    ],
)
def test_words_that_do_not_go_together(words: tuple[str, str, str | None], match: str) -> None:
    with pytest.raises(Invalid, match=match):
        check_mode(*words)
    check_mode("k8s://https://h:6443", "cluster", "f")
    check_mode("", "client", None)
