"""The caller of a definition over several partitions, all of which one process owns."""

from __future__ import annotations

from concurrent.futures import Future
from importlib.util import find_spec

import pytest

pytest.importorskip("littlehorse")
if find_spec("rocksdict") is None:
    pytest.skip("the extra kafka is not installed", allow_module_level=True)

from littlehorse.model import PutTaskDefRequest

from millpond.errors import Unavailable, Uncertain
from millpond.workflows.partitions import METADATA
from tests.unit.test_partitions import PARTITIONS, SECONDS, TENANT, Cluster, until


def test_no_copy_of_a_definition_answers_its_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster()
    held, append = Future[int](), cluster.log.append
    monkeypatch.setattr(cluster.log, "append", lambda to, data: held if to == PARTITIONS - 1 else append(to, data))
    try:
        command = cluster.followers[METADATA].post(TENANT, PutTaskDefRequest(name="work"))
        cluster.followers[1].wait_until(1, SECONDS)
        assert command not in {end.command.id for end in cluster.passed}, "one partition does not have it yet"
    finally:
        monkeypatch.undo()
        held.set_exception(Unavailable("the broker is gone", kind="log_unreachable"))
        until(lambda: command in {end.command.id for end in cluster.passed})
        cluster.stop()
    assert {type(end.error) for end in cluster.passed if end.command.id == command} == {Uncertain}
