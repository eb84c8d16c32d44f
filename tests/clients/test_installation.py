"""The node as an installation, its pairs, and its repositories, as clients see them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import lakefs_sdk
import pytest
from lakefs_sdk.client import LakeFSClient
from lakefs_sdk.exceptions import ApiException, BadRequestException, NotFoundException, UnauthorizedException
from typer.testing import CliRunner

from millpond.cli.main import app
from millpond.server.lakefs.api import ROUTES
from millpond.server.lakefs.dialect import NOT_OFFERED
from millpond.server.lakefs.needs import PREFIX
from tests.clients.conftest import Server

NAMES = re.compile(r"\{\w+\}")


def message(error: ApiException) -> str:
    return str(json.loads(error.body)["message"])


def creation(name: str, **more: Any) -> lakefs_sdk.RepositoryCreation:
    return lakefs_sdk.RepositoryCreation(**{"name": name, "storage_namespace": f"local://{name}", **more})


def test_health_needs_no_pair(server: Server) -> None:
    found = server.pool.request("GET", f"{server.url}/api/v1/healthcheck")
    assert (found.status, found.data) == (204, b"")


def test_the_configuration_is_what_clients_need(sdk: LakeFSClient) -> None:
    config = sdk.config_api.get_config()
    assert config.version_config is not None
    assert config.storage_config is not None
    assert config.version_config.version == "1.84.0"
    assert config.storage_config.pre_sign_support


@pytest.mark.parametrize("secret", ["", "wrong", "x" * 10_000])
def test_a_wrong_secret_is_refused(server: Server, secret: str) -> None:
    with pytest.raises(UnauthorizedException) as refused:
        server.client((server.access_key, secret)).repositories_api.list_repositories()
    assert message(refused.value) == "error authenticating request"


@pytest.mark.parametrize(
    "header", ["", "Basic", "Basic !!", "Basic YWJj", "Basic w7w=", "Bearer x", "Bearer ", "Digest a"]
)
def test_what_is_no_pair_is_refused(server: Server, header: str) -> None:
    refused = server.call("GET", "/repositories", headers={"Authorization": header})
    assert (refused.status, refused.json()) == (401, {"message": "error authenticating request"})
    assert refused.headers["WWW-Authenticate"].startswith("Basic")


def test_without_any_pair_every_pair_is_taken(open_server: Server) -> None:
    listed = open_server.client().repositories_api.list_repositories().results
    assert [found.id for found in listed] == ["pond"], "that of the maps, which is made when it is asked for"


def test_a_pair_opens_no_map_and_a_token_no_repository(server: Server) -> None:
    headers = {"Authorization": f"Bearer {server.secret}"}
    assert server.pool.request("GET", f"{server.url}/v1/maps", headers=headers).status == 401
    assert server.call("GET", "/repositories", headers=headers).status == 401


@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/nothing/here"), ("PATCH", "/repositories"), ("GET", ""), ("GET", "/")]
)
def test_what_is_no_route_is_404(server: Server, method: str, path: str) -> None:
    found = server.call(method, path)
    assert (found.status, found.json()) == (404, {"message": "invalid API endpoint"})


@pytest.mark.parametrize("path", ["/repositories//refs/main/objects/ls", "/repositories/flights/branches//commits"])
def test_an_empty_name_is_400(server: Server, path: str) -> None:
    found = server.call("GET", path)
    assert (found.status, found.json()) == (400, {"message": "a name in the path is empty: validation error"})


@pytest.mark.parametrize(
    "path",
    [
        "/api/v11/repositories", "/api/v2/config", "/api/v1x", "/api/",
        "/repositories", "/v1/repositories", "/lakefs/api/v1/repositories",
    ],
)  # fmt: skip
def test_a_wrong_address_is_one_that_lakectl_doctor_knows(server: Server, path: str) -> None:
    """It takes any answer of JSON for one of the API, and names the address for any other."""
    found = server.pool.request("GET", f"{server.url}{path}", headers={"Accept": "application/json"})
    assert (found.status, found.headers["Content-Type"]) == (404, "text/plain; charset=utf-8")
    assert b"ends with /api/v1" in found.data


def test_the_version_has_no_context_of_another_edition(server: Server) -> None:
    assert server.call("GET", "/config/version").json() == {"version": "1.84.0"}


def test_properties_of_bytes_are_those_of_the_place(server: Server, repository: str) -> None:
    main = server.branch(repository)
    entry = main.put("a", b"1")
    where = f"/repositories/{repository}/refs/main/objects/underlyingProperties?path="
    assert (server.call("GET", f"{where}a").status, server.call("GET", f"{where}a").json()) == (200, {})
    assert re.fullmatch("data/[0-9a-v]{20}/[0-9a-v]{20}", entry.address)
    assert server.call("GET", f"{where}nope").status == 404
    main.context.data.delete(entry.address)
    assert server.call("GET", f"{where}a").status == 410


def called_by_clients() -> set[tuple[str, str]]:
    """The method and the path of every call of `lakefs-sdk`; the names of a path are `{}`."""
    calls = set[tuple[str, str]]()
    for file in (Path(lakefs_sdk.__file__).parent / "api").glob("*_api.py"):
        found = re.findall(r"call_api\(\s*'([^']+)',\s*'([A-Z]+)'", file.read_text(encoding="utf-8"))
        calls |= {(method, NAMES.sub("{}", path)) for path, method in found}
    return calls


def test_each_call_of_a_client_has_a_route_or_an_answer_with_the_way_out(server: Server) -> None:
    routes = {(route.method, NAMES.sub("{}", route.path.removeprefix(PREFIX))) for route in ROUTES}
    absent = {(method, f"/{path}") for path, (methods, _) in NOT_OFFERED.items() for method in methods.split()}
    calls = called_by_clients()
    assert len(calls) > 100
    assert calls <= routes | absent
    assert not routes & absent
    for method, path in sorted(absent):
        found = server.call(method, path.format(*"abcdef"), b"" if method in ("POST", "PUT", "PATCH") else None)
        assert found.status == 501, (method, path)
        assert "not " in found.json()["message"], (method, path)
        assert server.call("OPTIONS", path.format(*"abcdef")).status == 404


def test_a_foreign_page_is_refused_without_pairs(open_server: Server) -> None:
    assert open_server.call("GET", "/repositories", headers={"Origin": "http://elsewhere"}).status == 403
    assert open_server.call("GET", "/repositories", headers={"Host": "elsewhere"}).status == 403


# -- repositories -------------------------------------------------------------------------------------


def test_a_repository_is_made_found_and_deleted(sdk: LakeFSClient) -> None:
    made = sdk.repositories_api.create_repository(creation("made"))
    assert (made.id, made.default_branch, made.storage_namespace) == ("made", "main", "local://made")
    assert sdk.repositories_api.get_repository("made") == made
    sdk.repositories_api.delete_repository("made")
    with pytest.raises(NotFoundException) as gone:
        sdk.repositories_api.get_repository("made")
    assert message(gone.value) == "repository not found"
    with pytest.raises(BadRequestException) as used:
        sdk.repositories_api.create_repository(creation("again", storage_namespace="local://made"))
    assert "storage namespace already in use" in message(used.value)


def test_repositories_are_listed_in_pages(sdk: LakeFSClient) -> None:
    for number in range(5):
        sdk.repositories_api.create_repository(creation(f"page-{number}"))
    after, names = "", []
    while True:
        page = sdk.repositories_api.list_repositories(prefix="page-", after=after, amount=2)
        assert page.pagination.results == len(page.results)
        assert page.pagination.max_per_page == 1000
        names += [found.id for found in page.results]
        if not page.pagination.has_more:
            break
        after = page.pagination.next_offset
        assert after == names[-1]
    assert names == [f"page-{number}" for number in range(5)]
    assert [found.id for found in sdk.repositories_api.list_repositories(search="ge-3").results] == ["page-3"]


def test_metadata_of_a_repository(sdk: LakeFSClient, repository: str) -> None:
    api = sdk.internal_api
    assert sdk.repositories_api.get_repository_metadata(repository) == {}
    api.set_repository_metadata(repository, lakefs_sdk.RepositoryMetadataSet(metadata={"a": "1", "b": "2"}))
    api.set_repository_metadata(repository, lakefs_sdk.RepositoryMetadataSet(metadata={"b": "3"}))
    assert sdk.repositories_api.get_repository_metadata(repository) == {"a": "1", "b": "3"}
    api.delete_repository_metadata(repository, lakefs_sdk.RepositoryMetadataKeys(keys=["a", "x"]))
    assert sdk.repositories_api.get_repository_metadata(repository) == {"b": "3"}


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"name": "Bad_Name", "storage_namespace": "local://x"}, 'Error at "/name": string doesn\'t match the regular'),
        ({"name": "good"}, 'Error at "/storage_namespace": property "storage_namespace" is missing'),
        ({"name": "good", "storage_namespace": "nope"}, 'Error at "/storage_namespace": string doesn\'t match'),
        ({"name": 3, "storage_namespace": "local://x"}, 'Error at "/name": value must be a string'),
        ({"name": None, "storage_namespace": "local://x"}, 'Error at "/name": property "name" is missing'),
        ({"name": "good", "storage_namespace": "local://x", "read_only": "yes"}, "value must be a boolean"),
        ([], "failed to decode request body"),
        (b"{not json", "failed to decode request body"),
        (b"", "value is required but missing"),
        ({"name": "good", "storage_namespace": "local://x", "default_branch": "a/b"}, "branch id: invalid value"),
        ({"name": "good", "storage_namespace": "local:///etc"}, "local:///etc is no place for one"),
        ({"name": "good", "storage_namespace": "local://../x"}, "local://../x is no place for one"),
        ({"name": "good", "storage_namespace": "local://x", "storage_id": "nope"}, "no storage config found"),
    ],
)  # fmt: skip
def test_a_creation_that_is_wrong_is_400(server: Server, body: Any, said: str) -> None:
    found = server.call("POST", "/repositories", body)
    assert found.status == 400
    assert said in found.json()["message"]


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("amount=5000", 'parameter "amount" in query has an error: number must be at most 1000'),
        ("amount=many", 'parameter "amount" in query has an error: value many: an invalid integer: invalid syntax'),
        ("amount=-2", "number must be at least -1"),
        ("prefix=%ff", "the query is not understood"),
    ],
)
def test_a_parameter_that_is_wrong_is_400(server: Server, query: str, said: str) -> None:
    found = server.call("GET", f"/repositories?{query}")
    assert found.status == 400
    assert said in found.json()["message"]


# -- rights -------------------------------------------------------------------------------------------


def test_a_pair_has_its_rights(server: Server, sdk: LakeFSClient) -> None:
    for name in ("ours", "theirs"):
        sdk.repositories_api.create_repository(creation(name))
    reader = server.client(server.add_pair("reader", read=("ours/main",)))
    assert [found.id for found in reader.repositories_api.list_repositories().results] == ["ours"]
    assert reader.repositories_api.get_repository("ours").id == "ours"
    for act in (
        lambda: reader.repositories_api.get_repository("theirs"),
        lambda: reader.repositories_api.delete_repository("ours"),
        lambda: reader.repositories_api.create_repository(creation("ours-too")),
    ):
        with pytest.raises(UnauthorizedException) as refused:
            act()
        assert message(refused.value) == "insufficient permissions"


def test_a_change_is_a_line_of_the_audit_log(server: Server, repository: str) -> None:
    server.call("DELETE", f"/repositories/{repository}")
    # Others use the server meanwhile: the last line may be there in part, though it is one write; a reader sees it page
    # by page. As text it might end within a character, or be split at one that JSON leaves in a line, such as U+2028.
    written = (server.folder / "audit.jsonl").read_bytes()
    lines = [json.loads(line) for line in written[: written.rindex(b"\n")].split(b"\n")]
    [deleted] = [line for line in lines if line["path"] == f"/api/v1/repositories/{repository}"]
    assert (deleted["token"], deleted["method"], deleted["status"]) == ("esti", "DELETE", 204)


def test_a_pair_is_printed_once_and_listed_without_its_secret(tmp_path: Path) -> None:
    def run(*arguments: str) -> str:
        done = CliRunner().invoke(app, ["token", *arguments, "--data", str(tmp_path / "pond")], prog_name="millpond")
        assert done.exit_code == 0, done.stderr
        return done.stdout

    printed = run("add", "--versions", "etl", "--write", "flights/fix-*")
    found = re.search(r"access_key_id: (AKIA[IJ][A-Z0-9]{14}Q)\nsecret_access_key: (\S+)", printed)
    assert found is not None
    listed = json.loads(run("list", "--json"))
    assert (listed["access_key"], listed["rights"]) == (found[1], {"write": ["flights/fix-*"]})
    assert found[2] not in (tmp_path / "pond" / "tokens.json").read_text()
    rotated = run("rotate", "etl")
    assert found[1] in rotated
    assert found[2] not in rotated
