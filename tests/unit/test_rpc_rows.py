"""The rows of the services of gRPC: each says what it needs."""

from __future__ import annotations

from typing import Any, cast

import pytest

pytest.importorskip("littlehorse")

from millpond.server.routes.table import Work
from millpond.server.rpc.serving import SERVICES
from millpond.server.workflows.methods import workflow_methods

OF_WORKERS = {"PollTask", "RegisterTaskWorker", "ReportTask", "PutCheckpoint"}
ROWS = workflow_methods(cast("Any", None)).rows
FREE = {"Health", "Whoami", "GetServerVersion"}


def test_every_change_needs_a_right_and_is_audited() -> None:
    rows = [(name, row) for service in SERVICES.values() for name, row in service.items()]
    rows += ROWS.items()
    assert len(rows) > 80
    for name, row in rows:
        needs = row.needs
        assert needs.right in ((None,) if name in FREE else ("read", "write", "admin")), name
        assert needs.audited == (needs.right in ("write", "admin") and name not in OF_WORKERS), name


def test_a_stream_has_a_room_of_its_own() -> None:
    streams = {name for service in SERVICES.values() for name, row in service.items() if row.needs.work is Work.WATCH}
    assert streams == {"GetJobSetEvents", "Watch", "GetQueues"}
    assert {name for name, row in ROWS.items() if row.needs.work is not Work.CALL} == {"PollTask"}
