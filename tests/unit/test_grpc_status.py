"""Every error has its statuses, and the words that travel with it are safe."""

from __future__ import annotations

from pathlib import Path

import pytest
from grpc import StatusCode

from millpond import errors
from millpond.errors import Internal, Invalid, MillpondError
from millpond.server.rpc.status import details_of, grpc_status
from millpond.statuses import KINDS, class_of_grpc
from tools import error_reference

EXPECTED = {
    "Invalid": StatusCode.INVALID_ARGUMENT, "Denied": StatusCode.PERMISSION_DENIED, "NotFound": StatusCode.NOT_FOUND,
    "AlreadyExists": StatusCode.ALREADY_EXISTS, "Conflict": StatusCode.ABORTED, "Fenced": StatusCode.ABORTED,
    "Unavailable": StatusCode.UNAVAILABLE, "Uncertain": StatusCode.UNAVAILABLE, "Closed": StatusCode.UNAVAILABLE,
    "Corrupt": StatusCode.DATA_LOSS, "Internal": StatusCode.INTERNAL, "MillpondError": StatusCode.INTERNAL,
}  # fmt: skip


@pytest.mark.parametrize("name", errors.__all__)
def test_every_class_has_its_status(name: str) -> None:
    error: MillpondError = getattr(errors, name)("it happened")
    assert grpc_status(error) is EXPECTED[name]


def test_some_kinds_have_a_status_of_their_own() -> None:
    assert grpc_status(errors.Denied("no", kind="token_unknown")) is StatusCode.UNAUTHENTICATED
    assert grpc_status(errors.Unavailable("no", kind="watchers_full")) is StatusCode.RESOURCE_EXHAUSTED
    assert grpc_status(errors.Conflict("no", kind="not_primary")) is StatusCode.FAILED_PRECONDITION


@pytest.mark.usefixtures("processor")
def test_kinds_with_a_status_of_their_own_are_raised_by_their_class() -> None:
    raised = error_reference.raised()
    for kind, row in KINDS.items():
        assert kind in raised[row.error.__name__], kind


def test_a_status_of_grpc_becomes_the_class_that_it_was_made_of() -> None:
    most_general = {
        "Fenced": "Conflict",
        "Uncertain": "Unavailable",
        "Closed": "Unavailable",
        "MillpondError": "Internal",
    }
    for name in errors.__all__:
        found = class_of_grpc(getattr(errors, name).grpc_status)
        assert found.__name__ == most_general.get(name, name)
    for row in KINDS.values():
        assert class_of_grpc(row.grpc or row.error.grpc_status) is row.error
    assert class_of_grpc("OUT_OF_RANGE") is Internal


def test_details_are_short_and_name_no_folder() -> None:
    folder = Path("/srv/pond")
    assert details_of(Invalid("no", file=folder / "space"), folder) == "no. file=space"
    assert len(details_of(Internal("x" * 100_000), folder)) < 8_000
