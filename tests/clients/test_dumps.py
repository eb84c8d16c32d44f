"""Dumps and restores of refs by the clients of lakeFS, and into a copy of the bytes."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import lakefs_sdk
import pytest
from lakefs_sdk.client import LakeFSClient
from lakefs_sdk.exceptions import ApiException

from tests.clients.conftest import Server


def place(server: Server, repository: str) -> Path:
    """The folder of a repository's bytes."""
    (found,) = server.folder.rglob(f"**/{repository}/_millpond")
    return found.parent


@pytest.fixture
def copied(server: Server, sdk: LakeFSClient, repository: str) -> tuple[str, lakefs_sdk.RefsDump]:
    """A new repository with a copy of another one's bytes, and the dump of that one's refs."""
    main = server.branch(repository)
    for number in range(3):
        main.put("a", bytes([number]))
        main.commit(f"of {number}")
    sdk.tags_api.create_tag(repository, lakefs_sdk.TagCreation(id="v1", ref="main~1"))
    task = sdk.repositories_api.dump_submit(repository)
    status = sdk.repositories_api.dump_status(repository, task.id)
    assert status.done
    assert status.refs == sdk.internal_api.dump_refs(repository)
    target = f"{repository}-copy"
    sdk.repositories_api.create_repository(
        lakefs_sdk.RepositoryCreation(name=target, storage_namespace=f"local://{target}"), bare=True
    )
    for folder in ("data", "_millpond/ranges", "_millpond/indexes", "_millpond/dumps"):
        shutil.copytree(place(server, repository) / folder, place(server, target) / folder, dirs_exist_ok=True)
    return target, status.refs


def _submit(sdk: LakeFSClient, name: str, wanted: lakefs_sdk.RefsRestore) -> None:
    task = sdk.repositories_api.restore_submit(name, wanted)
    assert sdk.repositories_api.restore_status(name, task.id).done


def _restore(sdk: LakeFSClient, name: str, wanted: lakefs_sdk.RefsRestore) -> None:
    sdk.internal_api.restore_refs(name, wanted)


@pytest.mark.parametrize("restore", [_submit, _restore])
def test_refs_come_back_in_a_copy(
    server: Server, sdk: LakeFSClient, repository: str, copied: tuple[str, lakefs_sdk.RefsDump],
    restore: Callable[[LakeFSClient, str, lakefs_sdk.RefsRestore], None],
) -> None:  # fmt: skip
    target, refs = copied
    wanted = lakefs_sdk.RefsRestore(**refs.to_dict())
    restore(sdk, target, wanted)
    assert list(server.branch(target).log()) == list(server.branch(repository).log())
    assert sdk.tags_api.get_tag(target, "v1") == sdk.tags_api.get_tag(repository, "v1")
    assert server.branch(target).get("a") == b"\x02"
    with pytest.raises(ApiException) as used:
        restore(sdk, target, wanted)
    assert (used.value.status, "can only restore into a bare repository" in used.value.body) == (400, True)


def test_refs_come_back_where_they_were(server: Server, sdk: LakeFSClient, repository: str) -> None:
    main = server.branch(repository)
    main.put("a", b"1")
    main.commit("one")
    log = list(main.log())
    refs = sdk.internal_api.dump_refs(repository)
    made = lakefs_sdk.RepositoryCreation(name=repository, storage_namespace=f"local://{repository}")
    with pytest.raises(ApiException) as lives:
        sdk.repositories_api.create_repository(made, bare=True)
    assert lives.value.status == 409
    sdk.repositories_api.delete_repository(repository)
    other = lakefs_sdk.RepositoryCreation(name=f"{repository}-other", storage_namespace=made.storage_namespace)
    for creation, bare in ((made, False), (other, True)):
        with pytest.raises(ApiException) as used:
            sdk.repositories_api.create_repository(creation, bare=bare)
        assert (used.value.status, "already in use" in used.value.body) == (400, True)
    sdk.repositories_api.create_repository(made, bare=True)
    assert sdk.branches_api.list_branches(repository).results == []
    _restore(sdk, repository, lakefs_sdk.RefsRestore(**refs.to_dict()))
    main = server.branch(repository)
    assert (list(main.log()), main.get("a")) == (log, b"1")


def test_what_is_no_dump_is_refused(
    server: Server, sdk: LakeFSClient, repository: str, copied: tuple[str, lakefs_sdk.RefsDump]
) -> None:
    target, refs = copied
    id_ = refs.commits_meta_range_id
    wrong = [("0" * 64, 404), ("../../pond.json", 404), (id_[:-1] + ("0" if id_[-1] != "0" else "1"), 404)]
    for given, status in wrong:
        ids = dict.fromkeys(("commits_meta_range_id", "tags_meta_range_id", "branches_meta_range_id"), given)
        with pytest.raises(ApiException) as refused:
            sdk.repositories_api.restore_submit(target, lakefs_sdk.RefsRestore(**ids))
        assert refused.value.status == status
    mixed = lakefs_sdk.RefsRestore(**{**refs.to_dict(), "tags_meta_range_id": "0" * 64})
    with pytest.raises(ApiException) as refused:
        sdk.repositories_api.restore_submit(target, mixed)
    assert refused.value.status == 400
    file = place(server, target) / "_millpond/dumps" / f"{id_}.jsonl"
    file.write_bytes(file.read_bytes().replace(b"of 1", b"of 9"))
    with pytest.raises(ApiException) as refused:
        sdk.repositories_api.restore_submit(target, lakefs_sdk.RefsRestore(**refs.to_dict()))
    assert (refused.value.status, "damaged" in refused.value.body) == (400, True)
    shutil.rmtree(place(server, repository) / "_millpond/dumps")
    with pytest.raises(ApiException) as refused:
        sdk.repositories_api.dump_status(repository, id_)
    assert refused.value.status == 404


def test_indexes_that_are_missing_are_named(
    server: Server, sdk: LakeFSClient, copied: tuple[str, lakefs_sdk.RefsDump]
) -> None:
    target, refs = copied
    for index in (place(server, target) / "_millpond/indexes").iterdir():
        index.unlink()
    with pytest.raises(ApiException) as refused:
        sdk.repositories_api.restore_submit(target, lakefs_sdk.RefsRestore(**refs.to_dict()))
    assert (refused.value.status, "not in the namespace" in refused.value.body) == (400, True)
    assert [commit.message for commit in server.branch(target).log()] == ["Repository created"]
