"""Repositories are the same in a folder, and behind the address of a node's process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import millpond
from tests.clients.conftest import serving
from tests.harness.contracts.repositories import RepositoriesContract

if TYPE_CHECKING:
    from collections.abc import Iterator

    from millpond.maps.protocols import PondLike


class TestFolder(RepositoriesContract):
    @pytest.fixture(scope="class")
    def pond(self, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PondLike]:
        with millpond.open(tmp_path_factory.mktemp("folder") / "pond") as pond:
            yield pond


@pytest.mark.usefixtures("process")
class TestNode(RepositoriesContract):
    @pytest.fixture(scope="class")
    def pond(self, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PondLike]:
        allowed = {"MILLPOND_VERSIONS_SOURCES": f"local://{tmp_path_factory.getbasetemp()}/"}
        with serving(tmp_path_factory.mktemp("node") / "pond", environment=allowed) as url, millpond.open(url) as pond:
            yield pond
