"""Many clients on one branch: commits wait for one another, no answer is a fault, and nothing acknowledged is lost."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from lakefs_sdk.client import LakeFSClient

from tests.clients.conftest import Answer, Server

CLIENTS, ROUNDS = 6, 4


def test_racing_commits_are_made_or_name_the_commit_that_took_the_writes(
    server: Server, sdk: LakeFSClient, repository: str
) -> None:
    base = f"/repositories/{repository}"

    def race(client: int) -> list[Answer]:
        answers = []
        for number in range(ROUNDS):
            written = server.call("POST", f"{base}/branches/main/objects?path={client}/{number}", b"1")
            assert written.status == 201, written.body
            answers.append(server.call("POST", f"{base}/branches/main/commits", {"message": f"{client}.{number}"}))
        return answers

    with ThreadPoolExecutor(CLIENTS) as threads:
        answers = [answer for found in threads.map(race, range(CLIENTS)) for answer in found]
    assert {answer.status for answer in answers} <= {201, 400}, [answer.body for answer in answers]
    log = {commit.id for commit in sdk.refs_api.log_commits(repository, "main", amount=1000).results}
    for answer in answers:
        if answer.status == 201:
            assert answer.json()["id"] in log
        else:
            assert answer.json() == {"message": "commit: no changes"}
            assert answer.headers["X-Millpond-Commit"] in log
    committed = sdk.objects_api.list_objects(repository, "main@", amount=1000).results
    assert {entry.path for entry in committed} == {f"{a}/{b}" for a in range(CLIENTS) for b in range(ROUNDS)}


def test_racing_merges_are_made_or_found_to_have_no_changes(server: Server, sdk: LakeFSClient, repository: str) -> None:
    base = f"/repositories/{repository}"

    def race(client: int) -> list[int]:
        statuses = []
        for number in range(2):
            branch = f"b{client}-{number}"
            assert server.call("POST", f"{base}/branches", {"name": branch, "source": "main"}).status == 201
            server.call("POST", f"{base}/branches/{branch}/objects?path={client}/{number}", b"1")
            server.call("POST", f"{base}/branches/{branch}/commits", {"message": branch})
            statuses.append(server.call("POST", f"{base}/refs/{branch}/merge/main", {}).status)
        return statuses

    with ThreadPoolExecutor(CLIENTS) as threads:
        statuses = {status for found in threads.map(race, range(CLIENTS)) for status in found}
    assert statuses == {200}
    merged = sdk.objects_api.list_objects(repository, "main", amount=1000).results
    assert len(merged) == CLIENTS * 2
