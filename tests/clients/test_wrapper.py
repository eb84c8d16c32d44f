"""The `lakefs` package, unmodified, against a real process: repositories, branches, objects, merges, transactions."""

from __future__ import annotations

import lakefs
import pytest
from lakefs.client import Client
from lakefs.exceptions import (
    BadRequestException,
    ConflictException,
    ForbiddenException,
    NotAuthorizedException,
    NotFoundException,
    ObjectExistsException,
    TransactionException,
)

from tests.clients.conftest import Server


@pytest.fixture(scope="module")
def client(server: Server) -> Client:
    return Client(host=server.url, username=server.access_key, password=server.secret)


@pytest.fixture
def repo(client: Client, repository: str) -> lakefs.Repository:
    return lakefs.Repository(repository, client=client)


@pytest.fixture
def main(repo: lakefs.Repository) -> lakefs.Branch:
    return repo.branch("main")


def upload(branch: lakefs.Branch, *paths: str, body: bytes = b"body") -> None:
    for path in paths:
        branch.object(path).upload(data=body)


# -- repositories and refs ----------------------------------------------------------------------------


def test_a_repository_is_made_once(client: Client) -> None:
    made = lakefs.Repository("wrapper-made", client=client).create("local://wrapper-made", default_branch="trunk")
    assert made.properties.default_branch == "trunk"
    with pytest.raises(ConflictException):
        lakefs.Repository("wrapper-made", client=client).create("local://wrapper-made-2")
    assert lakefs.Repository("wrapper-made", client=client).create("local://x", exist_ok=True).id == "wrapper-made"
    assert "wrapper-made" in [found.id for found in lakefs.repositories(client=client, prefix="wrapper-")]
    made.delete()
    with pytest.raises(NotFoundException):
        made.delete()


def test_branches_and_tags(repo: lakefs.Repository, main: lakefs.Branch) -> None:
    dev = repo.branch("dev").create("main")
    assert dev.head.id == main.head.id
    repo.branch("ghost").create("main", hidden=True)
    assert [branch.id for branch in repo.branches()] == ["dev", "main"]
    with pytest.raises(ConflictException):
        repo.branch("dev").create("main")
    tag = repo.tag("v1").create("main")
    assert tag.get_commit().id == main.get_commit().id
    with pytest.raises(ConflictException):
        repo.tag("v1").create("main")
    assert [found.id for found in repo.tags()] == ["v1"]
    tag.delete()
    with pytest.raises(NotFoundException):
        tag.delete()
    dev.delete()
    with pytest.raises(ForbiddenException):
        main.delete()


def test_the_log_goes_on_over_pages(main: lakefs.Branch) -> None:
    for number in range(5):
        upload(main, f"p{number}")
        main.commit(f"commit {number}")
    assert len(list(main.log(amount=2))) == 6
    assert len(list(main.log(max_amount=2))) == 2


# -- objects ------------------------------------------------------------------------------------------


def test_a_listing_with_a_delimiter(main: lakefs.Branch) -> None:
    upload(main, "a", "b", "bar/a", "bar/b", "bar/c", "c", "foo/a")
    listed = [found.path for found in main.objects(delimiter="/")]
    assert listed == ["a", "b", "bar/", "c", "foo/"]
    assert [found.path for found in main.objects(prefix="bar/", max_amount=2)] == ["bar/a", "bar/b"]


@pytest.mark.parametrize("pre_sign", [True, False])
def test_an_object_is_written_and_read(main: lakefs.Branch, pre_sign: bool) -> None:
    made = main.object("some/file.txt").upload(
        data="some text\nmore", pre_sign=pre_sign, content_type="text/plain", metadata={"k": "v"}
    )
    assert made.exists()
    stat = made.stat()
    assert (stat.size_bytes, stat.content_type, stat.metadata) == (14, "text/plain", {"k": "v"})
    with made.reader("r", pre_sign=pre_sign) as reader:
        assert reader.readline() == "some text\n"
        assert reader.read() == "more"
        reader.seek(5)
        assert reader.read(4) == "text"
    with pytest.raises(ObjectExistsException):
        main.object("some/file.txt").upload(data="again", mode="x", pre_sign=pre_sign)
    made.delete()
    made.delete()
    assert not made.exists()


def test_an_empty_object_is_read(main: lakefs.Branch) -> None:
    made = main.object("empty").upload(data=b"")
    assert made.reader("rb").read() == b""


