"""Every error has a status of gRPC, and the words that travel with it are safe."""

from __future__ import annotations

from pathlib import Path

import pytest
from grpc import StatusCode

from millpond import errors
from millpond.errors import Internal, Invalid, MillpondError
from millpond.server.armada.status import details_of, grpc_status

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


def test_details_are_short_and_name_no_folder() -> None:
    folder = Path("/srv/pond")
    assert details_of(Invalid("no", file=folder / "space"), folder) == "no. file=space"
    assert len(details_of(Internal("x" * 100_000), folder)) < 8_000
