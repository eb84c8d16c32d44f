"""A load that was entered, and ended in an error right after: nothing of it is lost, whatever comes next."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from millpond.errors import Unavailable
from millpond.kernel.steps import listening
from millpond.pond import open_pond
from tests.harness.rows import canonical_of

if TYPE_CHECKING:
    from pathlib import Path


def test_parts_of_a_load_that_failed_late_are_retained_when_their_map_is_dropped(tmp_path: Path) -> None:
    """Followers still need such parts; opening the pond again must not take them for rubbish."""

    def fail(name: str) -> None:
        if name == "load.committed":
            raise Unavailable("the disk is full", kind="disk_full")

    with open_pond(tmp_path / "pond", maps_part_retention="9d") as pond:
        pond.create_map("m", kind="state", value="long")
        parts = []
        for number in range(2):
            writer = pond.part_writer("m")
            writer.write(canonical_of(pond.map("m").definition, [(("k",), number)]))
            parts += writer.finish()
        with listening(fail), pytest.raises(Unavailable):
            pond.commit_load(parts, wait=False)
        pond.drop_map("m")
    with open_pond(tmp_path / "pond") as pond:
        for part in parts:
            assert pond.parts.file(part.manifest.id) is not None