def test_a_copy_has_bytes_of_its_own(server: Server, repo: lakefs.Repository, main: lakefs.Branch) -> None:
    made = main.object("a").upload(data=b"body", content_type="text/plain", metadata={"k": "v"})
    repo.branch("dev").create("main")
    copied, stat = main.object("a").copy("dev", "copied"), made.stat()
    found = copied.stat()
    assert copied.reader("rb").read() == b"body"
    assert found.physical_address != stat.physical_address
    assert (found.checksum, found.size_bytes, found.content_type, found.metadata) == (
        stat.checksum, 4, "text/plain", {"k": "v"},
    )  # fmt: skip
    own = server.branch(repo.id)
    assert own.copy("a", "shared").address == own.stat("a").address


def test_a_copy_of_bytes_that_are_gone(server: Server, repo: lakefs.Repository, main: lakefs.Branch) -> None:
    upload(main, "a")
    place, name = (branch := server.branch(repo.id)).context.locate(branch.stat("a").address)
    place.delete(name)
    path = f"/repositories/{repo.id}/branches/main/objects/copy?dest_path=b"
    assert server.call("POST", path, {"src_path": "a"}).status == 410
    assert not main.object("b").exists()


def test_many_objects_are_deleted(main: lakefs.Branch) -> None:
    upload(main, "a", "b", "c")
    main.delete_objects(["a", "c", "absent"])
    assert [found.path for found in main.objects()] == ["b"]


# -- changes ------------------------------------------------------------------------------------------


def test_changes_are_committed_and_merged(repo: lakefs.Repository, main: lakefs.Branch) -> None:
    upload(main, "a")
    assert [(change.type, change.path) for change in main.uncommitted()] == [("added", "a")]
    main.commit("first", metadata={"who": "me"})
    dev = repo.branch("dev").create("main")
    upload(dev, "b")
    dev.commit("second")
    assert [(change.type, change.path) for change in main.diff(dev)] == [("added", "b")]
    dev.merge_into(main, message="merged")
    log = list(main.log())
    assert [found.message for found in log[:3]] == ["merged", "second", "first"]
    with pytest.raises(BadRequestException, match="no changes"):
        dev.merge_into(main)


def test_changes_are_reset_and_reverted(main: lakefs.Branch) -> None:
    upload(main, "a/1", "a/2", "b")
    main.reset_changes("object", "b")
    main.reset_changes("common_prefix", "a/")
    assert list(main.uncommitted()) == []
    upload(main, "a", body=b"1")
    main.commit("one")
    upload(main, "a", body=b"2")
    main.commit("two")
    reverted = main.revert("main")
    assert reverted.message.startswith("Revert")
    assert main.object("a").reader("rb").read() == b"1"


def test_a_commit_is_picked(repo: lakefs.Repository, main: lakefs.Branch) -> None:
    dev = repo.branch("dev").create("main")
    upload(dev, "a")
    picked = dev.commit("one", metadata={"k": "v"}).get_commit()
    made = main.cherry_pick(picked.id)
    assert made.message == "one"
    assert made.metadata["cherry-pick-origin"] == picked.id


# -- transactions -------------------------------------------------------------------------------------


def test_a_transaction_is_one_merge(repo: lakefs.Repository, main: lakefs.Branch) -> None:
    with main.transact(commit_message="in one", commit_metadata={"k": "v"}, tag="v1") as tx:
        upload(tx, "a", "b")
        name = tx.id
        assert name not in [branch.id for branch in repo.branches()]
    log = list(main.log())
    assert log[0].message.startswith("Merge transaction")
    assert (log[1].message, log[1].metadata) == ("in one", {"k": "v"})
    assert [found.path for found in main.objects()] == ["a", "b"]
    assert repo.tag("v1").get_commit().id == log[0].id
    with pytest.raises(NotFoundException):
        repo.branch(name).get_commit()


def test_a_transaction_that_cannot_be_merged(repo: lakefs.Repository, main: lakefs.Branch) -> None:
    with pytest.raises(TransactionException, match="no changes"), main.transact(commit_message="nothing"):
        pass
    upload(main, "a")
    with pytest.raises(TransactionException, match="dirty branch"), main.transact(commit_message="dirty") as tx:
        upload(tx, "b")
    main.commit("a")
    with pytest.raises(TransactionException, match="Conflict"), main.transact(commit_message="conflict") as tx:
        upload(tx, "a", body=b"theirs")
        upload(main, "a", body=b"ours")
        main.commit("ours")


def test_a_wrong_secret_is_not_authorized(server: Server) -> None:
    wrong = Client(host=server.url, username=server.access_key, password="wrong")
    with pytest.raises(NotAuthorizedException):
        list(lakefs.repositories(client=wrong))
