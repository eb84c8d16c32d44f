"""A pond is a pond: in a folder, on one node, on three."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import millpond
from millpond.testing.pond_contract import PondContract

if TYPE_CHECKING:
    from collections.abc import Iterator

    from millpond.maps.api import PondLike


class TestFolder(PondContract):
    @pytest.fixture(scope="class")
    def pond(self, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PondLike]:
        with millpond.open(tmp_path_factory.mktemp("folder") / "pond") as pond:
            yield pond
