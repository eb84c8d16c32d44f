"""Commits, differences, merges, reverts, cherry-picks and resets, as clients see them."""

from __future__ import annotations

from typing import Any

import lakefs_sdk
import pytest
from lakefs_sdk.client import LakeFSClient
from lakefs_sdk.exceptions import ApiException, NotFoundException

from millpond.versions.branch import Branch
from tests.clients.conftest import Server
from tests.clients.test_branches import create, head
from tests.clients.test_installation import message


@pytest.fixture
def main(server: Server, repository: str) -> Branch:
    return server.branch(repository)


def commit(sdk: LakeFSClient, repository: str, text: str = "", branch: str = "main", **more: Any) -> lakefs_sdk.Commit:
    return sdk.commits_api.commit(repository, branch, lakefs_sdk.CommitCreation(message=text, **more))


def merge(sdk: LakeFSClient, repository: str, source: str, target: str = "main", **more: Any) -> str:
    return sdk.refs_api.merge_into_branch(repository, source, target, merge=lakefs_sdk.Merge(**more)).reference


def paths(page: lakefs_sdk.DiffList) -> list[tuple[str, str]]:
    return [(found.type, found.path) for found in page.results]


def refused(act: Any) -> tuple[int, str]:
    with pytest.raises(ApiException) as error:
        act()
    return error.value.status, message(error.value)


# -- commits ------------------------------------------------------------------------------------------


def test_a_commit_is_made_and_found(sdk: LakeFSClient, repository: str, main: Branch) -> None:
    first = head(sdk, repository)
    main.put("a", b"1")
    made = commit(sdk, repository, "one", metadata={"who": "me"}, var_date=1_700_000_000)
    assert (made.message, made.committer, made.metadata) == ("one", "esti", {"who": "me"})
    assert (made.parents, made.generation, made.creation_date) == ([first], 2, 1_700_000_000)
    for ref in ("main", "main@", made.id, made.id[:12]):
        assert sdk.commits_api.get_commit(repository, ref) == made
    assert sdk.commits_api.get_commit(repository, "main~1").id == first


def test_a_commit_without_changes_names_the_commit_that_has_them(
    server: Server, sdk: LakeFSClient, repository: str, main: Branch
) -> None:
    main.put("a", b"1")
    made = commit(sdk, repository, "one")
    again = server.call("POST", f"/repositories/{repository}/branches/main/commits", {"message": "two"})
    assert (again.status, again.json()) == (400, {"message": "commit: no changes"})
    assert again.headers["X-Millpond-Commit"] == made.id
    assert commit(sdk, repository, "two", allow_empty=True).parents == [made.id]


def test_some_paths_are_committed(server: Server, repository: str, main: Branch) -> None:
    for path in ("a/1", "b/1"):
        main.put(path, b"1")
    body = {"message": "a", "prefixes": ["a/"]}
    assert server.call("POST", f"/repositories/{repository}/branches/main/commits", body).status == 201
    assert [change.path for change in main.diff().results] == ["b/1"]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("ref", "status", "said"),
    [
        ("nope", 404, "commit not found"),
        ("main~99", 404, "commit not found"),
        ("main^2", 400, "ref: invalid value: validation error"),
        ("main^a", 400, "ref: invalid value: validation error"),
        ("^main", 400, "ref: invalid value: validation error"),
        ("main$", 400, "reference 'main$': reference to staging area with $ is not a commit"),
    ],
)
def test_a_ref_that_is_none(sdk: LakeFSClient, repository: str, ref: str, status: int, said: str) -> None:
    assert refused(lambda: sdk.commits_api.get_commit(repository, ref)) == (status, said)


