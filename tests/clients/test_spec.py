"""`lakefs-spec`, unmodified, against a real process: files of refs by `lakefs://` URLs, also through pandas."""

from __future__ import annotations

import pandas as pd
import pytest
from lakefs_spec import LakeFSFileSystem

from tests.clients.conftest import Server


@pytest.fixture(scope="module")
def files(server: Server) -> LakeFSFileSystem:
    LakeFSFileSystem.clear_instance_cache()
    return LakeFSFileSystem(host=server.url, username=server.access_key, password=server.secret)


def test_files_are_written_listed_and_removed(files: LakeFSFileSystem, repository: str) -> None:
    root = f"{repository}/main"
    files.pipe(f"{root}/a/1.txt", b"one")
    files.pipe(f"{root}/a/2.txt", b"two")
    assert sorted(files.ls(f"{root}/a/", detail=False)) == [f"{root}/a/1.txt", f"{root}/a/2.txt"]
    assert files.cat(f"{root}/a/1.txt") == b"one"
    assert files.cat_file(f"{root}/a/1.txt", start=1, end=2) == b"n"
    assert files.info(f"{root}/a/1.txt")["size"] == 3
    assert files.exists(f"{root}/a/1.txt")
    files.rm(f"{root}/a/1.txt")
    assert not files.exists(f"{root}/a/1.txt")
    files.touch(f"{root}/empty")
    assert files.cat(f"{root}/empty") == b""


def test_a_table_is_written_and_read_by_pandas(server: Server, files: LakeFSFileSystem, repository: str) -> None:
    options = {"host": server.url, "username": server.access_key, "password": server.secret}
    table = pd.DataFrame({"a": [1, 2, 3], "b": ["x", "y", "z"]})
    url = f"lakefs://{repository}/main/table.parquet"
    table.to_parquet(url, storage_options=options)
    pd.testing.assert_frame_equal(pd.read_parquet(url, storage_options=options), table)


def test_a_transaction_commits_at_its_end(files: LakeFSFileSystem, repository: str) -> None:
    with files.transaction(repository, "main") as tx:
        files.pipe(f"{repository}/{tx.branch.id}/in.txt", b"1")
        tx.commit(message="in one")
    assert files.cat(f"{repository}/main/in.txt") == b"1"
