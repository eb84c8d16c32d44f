"""Settings, maintenance, logins and actions, as clients see them."""

from __future__ import annotations

import lakefs_sdk
import pytest
from lakefs_sdk.client import LakeFSClient
from lakefs_sdk.exceptions import ApiException, ForbiddenException, NotFoundException

from millpond.server.lakefs.errors import OWN
from tests.clients.conftest import Server
from tests.clients.test_branches import create
from tests.clients.test_commits import refused


def test_a_protected_branch_changes_by_merges_alone(server: Server, sdk: LakeFSClient, repository: str) -> None:
    api = sdk.repositories_api
    assert api.get_branch_protection_rules(repository) == []
    create(sdk, repository, "release")
    api.set_branch_protection_rules(repository, [lakefs_sdk.BranchProtectionRule(pattern="rel*")])
    assert [rule.pattern for rule in api.get_branch_protection_rules(repository)] == ["rel*"]
    creation = lakefs_sdk.CommitCreation(message="x", allow_empty=True)
    assert refused(lambda: sdk.commits_api.commit(repository, "release", creation)) == (
        403, "cannot commit to protected branch",
    )  # fmt: skip
    with pytest.raises(ForbiddenException):
        sdk.branches_api.delete_branch(repository, "release")
    server.branch(repository).put("a", b"1")
    sdk.commits_api.commit(repository, "main", lakefs_sdk.CommitCreation(message="a"))
    assert sdk.refs_api.merge_into_branch(repository, "main", "release").reference


def test_a_protected_branch_takes_no_resets_and_gives_no_addresses(server: Server, repository: str) -> None:
    branch = f"/repositories/{repository}/branches/main"
    server.branch(repository).put("a", b"1")
    server.call("PUT", f"/repositories/{repository}/settings/branch_protection", [{"pattern": "ma*"}])
    resets = ({"type": "reset"}, {"type": "object", "path": "a"}, {"type": "common_prefix", "path": "a"})
    answers = [server.call("PUT", branch, wanted) for wanted in resets]
    answers += [
        server.call("GET", f"{branch}/staging/backing?path=b&presign=true"),
        server.call("POST", f"{branch}/staging/pmpu?path=b&parts=2"),
    ]
    expected = (403, {"message": "cannot write to protected branch"})
    assert [(answer.status, answer.json()) for answer in answers] == [expected] * 5
    assert server.branch(repository).get("a") == b"1"


def test_a_setting_is_changed_by_who_knows_its_tag(server: Server, sdk: LakeFSClient, repository: str) -> None:
    path = f"/repositories/{repository}/settings/branch_protection"
    first = server.call("GET", path)
    assert (first.json(), first.headers["ETag"]) == ([], "")
    assert server.call("PUT", path, [{"pattern": "a"}], headers={"If-Match": ""}).status == 204
    tag = server.call("GET", path).headers["ETag"]
    assert len(tag) == 64
    stale = server.call("PUT", path, [{"pattern": "b"}], headers={"If-Match": '"stale"'})
    assert (stale.status, stale.json()) == (412, {"message": "precondition failed"})
    assert server.call("PUT", path, [{"pattern": "b"}], headers={"If-Match": f'"{tag}"'}).status == 204


def test_retention_is_set_and_cleared(sdk: LakeFSClient, repository: str) -> None:
    api = sdk.repositories_api
    assert refused(lambda: api.get_gc_rules(repository)) == (404, "not found")
    rule = lakefs_sdk.GarbageCollectionRule(branch_id="main", retention_days=3)
    wanted = lakefs_sdk.GarbageCollectionRules(default_retention_days=7, branches=[rule])
    api.set_gc_rules(repository, wanted)
    assert api.get_gc_rules(repository) == wanted
    api.delete_gc_rules(repository)
    with pytest.raises(NotFoundException):
        api.get_gc_rules(repository)
    negative = lakefs_sdk.GarbageCollectionRules(default_retention_days=-1, branches=[])
    assert refused(lambda: api.set_gc_rules(repository, negative))[0] == 400


def test_compaction_keeps_the_state(server: Server, repository: str) -> None:
    base = f"/repositories/{repository}"
    rules = {"deletions": 5, "sealed_tokens": 9, "pause_ms": 1}
    assert server.call("PUT", f"{base}/settings/compaction", rules).status == 204
    assert server.call("GET", f"{base}/settings/compaction").json() == rules
    branch = server.branch(repository)
    for path in ("a", "b"):
        branch.put(path, b"1")
    done = server.call("POST", f"{base}/branches/main/compact").json()
    assert (done["done"], done["layers"]) == (True, 1)
    assert branch.staging.record().compacted_index is not None
    headers = {"Authorization": f"Bearer {server.token}"}
    page = server.pool.request("GET", f"{server.url}/metrics", headers=headers).data.decode()
    [folded] = [
        line.split()[1] for line in page.splitlines() if line.startswith("millpond_versions_layers_folded_total ")
    ]
    assert float(folded) >= 1
    assert "\nmillpond_versions_branches " in page and "\nmillpond_versions_sealed_layers_max " in page
    assert [change.path for change in branch.diff().results] == ["a", "b"]