def test_the_log_is_read_in_pages(sdk: LakeFSClient, repository: str, main: Branch) -> None:
    made = []
    for number in range(4):
        main.put(f"p{number}", b"1")
        made.append(commit(sdk, repository, str(number), var_date=2_000_000_000 + number).id)
    made.reverse()
    after, ids = "", []
    while True:
        page = sdk.refs_api.log_commits(repository, "main", amount=2, after=after)
        ids += [found.id for found in page.results]
        if not page.pagination.has_more:
            break
        after = page.pagination.next_offset
    assert ids[:4] == made
    assert len(ids) == 5
    limited = sdk.refs_api.log_commits(repository, "main", amount=2, limit=True)
    assert ([found.id for found in limited.results], limited.pagination.has_more) == (made[:2], False)
    touched = sdk.refs_api.log_commits(repository, "main", objects=["p1"], prefixes=["p3"])
    assert [found.message for found in touched.results] == ["3", "1"]
    stopped = sdk.refs_api.log_commits(repository, "main", stop_at="main~1", first_parent=True)
    assert [found.id for found in stopped.results] == made[:2]


# -- differences --------------------------------------------------------------------------------------


def test_what_is_staged_differs_from_the_head(sdk: LakeFSClient, repository: str, main: Branch) -> None:
    for path in ("a/1", "a/2", "b"):
        main.put(path, b"1")
    commit(sdk, repository)
    main.put("a/1", b"22")
    main.delete("a/2")
    main.put("c", b"333")
    page = sdk.branches_api.diff_branch(repository, "main")
    assert [(found.type, found.path, found.size_bytes) for found in page.results] == [
        ("changed", "a/1", 2), ("removed", "a/2", 0), ("added", "c", 3),
    ]  # fmt: skip
    folders = sdk.branches_api.diff_branch(repository, "main", delimiter="/").results
    assert [(found.type, found.path, found.path_type) for found in folders] == [
        ("prefix_changed", "a/", "common_prefix"), ("added", "c", "object"),
    ]  # fmt: skip
    assert refused(lambda: sdk.branches_api.diff_branch(repository, "nope")) == (404, "branch not found")


def test_two_refs_differ(sdk: LakeFSClient, repository: str, server: Server, main: Branch) -> None:
    main.put("a", b"1")
    main.put("b", b"1")
    commit(sdk, repository)
    create(sdk, repository, "dev")
    dev = server.branch(repository, "dev")
    dev.put("a", b"22")
    dev.delete("b")
    assert paths(sdk.refs_api.diff_refs(repository, "main", "dev$", type="two_dot")) == [
        ("changed", "a"), ("removed", "b"),
    ]  # fmt: skip
    commit(sdk, repository, branch="dev")
    page = sdk.refs_api.diff_refs(repository, "main", "dev", include_right_stats=True)
    assert [(found.type, found.path, found.size_bytes) for found in page.results] == [
        ("changed", "a", 2), ("removed", "b", 1),
    ]  # fmt: skip
    assert page.results[0].right is not None
    assert page.results[0].right.content_type == "application/octet-stream"
    assert paths(sdk.refs_api.diff_refs(repository, "dev", "main")) == []
    assert paths(sdk.refs_api.diff_refs(repository, "dev", "main", type="two_dot")) == [
        ("changed", "a"), ("added", "b"),
    ]  # fmt: skip
    assert refused(lambda: sdk.refs_api.diff_refs(repository, "main", "nope")) == (
        404, "get commit by ref nope: not found",
    )  # fmt: skip
    assert refused(lambda: sdk.refs_api.diff_refs(repository, "dev$", "main"))[0] == 400


# -- merges -------------------------------------------------------------------------------------------


@pytest.fixture
def forked(sdk: LakeFSClient, repository: str, server: Server, main: Branch) -> str:
    """A repository whose branches `main` and `dev` changed `a` and `b` differently."""
    main.put("a", b"0")
    main.put("b", b"0")
    commit(sdk, repository)
    create(sdk, repository, "dev")
    for branch, body in (("main", b"ours"), ("dev", b"theirs")):
        for path in ("a", "b", f"only-{branch}"):
            server.branch(repository, branch).put(path, body)
        commit(sdk, repository, branch=branch)
    return repository


def test_a_conflict_names_its_paths(server: Server, sdk: LakeFSClient, forked: str) -> None:
    found = server.call("POST", f"/repositories/{forked}/refs/dev/merge/main", {})
    assert (found.status, found.json()) == (409, {"reference": "", "conflicts": ["a", "b"]})
    with pytest.raises(ApiException, match="Conflict"):
        merge(sdk, forked, "dev")
    conflicts = [path for type_, path in paths(sdk.refs_api.diff_refs(forked, "main", "dev")) if type_ == "conflict"]
    assert conflicts == ["a", "b"]


