"""Questions about versions that are answered where the request is read: answered and refused as in a thread.

Each request is sent twice to one node: as it is, and while nothing of its repositories is read at once.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from urllib3.exceptions import IncompleteRead, ProtocolError

from millpond.errors import Corrupt
from millpond.kernel.space import WouldBlock
from millpond.nodes.tokens import hash_token
from tests.nodes.conftest import Served
from tests.postgres_server import new_location

pytestmark = pytest.mark.sample(1, of="file")

needs_psycopg = pytest.mark.skipif(find_spec("psycopg") is None, reason="the extra postgres is not installed")
KEY, SECRET = "AKIAJ00000000000000Q", "secret"
NARROW = "AKIAJ00000000000001Q"
TOKENS: list[dict[str, Any]] = [
    {"name": "etl", "sha256": hash_token(SECRET), "rights": {"admin": ["*"]}, "access_key": KEY},
    {"name": "other", "sha256": hash_token(SECRET), "rights": {"read": ["others"]}, "access_key": NARROW},
    {"name": "late", "sha256": hash_token("late"), "rights": {"read": ["*"]}, "access_key": KEY, "expires_ms": 1},
    {"name": "maps", "sha256": hash_token("maps"), "rights": {"admin": ["*"]}},
]  # fmt: skip
REPOSITORY = "/api/v1/repositories/flights"
OBJECTS = f"{REPOSITORY}/refs/{{}}/objects"


def basic(key: str, secret: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{key}:{secret}".encode()).decode()}


HEADERS: list[dict[str, str]] = [
    basic(KEY, SECRET), {}, basic(KEY, "wrong"), basic(KEY, "late"), basic("AKIAJ00000000000009Q", SECRET),
    basic(NARROW, SECRET), {"Authorization": "Bearer maps"}, {"Authorization": "Basic !"},
    {"Authorization": "basic " + basic(KEY, SECRET)["Authorization"][6:]},
    {**basic(KEY, SECRET), "Content-Length": "5"}, {**basic(KEY, SECRET), "Content-Length": "0"},
    {**basic(KEY, SECRET), "If-None-Match": "*", "Range": "bytes=1-2"},
]  # fmt: skip
REFS = ("main", "main@", "main$", "main~1", "v1", "no", "main~99", "~")
PATHS = [
    *(f"{OBJECTS.format(ref)}/stat?path=a%2Fb" for ref in REFS),
    *(f"{OBJECTS.format('main')}/stat{query}" for query in (
        "", "?path=", "?path=%ff", "?path=none", "?path=a/b&user_metadata=false", "?path=a/b&presign=true",
        "?path=a/b&presign=maybe", "?path=a/b&path=none", "?path=gone", "?path=%C3%A9", "?" + "x" * 3000,
    )),
    f"{OBJECTS.format('main')}/ls?amount=2", f"{OBJECTS.format('main')}?path=a%2Fb", f"{REPOSITORY}/branches",
    f"{REPOSITORY}/branches/main", f"{REPOSITORY}/branches/no", REPOSITORY, "/api/v1/repositories/nothing",
    "/api/v1/repositories", f"{REPOSITORY}/tags", f"{REPOSITORY}/commits/no", f"{REPOSITORY}/refs/main/commits",
    "/api/v1/nowhere", "/api/v1/", "/api/v1", f"{REPOSITORY}//stat", "/api/v1/healthcheck",
]  # fmt: skip


@pytest.fixture(params=["folder", pytest.param("database", marks=needs_psycopg)])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
    """The settings for the place of repositories: in a database, entries are looked up together."""
    if request.param == "folder":
        return {}
    request.getfixturevalue("postgres_server")
    return {"versions_space": new_location(), "versions_objects": str(tmp_path / "bytes")}


@pytest.fixture
def both(serve: Callable[..., Served], where: dict[str, str]) -> Callable[..., tuple[Any, Any]]:
    """Send a request both ways; the two answers, without what is of another second."""
    node = serve(server_tokens=TOKENS, **where)
    fill(node)

    def ask(method: str, path: str, headers: dict[str, str]) -> tuple[Any, Any]:
        found = []
        for waits in (False, True):
            body = b"x" * int(headers["Content-Length"]) if "Content-Length" in headers else None
            with nothing_at_once(node) if waits else nullcontext():
                answer = node.request(method, path, headers=headers, body=body)
            shown = {name: value for name, value in answer.headers.items() if name.lower() != "date"}
            found.append((answer.status, shown, answer.body))
        return found[0], found[1]

    return ask


class _Nowhere:
    """Lookups that find nothing together."""

    async def act(self, _name: object) -> Any:
        raise WouldBlock("not together")


@contextmanager
def nothing_at_once(node: Served) -> Iterator[None]:
    """Have each repository looked up in a thread."""
    repositories, state = node.pond.repositories, node.service.app.state
    lookups, state.lookups = state.lookups, _Nowhere()
    repositories.get_at_once = _would_block  # type: ignore[method-assign]
    try:
        yield
    finally:
        del repositories.get_at_once  # type: ignore[method-assign]
        state.lookups = lookups


def _would_block(_name: str) -> Any:
    raise WouldBlock("not at once")


def fill(node: Served) -> None:
    """A repository with a commit, staged entries, and a deletion."""
    repository = node.pond.repositories.create("flights")
    branch = repository.branch("main")
    for path in ("a/b", "gone", "é"):
        branch.put(path, path.encode(), metadata={"k": path})
    branch.commit("first")
    repository.create_tag("v1", "main")
    branch.put("a/b", b"new")
    branch.delete("gone")


@pytest.mark.parametrize("headers", HEADERS, ids=range(len(HEADERS)))
def test_both_ways_answer_alike(both: Callable[..., tuple[Any, Any]], headers: dict[str, str]) -> None:
    statuses = set()
    for path in PATHS:
        for method in ("GET", "HEAD") if path.startswith(OBJECTS.format("main")) else ("GET",):
            at_once, in_thread = both(method, path, headers)
            assert at_once == in_thread, (method, path)
            statuses.add(at_once[0])
    assert not statuses & {500, 503}
    if headers == HEADERS[0]:
        assert {200, 400, 404} <= statuses
    if headers in HEADERS[1:5]:
        assert statuses == {400, 401, 204, 404}


def test_what_was_written_is_seen_by_the_next_question(serve: Callable[..., Served], where: dict[str, str]) -> None:
    """A state that is remembered ends with the next write, also of another user of the folder or the database."""
    node = serve(**where)
    fill(node)
    branch = node.pond.repository("flights").branch("main")
    stat = f"{OBJECTS.format('main')}/stat?path=new"
    for number in range(5):
        assert node.get(stat).status == 404
        branch.put("new", b"1" * number)
        assert node.get(stat).json()["size_bytes"] == number
        assert node.get(stat.replace("/stat", "")).body == b"1" * number
        branch.commit(f"commit {number}")
        assert node.get(stat.replace("/main/", "/main@/")).json()["size_bytes"] == number
        branch.delete("new")
    node.pond.repositories.delete("flights")
    assert node.get(stat).status == 404
    node.pond.repositories.create("flights")
    assert node.get(f"{OBJECTS.format('main')}/stat?path=a/b").status == 404


def test_bytes_that_are_gone_or_many_are_for_a_thread(serve: Callable[..., Served], where: dict[str, str]) -> None:
    node = serve(**where)
    fill(node)
    branch = node.pond.repository("flights").branch("main")
    large = bytes(range(256)) * 1_000
    entry = branch.put("large", large)
    branch.put("empty", b"")
    get = f"{OBJECTS.format('main')}?path={{}}".format
    for _ in range(2):
        assert node.get(get("large")).body == large
        assert node.get(get("empty")).body == b""
        some = node.get(get("large"), headers={"Range": "bytes=5-9"})
        assert (some.status, some.body) == (206, large[5:10])
    branch.context.data.delete(entry.address, branch.stat("a/b").address, branch.stat("empty").address)
    for path in ("large", "a/b", "empty"):
        assert node.get(get(path)).status == 410


def test_bytes_that_were_cut_are_never_taken_for_the_whole(
    serve: Callable[..., Served], where: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    """An object that somebody truncated: an error, or an answer that is cut and a line that names the object."""
    node = serve(**where)
    repository = node.pond.repositories.create("flights")
    branch = repository.branch("main")
    large = bytes(range(256)) * 12_000
    get = f"{OBJECTS.format('main')}?path={{}}".format
    for path, size, left in (("empty", 5_000, 0), ("small", 5_000, 4_999), ("large", len(large), 2_000_000)):
        address = branch.put(path, large[:size]).address
        branch.context.data.put(address, large[:left])
        with pytest.raises(Corrupt, match=rf"shorter than what was stored\. address={address} bytes={left}"):
            branch.get(path)
        if path == "large":
            with pytest.raises((IncompleteRead, ProtocolError)):
                node.get(get(path))
        else:
            assert node.get(get(path)).status == 500
        with pytest.raises(Corrupt):
            branch.copy(path, "copied", shared=False)
    while "ended early: the object is shorter" not in caplog.text:
        pass
    assert "Traceback" not in caplog.text


def test_a_write_goes_to_the_repository_that_is_there_now(serve: Callable[..., Served]) -> None:
    """The repository that the node remembers is another one, or gone."""
    node = serve()
    where = f"{REPOSITORY}/branches/main/objects?path=a"
    entry = b'{"physical_address": "data/x", "checksum": "x", "size_bytes": 1}'

    def writes() -> list[int]:
        found = node.request("PUT", where, headers={"Content-Type": "application/json"}, body=entry).status
        return [found, node.request("POST", where, headers={"Content-Type": "text/plain"}, body=b"1").status]

    assert writes() == [404, 404]
    for _ in range(2):
        repository = node.pond.repositories.create("flights")
        assert writes() == [201, 201]
        assert repository.ref("main").get("a") == b"1"
        node.pond.repositories.delete("flights")
        assert writes() == [404, 404]


def test_a_proxy_of_this_machine_says_for_whom_it_asks(serve: Callable[..., Served]) -> None:
    node = serve()
    headers = {"Origin": node.url.replace("http:", "https:")}
    assert node.get("/v1/maps", headers=headers).status == 403
    assert node.get("/v1/maps", headers={**headers, "X-Forwarded-Proto": "https"}).status == 200
    assert node.get("/v1/maps", headers={**headers, "X-Forwarded-For": "10.0.0.1"}).status == 403