def test_garbage_is_counted_before_it_is_deleted(server: Server, repository: str) -> None:
    path = f"/repositories/{repository}/gc/collect"
    assert server.call("POST", path, {"dry_run": True}).json()["dry_run"] is True
    assert server.call("POST", path).json()["objects"] == 0
    assert server.call("POST", path, {"grace_ms": 0}).status == 400


# -- logins -------------------------------------------------------------------------------------------


def test_a_login_gives_a_token_until_its_pair_is_revoked(server: Server) -> None:
    access_key, secret = server.add_pair("visitor", read=("*",))
    client = server.client((access_key, secret))
    login = client.auth_api.login(lakefs_sdk.LoginInformation(access_key_id=access_key, secret_access_key=secret))
    headers = {"Authorization": f"Bearer {login.token}"}
    assert server.call("GET", "/user", headers=headers).json()["user"]["id"] == "visitor"
    assert server.call("GET", "/repositories", headers=headers).status == 200
    assert server.call("POST", "/repositories", {}, headers=headers).status == 401
    forged = {"Authorization": f"Bearer {login.token[:-8]}AAAAAAA="}
    assert server.call("GET", "/user", headers=forged).status == 401
    server.revoke("visitor")
    assert server.call("GET", "/user", headers=headers).status == 401


def test_a_login_with_a_wrong_secret_is_refused(sdk: LakeFSClient) -> None:
    wrong = lakefs_sdk.LoginInformation(access_key_id="x", secret_access_key="y")
    with pytest.raises(ApiException) as error:
        sdk.auth_api.login(wrong)
    assert error.value.status == 401


def test_the_installation_is_set_up(sdk: LakeFSClient) -> None:
    assert sdk.internal_api.get_setup_state().state == "initialized"
    assert refused(lambda: sdk.internal_api.setup(lakefs_sdk.Setup(username="again"))) == (
        409, "lakeFS already initialized",
    )  # fmt: skip
    assert refused(lambda: sdk.internal_api.setup(lakefs_sdk.Setup(username="")))[0] == 400
    assert sdk.auth_api.get_current_user().user.id == "esti"
    assert sdk.internal_api.get_usage_report_summary()


def test_older_clients_protect_one_pattern_at_a_time(server: Server, repository: str) -> None:
    where = f"/repositories/{repository}/branch_protection"

    def patterns() -> list[str]:
        listed = server.call("GET", where).json()
        assert listed == server.call("GET", f"/repositories/{repository}/settings/branch_protection").json()
        return [rule["pattern"] for rule in listed]

    for pattern in ("main", "release-*", "main"):
        assert server.call("POST", where, {"pattern": pattern}).status == 204
    assert patterns() == ["main", "release-*"]
    deleted = [server.call("DELETE", where, {"pattern": pattern}).status for pattern in ("main", "main", "other")]
    assert (deleted, patterns()) == ([204, 404, 404], ["release-*"])
    reader = server.add_pair(f"{repository}-reader", read=(f"{repository}/*",))
    for pair, allowed in ((None, 204), (reader, 401)):
        assert server.call("GET", f"{where}/set_allowed", pair=pair).status == allowed
    assert server.call("POST", where, {"pattern": "x"}, pair=reader).status == 401


def test_settings_of_a_read_only_repository_stay(server: Server, repository: str) -> None:
    own = {"Accept": OWN, "Content-Type": "application/json"}
    where, body = f"/repositories/{repository}", {"read_only": True}
    assert server.call("PATCH", where, body, headers=own).status == 200
    rules = {"default_retention_days": 5, "branches": []}
    for method, path, sent in (
        ("PUT", "settings/branch_protection", [{"pattern": "main"}]), ("PUT", "settings/gc_rules", rules),
        ("POST", "branch_protection", {"pattern": "main"}), ("DELETE", "branch_protection", {"pattern": "main"}),
        ("POST", "gc/prepare_commits", {}), ("POST", "gc/prepare_uncommited", {}),
        ("DELETE", "settings/gc_rules", None),
    ):  # fmt: skip
        answer = server.call(method, f"{where}/{path}", sent)
        assert (answer.status, answer.json()) == (403, {"message": "read-only repository"}), path
    assert server.call("PUT", f"{where}/settings/gc_rules", rules, headers=own).status == 204


@pytest.mark.parametrize(
    ("event", "status"), [({}, 204), ({"class": ""}, 400), ({"name": ""}, 400), ({"count": -1}, 400)]
)
def test_statistics_of_clients_are_taken(server: Server, event: dict[str, object], status: int) -> None:
    reported = {"events": [{"class": "lakectl", "name": "fs_ls", "count": 1} | event]}
    assert server.call("POST", "/statistics", reported).status == status


def test_there_are_no_runs_of_actions(sdk: LakeFSClient, repository: str) -> None:
    assert sdk.actions_api.list_repository_runs(repository, after="x", branch="main").results == []
    assert refused(lambda: sdk.actions_api.list_repository_runs(repository, branch="main", commit="x"))[0] == 400
    with pytest.raises(NotFoundException):
        sdk.actions_api.get_run(repository, "nope")
    with pytest.raises(NotFoundException):
        sdk.actions_api.list_repository_runs("absent-repo")