@pytest.mark.parametrize(("strategy", "body"), [("source-wins", b"theirs"), ("dest-wins", b"ours")])
def test_a_strategy_decides_conflicts(
    server: Server, sdk: LakeFSClient, forked: str, strategy: str, body: bytes
) -> None:
    merged = sdk.commits_api.get_commit(forked, merge(sdk, forked, "dev", strategy=strategy, metadata={"m": "1"}))
    assert merged.metadata == {".lakefs.merge.strategy": strategy, "m": "1"}
    assert (merged.message, len(merged.parents)) == ("Merge 'dev' into 'main'", 2)
    assert server.branch(forked).get("a") == body
    assert server.branch(forked).get("only-dev") == b"theirs"


def test_resolutions_decide_by_path(server: Server, forked: str) -> None:
    body = {"resolutions": [{"take": "source", "path": "a"}, {"take": "delete", "prefix": "b"}], "squash_merge": True}
    found = server.call("POST", f"/repositories/{forked}/refs/dev/merge/main", body)
    assert found.status == 200
    assert server.branch(forked).get("a") == b"theirs"
    assert [entry.path for entry in server.branch(forked).list().results] == ["a", "only-dev", "only-main"]
    wrong = server.call("POST", f"/repositories/{forked}/refs/dev/merge/main", {"resolutions": [{"take": "mine"}]})
    assert wrong.status == 400


def test_a_merge_that_cannot_be_made(sdk: LakeFSClient, forked: str, server: Server) -> None:
    assert refused(lambda: merge(sdk, forked, "main")) == (400, "update branch main: no changes")
    assert merge(sdk, forked, "main", force=True) == head(sdk, forked)
    for target in ("main$", "main@"):
        assert refused(lambda target=target: merge(sdk, forked, "dev", target)) == (  # type: ignore[misc]
            400, "argument destination: branch id: invalid value: validation error",
        )  # fmt: skip
    assert refused(lambda: head(sdk, forked, "main$")) == (
        400, "argument branch: branch id: invalid value: validation error",
    )  # fmt: skip
    assert refused(lambda: merge(sdk, forked, "nope")) == (404, "update branch main: get commit by ref nope: not found")
    assert refused(lambda: merge(sdk, forked, "dev", strategy="mine")) == (
        400, "argument strategy: invalid value: validation error",
    )  # fmt: skip
    assert refused(lambda: merge(sdk, forked, "dev", "nope")) == (404, "branch not found")
    server.branch(forked).put("dirty", b"1")
    assert refused(lambda: merge(sdk, forked, "dev")) == (400, "uncommitted changes (dirty branch)")
    tree = sdk.commits_api.get_commit(forked, "dev").meta_range_id
    taken = lakefs_sdk.CommitCreation(message="taken")
    assert refused(lambda: sdk.commits_api.commit(forked, "main", taken, source_metarange=tree)) == (
        400, "cannot use source MetaRange on a branch with uncommitted changes",
    )  # fmt: skip


def test_the_merge_base_is_not_swapped(sdk: LakeFSClient, forked: str) -> None:
    found = sdk.refs_api.find_merge_base(forked, "dev", "main")
    assert (found.source_commit_id, found.destination_commit_id) == (head(sdk, forked, "dev"), head(sdk, forked))
    assert found.base_commit_id == sdk.commits_api.get_commit(forked, "main~1").id


# -- reverts, cherry-picks, resets --------------------------------------------------------------------


def test_a_commit_is_reverted(sdk: LakeFSClient, forked: str, server: Server) -> None:
    merged = merge(sdk, forked, "dev", strategy="source-wins")
    branches = sdk.branches_api

    def revert(number: int, ref: str = merged, **more: Any) -> None:
        branches.revert_branch(forked, "main", lakefs_sdk.RevertCreation(ref=ref, parent_number=number, **more))

    assert refused(lambda: revert(0)) == (409, "must specify 1-based parent number for reverting merge commit")
    assert refused(lambda: revert(3)) == (400, "given commit does not have the given parent number: parent 3")
    assert refused(lambda: revert(1, "nope")) == (404, "get commit from ref nope: not found")
    revert(1)
    assert server.branch(forked).get("a") == b"ours"
    assert sdk.commits_api.get_commit(forked, "main").message == f"Revert {merged}"
    assert refused(lambda: revert(1)) == (400, "update branch: no changes")
    revert(1, allow_empty=True, commit_overrides=lakefs_sdk.CommitOverrides(message="m", metadata={"k": "v"}))
    last = sdk.commits_api.get_commit(forked, "main")
    assert (last.message, last.metadata) == ("m", {"k": "v"})


