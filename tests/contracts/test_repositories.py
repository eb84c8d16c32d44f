"""Repositories are the same in a folder, and behind the address of a node's process."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

import millpond
from tests.clients.conftest import serving
from tests.harness.contracts.repositories import RepositoriesContract

if TYPE_CHECKING:
    from collections.abc import Iterator

    from millpond.maps.protocols import PondLike
    from tests.s3_server import S3Server


class TestFolder(RepositoriesContract):
    @pytest.fixture(scope="class")
    def pond(self, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PondLike]:
        with millpond.open(tmp_path_factory.mktemp("folder") / "pond") as pond:
            yield pond


@pytest.mark.usefixtures("process")
@pytest.mark.sample(14, of="repositories of a node")
class TestNode(RepositoriesContract):
    @pytest.fixture(scope="class")
    def pond(self, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PondLike]:
        allowed = {"MILLPOND_VERSIONS_SOURCES": f"local://{tmp_path_factory.getbasetemp()}/"}
        with serving(tmp_path_factory.mktemp("node") / "pond", environment=allowed) as url, millpond.open(url) as pond:
            yield pond


@pytest.mark.sample(4, of="repositories in a bucket")
class TestBucket(RepositoriesContract):
    @pytest.fixture(scope="class")
    def pond(self, tmp_path_factory: pytest.TempPathFactory, s3_server: S3Server) -> Iterator[PondLike]:
        with pytest.MonkeyPatch.context() as patched:
            for variable, value in s3_server.environment.items():
                patched.setenv(variable, value)
            url = f"{s3_server.make_bucket(f'repositories-{os.getpid()}')}/pond"
            with millpond.open(url, cache=tmp_path_factory.mktemp("cache"), max_staleness=0) as pond:
                yield pond
