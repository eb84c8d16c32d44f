"""Branches and tags, as clients see them."""

from __future__ import annotations

import lakefs_sdk
import pytest
from lakefs_sdk.client import LakeFSClient
from lakefs_sdk.exceptions import ApiException, ForbiddenException, NotFoundException, UnauthorizedException

from tests.clients.conftest import Server
from tests.clients.test_installation import message


def head(sdk: LakeFSClient, repository: str, branch: str = "main") -> str:
    return sdk.branches_api.get_branch(repository, branch).commit_id


def create(sdk: LakeFSClient, repository: str, name: str, source: str = "main", *, hidden: bool = False) -> str:
    wanted = lakefs_sdk.BranchCreation(name=name, source=source, hidden=hidden)
    return sdk.branches_api.create_branch(repository, wanted)


def test_a_branch_is_made_found_listed_and_deleted(sdk: LakeFSClient, repository: str) -> None:
    assert create(sdk, repository, "dev") == head(sdk, repository)
    create(sdk, repository, "ghost", hidden=True)
    listed = sdk.branches_api.list_branches(repository)
    assert [found.id for found in listed.results] == ["dev", "main"]
    assert [found.id for found in sdk.branches_api.list_branches(repository, show_hidden=True, prefix="g").results] == [
        "ghost"
    ]
    page = sdk.branches_api.list_branches(repository, amount=1)
    assert (page.pagination.has_more, page.pagination.next_offset) == (True, "dev")
    sdk.branches_api.delete_branch(repository, "dev")
    with pytest.raises(NotFoundException) as gone:
        sdk.branches_api.get_branch(repository, "dev")
    assert message(gone.value) == "branch not found"


def test_the_answer_of_a_creation_is_text(server: Server, repository: str) -> None:
    made = server.call("POST", f"/repositories/{repository}/branches", {"name": "dev", "source": "main"})
    assert (made.status, made.headers["content-type"], len(made.body)) == (201, "text/plain; charset=utf-8", 64)


@pytest.mark.parametrize(
    ("name", "source", "status", "said"),
    [
        ("main", "main", 409, "branch already exists: not unique"),
        ("a/b", "main", 400, "branch id: invalid value: validation error"),
        ("-lead", "main", 400, "branch id: invalid value: validation error"),
        ("ünï", "main", 400, "branch id: invalid value: validation error"),
        ("dev", "nope", 404, "not found"),
        ("dev", "main$", 400, "source reference 'main$': can't create a branch without commit"),
    ],
)
def test_a_branch_that_cannot_be_made(
    sdk: LakeFSClient, repository: str, name: str, source: str, status: int, said: str
) -> None:
    with pytest.raises(ApiException) as refused:
        create(sdk, repository, name, source)
    assert refused.value.status == status
    assert said in message(refused.value)


def test_no_ref_is_named_like_another(sdk: LakeFSClient, repository: str) -> None:
    commit = head(sdk, repository)

    def tag(name: str) -> object:
        return sdk.tags_api.create_tag(repository, lakefs_sdk.TagCreation(id=name, ref="main"))

    tag("v1")
    for act, said in (
        (lambda: create(sdk, repository, commit), f"commit ID {commit}"),
        (lambda: create(sdk, repository, "v1"), "tag ID v1"),
        (lambda: tag(commit), f"commit ID {commit}"),
        (lambda: tag("main"), "branch name main"),
    ):
        with pytest.raises(ApiException) as refused:
            act()
        assert (refused.value.status, message(refused.value)) == (409, f"{said}: conflict found")


def test_the_default_branch_stays(sdk: LakeFSClient, repository: str) -> None:
    with pytest.raises(ForbiddenException) as refused:
        sdk.branches_api.delete_branch(repository, "main")
    assert message(refused.value) == "cannot delete repository default branch"


def test_a_tag_is_made_found_and_deleted(sdk: LakeFSClient, repository: str) -> None:
    tags = sdk.tags_api
    wanted = lakefs_sdk.TagCreation(id="v1.0", ref="main")
    made = tags.create_tag(repository, wanted)
    assert (made.id, made.commit_id) == ("v1.0", head(sdk, repository))
    assert tags.get_tag(repository, "v1.0") == made
    assert tags.list_tags(repository).results == [made]
    with pytest.raises(ApiException) as twice:
        tags.create_tag(repository, wanted)
    assert (twice.value.status, message(twice.value)) == (409, "tag already exists: not unique")
    tags.delete_tag(repository, "v1.0")
    with pytest.raises(NotFoundException) as gone:
        tags.delete_tag(repository, "v1.0")
    assert message(gone.value) == "tag not found"
    with pytest.raises(NotFoundException) as absent:
        tags.create_tag(repository, lakefs_sdk.TagCreation(id="v2", ref="nope"))
    assert message(absent.value) == "not found"


def test_a_pair_writes_to_its_branches(server: Server, repository: str) -> None:
    writer = server.client(server.add_pair(f"{repository}-writer", write=(f"{repository}/fix-*",)))
    create(writer, repository, "fix-1")
    writer.branches_api.delete_branch(repository, "fix-1")
    for act in (
        lambda: create(writer, repository, "dev"),
        lambda: writer.branches_api.delete_branch(repository, "main"),
        lambda: writer.tags_api.create_tag(repository, lakefs_sdk.TagCreation(id="v1", ref="main")),
    ):
        with pytest.raises(UnauthorizedException):
            act()