def test_a_commit_is_picked(sdk: LakeFSClient, forked: str, server: Server) -> None:
    server.branch(forked, "dev").put("new", b"1")
    picked = commit(sdk, forked, "new", branch="dev", metadata={"k": "v"})
    made = sdk.branches_api.cherry_pick(forked, "main", lakefs_sdk.CherryPickCreation(ref=picked.id))
    assert made.message == "new"
    assert made.metadata == {"k": "v", "cherry-pick-origin": picked.id, "cherry-pick-committer": "esti"}
    assert server.branch(forked).get("new") == b"1"
    clash = f"/repositories/{forked}/branches/main/cherry-pick"
    answer = server.call("POST", clash, {"ref": sdk.commits_api.get_commit(forked, "dev~1").id})
    assert (answer.status, answer.json()["message"]) == (409, "update branch: conflict found")
    merged = merge(sdk, forked, "dev", strategy="source-wins")
    creation = lakefs_sdk.CherryPickCreation(ref=merged)
    none = lakefs_sdk.CherryPickCreation(ref=picked.id, parent_number=0)
    assert refused(lambda: sdk.branches_api.cherry_pick(forked, "main", none))[0] == 400
    assert refused(lambda: sdk.branches_api.cherry_pick(forked, "dev", creation)) == (
        400, "must specify 1-based parent number for cherry-picking merge commit",
    )  # fmt: skip
    with pytest.raises(NotFoundException):
        sdk.branches_api.cherry_pick(forked, "main", lakefs_sdk.CherryPickCreation(ref="nope"))


def test_what_is_staged_is_taken_back(sdk: LakeFSClient, repository: str, main: Branch) -> None:
    reset = sdk.branches_api.reset_branch
    for path in ("a/1", "a/2", "b", "c"):
        main.put(path, b"1")
    reset(repository, "main", lakefs_sdk.ResetCreation(type="object", path="b"))
    assert [path for _, path in paths(sdk.branches_api.diff_branch(repository, "main"))] == ["a/1", "a/2", "c"]
    reset(repository, "main", lakefs_sdk.ResetCreation(type="common_prefix", path="a/"))
    assert [path for _, path in paths(sdk.branches_api.diff_branch(repository, "main"))] == ["c"]
    reset(repository, "main", lakefs_sdk.ResetCreation(type="reset"))
    assert paths(sdk.branches_api.diff_branch(repository, "main")) == []
    assert refused(lambda: reset(repository, "main", lakefs_sdk.ResetCreation(type="object"))) == (
        400, "argument path: missing path: required value: validation error",
    )  # fmt: skip
    assert refused(lambda: reset(repository, "nope", lakefs_sdk.ResetCreation(type="reset"))) == (
        404, "branch not found",
    )  # fmt: skip


def test_a_head_is_moved(sdk: LakeFSClient, repository: str, main: Branch) -> None:
    first = head(sdk, repository)
    main.put("a", b"1")
    commit(sdk, repository)
    sdk.experimental_api.hard_reset_branch(repository, "main", ref="main~1")
    assert head(sdk, repository) == first
    assert refused(lambda: sdk.experimental_api.hard_reset_branch(repository, "main", ref="nope")) == (
        404, "hard-reset main to nope: not found",
    )  # fmt: skip
    main.put("b", b"2")
    assert refused(lambda: sdk.experimental_api.hard_reset_branch(repository, "main", ref=first)) == (
        400, "uncommitted changes (dirty branch)",
    )  # fmt: skip
    sdk.experimental_api.hard_reset_branch(repository, "main", ref=first, force=True)
    assert sdk.branches_api.diff_branch(repository, "main").results == []
