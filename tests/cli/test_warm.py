"""`millpond warm` fills the cache, and says where it is; a second run finds all of it there."""

from __future__ import annotations

import pytest

from millpond.arrays.warming import kernel_types, spelled
from tests.cli.conftest import Shell


@pytest.mark.usefixtures("process")
@pytest.mark.full
def test_what_is_warm_stays_warm(millpond: Shell) -> None:
    millpond("warm", "--processes", "2")
    report = millpond("warm", "--json").object
    assert (report["kernels"], report["compiled"]) == (len(kernel_types()), 0)
    assert report["processes"] >= 1
    assert report["cache"]


def test_types_are_written_as_numba_reads_them() -> None:
    from numba.core import sigutils

    for wanted in kernel_types():
        types, _ = sigutils.normalize_signature(wanted.types)
        assert spelled(types) == wanted.types
