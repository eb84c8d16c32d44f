"""Objects through `lakefs_sdk` and plain requests: bytes, what is known of them, listings."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any
from urllib.parse import quote

import lakefs_sdk
import pyarrow as pa
import pytest
from lakefs_sdk.client import LakeFSClient

from tests.clients.conftest import Answer, Server, basic

HELLO = hashlib.md5(b"hello").hexdigest()


@pytest.fixture
def put(server: Server, repository: str) -> Callable[..., Answer]:
    def put(path: str, body: bytes = b"hello", *, branch: str = "main", **headers: str) -> Answer:
        where = f"/repositories/{repository}/branches/{branch}/objects?path={quote(path, safe='')}"
        sent = {"Content-Type": "application/octet-stream", **{k.replace("_", "-"): v for k, v in headers.items()}}
        return server.call("POST", where, body, headers=sent)

    return put


@pytest.fixture
def get(server: Server, repository: str) -> Callable[..., Answer]:
    def get(path: str, method: str = "GET", **headers: str) -> Answer:
        where = f"/repositories/{repository}/refs/main/objects?path={quote(path, safe='')}"
        return server.call(method, where, headers={k.replace("_", "-"): v for k, v in headers.items()})

    return get


def message(answer: Answer) -> tuple[int, str]:
    assert answer.headers["content-type"] == "application/json"
    return answer.status, answer.json()["message"]


# -- uploads ------------------------------------------------------------------------------------------


def test_bytes_are_uploaded_and_read(put: Callable[..., Answer], get: Callable[..., Answer]) -> None:
    made = put("a/one.txt", x_lakefs_meta_Colour="blue")
    assert made.status == 201
    stats = made.json()
    assert {name: stats[name] for name in ("checksum", "content_type", "path", "path_type", "size_bytes")} == {
        "checksum": HELLO, "content_type": "application/octet-stream", "path": "a/one.txt", "path_type": "object",
        "size_bytes": 5,
    }  # fmt: skip
    assert stats["metadata"] == {"colour": "blue"}
    assert stats["physical_address"].startswith("local://repo-")
    found = get("a/one.txt")
    assert (found.status, found.body) == (200, b"hello")
    headers = ("content-type", "etag", "content-length", "x-content-type-options", "content-disposition")
    assert [found.headers[name] for name in headers] == [
        "application/octet-stream", f'"{HELLO}"', "5", "nosniff", "attachment",
    ]  # fmt: skip
    assert "accept-ranges" not in found.headers
    head = get("a/one.txt", "HEAD")
    assert (head.status, head.headers["accept-ranges"], head.headers["content-length"]) == (200, "bytes", "5")
    assert "content-disposition" not in head.headers
    assert found.headers["last-modified"] == head.headers["last-modified"]
    assert get("nope", "HEAD").status == 404
    assert message(get("nope")) == (404, "not found")
    for path in ("/lead//double/", "ö dd/%25?&=+.txt", "a"):
        assert put(path, b"z").json()["path"] == path
        assert get(path).body == b"z"


@pytest.mark.parametrize("size", [0, 1, 300_000, 5_000_000])
def test_bodies_of_any_size_come_in_chunks(server: Server, repository: str, size: int) -> None:
    body = bytes(range(256)) * (size // 256 + 1)
    pieces = [body[:size][at : at + 70_001] for at in range(0, size, 70_001)]
    where = f"{server.url}/api/v1/repositories/{repository}/branches/main/objects?path=big"
    headers = {"Authorization": basic(server.access_key, server.secret), "Content-Type": "application/octet-stream"}
    answer = server.pool.request("POST", where, body=iter(pieces), headers=headers, chunked=True)
    assert answer.status == 201, answer.data
    stats = answer.json()
    assert (stats["size_bytes"], stats["checksum"]) == (size, hashlib.md5(body[:size]).hexdigest())
    found = server.call("GET", f"/repositories/{repository}/refs/main/objects?path=big")
    assert found.body == body[:size]


def form(name: str, body: bytes, content_type: str = "text/plain") -> tuple[bytes, str]:
    head = f'--B\r\nContent-Disposition: form-data; name="{name}"; filename="f"\r\nContent-Type: {content_type}\r\n\r\n'
    return head.encode() + body + b"\r\n--B--\r\n", "multipart/form-data; boundary=B"


def test_a_form_is_uploaded_by_its_field(put: Callable[..., Answer], get: Callable[..., Answer]) -> None:
    large = b"--B\r\n" + bytes(range(256)) * 3000 + b"\r\n--"
    for number, bytes_ in enumerate((b"three", b"", large.replace(b"\r\n--B", b"..."))):
        body, kind = form("content", bytes_)
        made = put(f"form/{number}", body, Content_Type=kind)
        assert (made.status, made.json()["content_type"]) == (201, "text/plain"), made.body
        assert get(f"form/{number}").body == bytes_
    first, kind = form("other", b"skipped")
    both = first.removesuffix(b"--B--\r\n") + form("content", b"taken")[0]
    assert put("form/both", both, Content_Type=kind).status == 201
    assert get("form/both").body == b"taken"
    for wrong in (first, body[:-20], body[:30], b"", b"nothing"):
        assert put("form/wrong", wrong, Content_Type=kind).status == 400
    assert put("form/wrong", body, Content_Type="multipart/form-data").status == 400
    assert get("form/wrong").status == 404


def test_an_upload_is_conditional(put: Callable[..., Answer], get: Callable[..., Answer]) -> None:
    assert put("new", If_None_Match="*").status == 201
    assert message(put("new", b"other", If_None_Match="*")) == (412, "path already exists")
    assert message(put("new", b"other", If_None_Match='"abc"')) == (501, "Not Implemented")
    assert put("new", b"other", If_Match='"abc"').status == 412
    assert get("new").body == b"hello"
    assert put("new", b"other", If_Match=f'"{HELLO}"').status == 201
    assert get("new").body == b"other"


def test_an_upload_that_is_refused_says_why(server: Server, repository: str, put: Callable[..., Answer]) -> None:
    assert message(put("x", branch="nope")) == (404, "branch 'nope' not found")
    assert message(put("x", branch="main~0")) == (400, "argument name: branch id: invalid value: validation error")
    assert message(put(""))[1] == 'parameter "path" in query has an error: empty value is not allowed'
    where = f"/repositories/{repository}/branches/main/objects"
    wanted = 'parameter "path" in query has an error: value is required but missing'
    assert message(server.call("POST", where, b"x")) == (400, wanted)
    assert put("x" * 1025).status == 400
    assert server.call("POST", "/repositories/absent/branches/main/objects?path=x", b"x").status == 404
    server.call("PUT", f"/repositories/{repository}/settings/branch_protection", [{"pattern": "main"}])
    assert message(put("x")) == (403, "cannot write to protected branch")


# -- reading ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("header", "status", "body", "content_range"),
    [
        ("bytes=1-2", 206, b"el", "bytes 1-2/5"), ("bytes=3-", 206, b"lo", "bytes 3-4/5"),
        ("bytes=-2", 206, b"lo", "bytes 3-4/5"), ("bytes=4-99", 206, b"o", "bytes 4-4/5"),
        ("bytes=9-10", 416, None, "bytes */5"), ("bytes=0-1,3-4", 416, None, None), ("lines=1-2", 400, None, None),
        ("bytes=0-4", 206, b"hello", "bytes 0-4/5"), ("bytes=-99", 206, b"hello", "bytes 0-4/5"),
    ],
)  # fmt: skip
def test_ranges(
    put: Callable[..., Answer], get: Callable[..., Answer], header: str, status: int, body: bytes | None,
    content_range: str | None,
) -> None:  # fmt: skip
    put("r")
    found = get("r", Range=header)
    assert (found.status, found.headers.get("content-range")) == (status, content_range)
    if body is not None:
        assert (found.body, found.headers["content-length"]) == (body, str(len(body)))
    elif status == 416:
        assert message(found) == (416, "Requested Range Not Satisfiable")
    head = get("r", "HEAD", Range=header)
    assert (head.status, head.headers.get("content-range")) == (status, content_range)


def test_an_empty_object_has_no_range(put: Callable[..., Answer], get: Callable[..., Answer]) -> None:
    put("empty", b"")
    assert (get("empty").status, get("empty").body) == (200, b"")
    found = get("empty", Range="bytes=0-10")
    assert (found.status, found.headers["content-range"]) == (416, "bytes */0")


def test_what_a_path_holds_is_kept_by_no_cache_on_the_way(
    put: Callable[..., Answer], get: Callable[..., Answer]
) -> None:
    put("kept")
    for method in ("GET", "HEAD"):
        assert get("kept", method).headers["cache-control"] == "no-store, must-revalidate"


def test_what_is_cached_is_not_sent_again(put: Callable[..., Answer], get: Callable[..., Answer]) -> None:
    put("cached")
    assert (get("cached", If_None_Match=f'"{HELLO}"').status, get("cached", If_None_Match='"00"').status) == (304, 200)
    assert get("cached", If_None_Match=f'"00", W/"{HELLO}"').status == 304
    for method in ("GET", "HEAD"):
        request = partial(get, "cached", method=method)
        assert request(If_None_Match=f'"{HELLO}"').status == 304
        assert (request(If_Match='"00"').status, request(If_Match=f'"{HELLO}"').status) == (412, 200)
        assert request(If_Range=f'"{HELLO}"', Range="bytes=3-").status == 206
        whole = request(If_Range='"00"', Range="bytes=3-")
        assert (whole.status, whole.headers["content-length"]) == (200, "5"), "the rest of another object is no rest"


def test_an_object_of_any_type_has_a_signed_url(
    server: Server, repository: str, put: Callable[..., Answer], get: Callable[..., Answer]
) -> None:
    put("odd", X_Millpond_Entry='{"content_type": "text/csv\\nx"}')
    listed = server.call("GET", f"/repositories/{repository}/refs/main/objects/ls?presign=true").json()
    (found,) = listed["results"]
    assert found["content_type"] == "text/csv\nx"
    answer = server.pool.request("GET", found["physical_address"])
    assert (answer.data, answer.headers["content-type"]) == (get("odd").body, "application/octet-stream")


def test_only_safe_types_are_shown_where_they_are(put: Callable[..., Answer], get: Callable[..., Answer]) -> None:
    for kind, shown in (("application/json", "inline"), ("text/html", "attachment"), ("image/svg+xml", "attachment")):
        put("t", b"{}", Content_Type=kind)
        found = get("t")
        assert (found.headers["content-type"], found.headers["content-disposition"]) == (kind, shown)


def test_statistics_and_metadata(
    sdk: LakeFSClient, server: Server, repository: str, put: Callable[..., Answer]
) -> None:
    put("a/one", x_lakefs_meta_k="v")
    stat = sdk.objects_api.stat_object(repository, "main", "a/one")
    assert (stat.size_bytes, stat.checksum, stat.metadata) == (5, HELLO, {"k": "v"})
    assert sdk.objects_api.stat_object(repository, "main", "a/one", user_metadata=False).metadata == {}
    where = f"/repositories/{repository}/branches/main/objects/stat/user_metadata?path="
    assert server.call("PUT", where + "a/one", {"set": {"z": "1", "a": "2"}}).status == 204
    assert sdk.objects_api.stat_object(repository, "main", "a/one").metadata == {"z": "1", "a": "2"}
    assert message(server.call("PUT", where + "nope", {"set": {}})) == (404, "not found")
    for ref, path in (("main", "a/"), ("main@", "a/one"), ("nope", "a/one")):
        with pytest.raises(lakefs_sdk.exceptions.NotFoundException):
            sdk.objects_api.stat_object(repository, ref, path)


def test_what_lakectl_says_of_files_is_metadata(server: Server, repository: str, put: Callable[..., Answer]) -> None:
    """`lakectl local` compares files by it, and `fs upload` writes it; names of headers hold no colons."""
    permissions = '{"UID":1000,"GID":1000,"Mode":420}'
    headers = {"X_Lakefs_Internal_Client_Mtime": "1700000000", "x_lakefs_internal_POSIX_permissions": permissions}
    put("file", x_lakefs_meta_k="v", **headers)
    wanted = {"k": "v", "::lakefs::client-mtime": "1700000000", "::lakefs::posix-permissions": permissions}
    where = f"/repositories/{repository}/refs/main/objects"
    assert server.call("GET", f"{where}/stat?path=file").json()["metadata"] == wanted
    assert server.call("GET", f"{where}/ls").json()["results"][0]["metadata"] == wanted


def test_listings(server: Server, sdk: LakeFSClient, repository: str, put: Callable[..., Answer]) -> None:
    for path in ("a", "b", "bar/a", "bar/b", "c", "foo/x"):
        put(path)
    put("meta", x_lakefs_meta_k="v")

    def listed(**options: Any) -> Any:
        return sdk.objects_api.list_objects(repository, "main", **options)

    page = listed(delimiter="/")
    assert [(one.path, one.path_type) for one in page.results] == [
        ("a", "object"), ("b", "object"), ("bar/", "common_prefix"), ("c", "object"), ("foo/", "common_prefix"),
        ("meta", "object"),
    ]  # fmt: skip
    assert (page.pagination.has_more, page.pagination.next_offset, page.pagination.max_per_page) == (False, "", 1000)
    page = listed(delimiter="/", amount=3)
    assert (page.pagination.has_more, page.pagination.next_offset) == (True, "bar/")
    raw = server.call("GET", f"/repositories/{repository}/refs/main/objects/ls?delimiter=/").json()["results"]
    assert raw[2] == {"checksum": "", "mtime": 0, "path": "bar/", "path_type": "common_prefix", "physical_address": ""}
    assert ("metadata" in raw[0], raw[5]["metadata"]) == (False, {"k": "v"})
    plain = server.call("GET", f"/repositories/{repository}/refs/main/objects/ls?user_metadata=false").json()["results"]
    assert all("metadata" not in one for one in plain)
    assert [one.path for one in listed(prefix="b", after="b").results] == ["bar/a", "bar/b"]
    assert server.call("GET", f"/repositories/{repository}/refs/main/objects/ls?amount=5000").status == 400
    assert server.call("GET", f"/repositories/{repository}/refs/nope/objects/ls").status == 404


def test_a_listing_comes_as_columns(server: Server, repository: str, put: Callable[..., Answer]) -> None:
    for path in ("a", "b/1", "b/2"):
        put(path)
    headers = {"Accept": "application/vnd.apache.arrow.stream"}

    def columns(query: str) -> pa.Table:
        found = server.call("GET", f"/repositories/{repository}/refs/main/objects/ls{query}", headers=headers)
        assert found.status == 200, found.body
        return pa.ipc.open_stream(found.body).read_all()

    table = columns("")
    assert table["path"].to_pylist() == ["a", "b/1", "b/2"]
    stat = server.call("GET", f"/repositories/{repository}/refs/main/objects/stat?path=a").json()
    del stat["path_type"]
    assert table.slice(0, 1).to_pylist() == [{**stat, "metadata": ""}]
    assert columns("?prefix=b/&after=b/1")["path"].to_pylist() == ["b/2"]
    assert columns("?prefix=none").num_rows == 0
    missing = server.call("GET", f"/repositories/{repository}/refs/nope/objects/ls", headers=headers)
    assert message(missing) == (404, "not found")


# -- deletions and copies -----------------------------------------------------------------------------


def test_deletions(sdk: LakeFSClient, server: Server, repository: str, put: Callable[..., Answer]) -> None:
    for path in ("a/1", "a/2", "b", "c"):
        put(path)
    sdk.objects_api.delete_object(repository, "main", "b")
    sdk.objects_api.delete_object(repository, "main", "b")
    found = sdk.objects_api.delete_objects(repository, "main", lakefs_sdk.PathList(paths=["c", "never"]))
    assert found.errors == []
    where = f"/repositories/{repository}/branches/main/objects/delete"
    assert server.call("POST", where, {"paths": [], "prefix": "a/"}).json() == {"errors": []}
    assert sdk.objects_api.list_objects(repository, "main").results == []
    wrong = server.call("POST", where, {"paths": ["", "x" * 2000, "fine"]}).json()["errors"]
    assert [(one["path"][:1], one["status_code"]) for one in wrong] == [("x", 400)]
    too_many = server.call("POST", where, {"paths": [f"x{number}" for number in range(1001)]})
    assert message(too_many) == (400, "request size exceeded, max paths is set to 1000")
    assert server.call("POST", where, {}).status == 400
    absent = server.call("POST", where.replace("main", "nope"), {"paths": ["x"]})
    assert message(absent) == (404, "branch not found")
    server.call("PUT", f"/repositories/{repository}/settings/branch_protection", [{"pattern": "*"}])
    refused = server.call("POST", where, {"paths": ["a/1", "d"]})
    said = "cannot write to protected branch"
    errors = [{"path": path, "status_code": 403, "message": said} for path in ("a/1", "d")]
    assert (refused.status, refused.json()) == (200, {"errors": errors})
    assert message(server.call("POST", where, {"paths": ["a/1"], "prefix": "a/"})) == (403, said)


def test_a_copy_is_as_its_source(
    sdk: LakeFSClient, server: Server, repository: str, put: Callable[..., Answer]
) -> None:
    put("a", Content_Type="text/plain", x_lakefs_meta_k="v")
    copied = sdk.objects_api.copy_object(
        repository, "main", "b", lakefs_sdk.ObjectCopyCreation(src_path="a", src_ref="main")
    )
    source = sdk.objects_api.stat_object(repository, "main", "a")
    assert (copied.checksum, copied.content_type, copied.metadata) == (source.checksum, "text/plain", {"k": "v"})
    assert copied.physical_address != source.physical_address
    where = f"/repositories/{repository}/branches/main/objects/copy?dest_path=c"
    assert message(server.call("POST", where, {"src_path": "nope"})) == (404, "not found")
    assert message(server.call("POST", where, {"src_path": "a", "shallow": True})) == (501, "Not Implemented")


def test_entries_staged_at_once_have_outcomes_of_their_own(server: Server, repository: str) -> None:
    for branch in ("release", "dev"):
        server.call("POST", f"/repositories/{repository}/branches", {"name": branch, "source": "main"})
    server.call("PUT", f"/repositories/{repository}/settings/branch_protection", [{"pattern": "release"}])
    branches = ("main", "release", "nope", "dev")

    def stage(number: int) -> int:
        where = f"/repositories/{repository}/branches/{branches[number % 4]}/objects?path=p{number:03}"
        checksum = "x" * (70_000 if number % 10 == 9 else 7)
        wanted = {"physical_address": f"data/0/{number}", "checksum": checksum, "size_bytes": number}
        return server.call("PUT", where, wanted).status

    with ThreadPoolExecutor(16) as threads:
        statuses = list(threads.map(stage, range(200)))
    expected = [400 if number % 10 == 9 else [201, 403, 404, 201][number % 4] for number in range(200)]
    assert statuses == expected
    for branch, rest in (("main", 0), ("dev", 3)):
        found = server.call("GET", f"/repositories/{repository}/refs/{branch}/objects/ls?amount=1000").json()["results"]
        assert [(row["path"], row["size_bytes"]) for row in found] == [
            (f"p{number:03}", number) for number in range(200) if number % 4 == rest and expected[number] == 201
        ]
    where = f"/repositories/{repository}/branches/main/objects?path="
    wanted = {"physical_address": "data/0/1", "checksum": "x", "size_bytes": 1}
    assert server.call("PUT", where + "x" * 1025, wanted).status == 400
    assert server.call("PUT", where + "x", {**wanted, "size_bytes": -1}).status == 400
    assert server.call("PUT", where + "x", {**wanted, "physical_address": "_millpond/repository"}).status == 400
    assert server.call("PUT", where + "x", {**wanted, "checksum": "x" * 70_000}).status == 400


def test_stage_allowed_says_whether_a_write_would_be_taken(server: Server, repository: str) -> None:
    def allowed(branch: str, query: str, pair: tuple[str, str] | None = None) -> tuple[int, str]:
        path = f"/repositories/{repository}/branches/{branch}/objects/stage_allowed?{query}"
        answer = server.call("GET", path, pair=pair)
        return answer.status, "" if answer.status == 204 else answer.json()["message"]

    assert allowed("main", "path=a") == (204, "")
    assert allowed("nope", "path=a") == (404, "branch not found")
    assert allowed("main", "")[0] == 400
    assert allowed("main", f"path={'a' * 1_025}")[0] == 400
    reader = server.add_pair(f"{repository}-reader", read=(f"{repository}/*",))
    assert allowed("main", "path=a", reader)[0] == 401
    rules = [{"pattern": "ma*"}]
    assert server.call("PUT", f"/repositories/{repository}/settings/branch_protection", rules).status == 204
    assert allowed("main", "path=a") == (403, "cannot write to protected branch")
    assert server.branch(repository).diff().results == ()
