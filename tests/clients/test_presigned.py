"""URLs without tokens, links and imports through the public clients, over a folder and over S3."""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import lakefs
import lakefs_sdk
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import urllib3
from lakefs.client import Client
from lakefs.exceptions import ObjectExistsException
from lakefs_sdk.client import LakeFSClient
from lakefs_spec import LakeFSFileSystem

import millpond
from millpond.clock import SystemClock
from millpond.errors import Invalid
from millpond.versions.imports.locations import TableLocation
from tests import s3_server
from tests.clients.conftest import Answer, Server, add_pair_by_command, serving

CLOCK = SystemClock()
FIVE = hashlib.md5(b"five!").hexdigest()


@dataclass(frozen=True)
class Site:
    """A server over one kind of store, and where its repositories and their sources lie."""

    server: Server
    namespaces: str
    sources: str
    folder: Path
    """The folder in which the sources are files."""

    def repository(self, name: str) -> lakefs.Repository:
        """A new repository, by the wrapper."""
        return lakefs.Repository(name, self.wrapper()).create(f"{self.namespaces}{name}")

    def wrapper(self) -> Client:
        """A client of the wrapper."""
        return Client(host=self.server.url, username=self.server.access_key, password=self.server.secret)


@pytest.fixture(scope="module", params=["folder", "s3"])
def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    base = tmp_path_factory.mktemp("site")
    with ExitStack() as opened:
        environment: dict[str, str] = {}
        if request.param == "s3":
            store = opened.enter_context(s3_server.running(base / "s3"))
            bucket = store.make_bucket("bucket")
            environment = {**store.environment, "MILLPOND_VERSIONS_NAMESPACES": f"{bucket}/"}
            namespaces, sources, folder = f"{bucket}/", f"{bucket}/sources/", base / "s3/buckets/bucket/sources"
        else:
            folder = base / "sources"
            namespaces, sources = "local://", f"local://{folder}/"
        environment["MILLPOND_VERSIONS_SOURCES"] = sources
        folder.mkdir(parents=True)
        pair = add_pair_by_command(base / "pond", "esti", "--admin", "*")
        url = opened.enter_context(serving(base / "pond", environment=environment))
        pool = opened.enter_context(urllib3.PoolManager())
        yield Site(Server(url, base / "pond", *pair, pool, None), namespaces, sources, folder)  # type: ignore[arg-type]


@pytest.fixture
def repository(site: Site, request: pytest.FixtureRequest) -> lakefs.Repository:
    name = re.sub("[^a-z0-9]+", "-", request.node.name.lower())[:40]
    return site.repository(f"{name}-{CLOCK.random_id()}")


def call(site: Site, method: str, url: str, body: bytes | None = None, **headers: str) -> Answer:
    found = site.server.pool.request(method, url, body=body, headers=headers, redirect=False, retries=False)
    return Answer(found.status, found.headers, found.data)


# -- the wrapper --------------------------------------------------------------------------------------


@pytest.mark.sample(1)
@pytest.mark.parametrize("pre_sign", [True, False])
def test_the_wrapper_reads_and_writes(repository: lakefs.Repository, pre_sign: bool) -> None:
    branch = repository.branch("main")
    made = branch.object("a/b.txt").upload(b"hello world\nline two\n", pre_sign=pre_sign, content_type="text/plain")
    stat = made.stat(pre_sign=False)
    assert (stat.size_bytes, stat.content_type) == (21, "text/plain")
    assert stat.physical_address.startswith(repository.properties.storage_namespace)
    with made.reader(mode="r", pre_sign=pre_sign) as reader:
        assert (reader.readline(), reader.read(), reader.read()) == ("hello world\n", "line two\n", "")
    with made.reader(mode="rb", pre_sign=pre_sign) as reader:
        reader.seek(6)
        assert (reader.read(5), reader.tell(), reader.read(100)) == (b"world", 11, b"\nline two\n")
    with pytest.raises(ObjectExistsException):
        branch.object("a/b.txt").upload(b"again", mode="xb", pre_sign=pre_sign)
    with branch.object("big").writer(mode="wb", pre_sign=pre_sign) as writer:
        for number in range(20):
            writer.write(bytes([number]) * 100_000)
    assert branch.object("big").stat().size_bytes == 2_000_000
    with branch.object("big").reader(mode="rb", pre_sign=pre_sign) as reader:
        reader.seek(1_999_999)
        assert reader.read() == bytes([19])
    empty = branch.object("empty").upload(b"", pre_sign=pre_sign)
    with empty.reader(pre_sign=pre_sign) as reader:
        assert reader.read() == b""
    assert [found.path for found in branch.objects()] == ["a/b.txt", "big", "empty"]
    branch.delete_objects(["big", "empty"])
    branch.commit("all")
    assert branch.object("a/b.txt").exists()
    assert not branch.object("big").exists()


def test_pandas_reads_a_ref(site: Site, repository: lakefs.Repository) -> None:
    options = {"host": site.server.url, "username": site.server.access_key, "password": site.server.secret}
    frame = pd.DataFrame({"flight": [1, 2, 3], "tail": ["a", "b", "c"]})
    where = f"lakefs://{repository.id}/main/2013/flights.parquet"
    frame.to_parquet(where, storage_options=options)
    repository.branch("main").commit("flights")
    read = pd.read_parquet(where.replace("/main/", "/main@/"), storage_options=options)
    pd.testing.assert_frame_equal(read, frame)
    files = LakeFSFileSystem(**options)
    base = f"{repository.id}/main"
    files.pipe_file(f"{base}/2013/x/y.txt", b"five!")
    assert (files.info(f"{base}/2013/x/y.txt")["size"], files.cat_file(f"{base}/2013/x/y.txt")) == (5, b"five!")
    assert [Path(found).name for found in files.ls(f"{base}/2013", detail=False)] == ["flights.parquet", "x"]
    assert files.exists(f"{base}/2013") and not files.exists(f"{base}/nope")
    files.cp_file(f"{base}/2013/x/y.txt", f"{base}/copy.txt")
    files.rm(f"{base}/2013", recursive=True)
    assert files.ls(f"{base}/", detail=False) == [f"{base}/copy.txt"]
    repository.branch("main").commit("copied")
    with files.transaction(repository.id, "main") as change:
        files.pipe_file(f"{repository.id}/{change.branch.id}/in.txt", b"1")
        change.commit("in a transaction")
    assert files.cat_file(f"{repository.id}/main/in.txt") == b"1"


# -- signed URLs --------------------------------------------------------------------------------------


def test_a_signed_url_opens_one_object_by_one_method(site: Site, repository: lakefs.Repository) -> None:
    branch = repository.branch("main")
    branch.object("dir/a b.csv").upload(b"five!", content_type="text/csv")
    branch.object("other").upload(b"other")
    stat = branch.object("dir/a b.csv").stat(pre_sign=True)
    url = stat.physical_address
    assert stat.physical_address_expiry is not None
    found = call(site, "GET", url)
    assert (found.status, found.body) == (200, b"five!")
    part = call(site, "GET", url, Range="bytes=1-2")
    assert (part.status, part.body, part.headers["content-range"]) == (206, b"iv", "bytes 1-2/5")
    assert call(site, "PUT", url, b"evil!").status == 403
    assert call(site, "DELETE", url).status in (403, 404)
    listed = lakefs_sdk.ObjectsApi(branch._client.sdk_client._api).list_objects(repository.id, "main", presign=True)
    other = next(found.physical_address for found in listed.results if found.path == "other")
    assert call(site, "GET", other).body == b"other"
    if "/signed/" in url:
        assert (found.headers["content-type"], found.headers["etag"]) == ("text/csv", f'"{FIVE}"')
        assert "/a%20b.csv?" in url
        assert call(site, "HEAD", url).headers["content-length"] == "5"
        stolen = re.search("address=[^&]*", other)
        assert stolen is not None
        assert call(site, "GET", re.sub("address=[^&]*", stolen[0], url)).status == 403
        renamed = call(site, "GET", url.replace("/a%20b.csv?", "/other?"))  # a label: the address says which object
        assert (renamed.status, renamed.body, renamed.headers["content-type"]) == (200, b"five!", "text/csv")
        for changed in (re.sub(r"expires=\d", "expires=9", url), url[:-1], url.replace(repository.id, "nope")):
            assert call(site, "GET", changed).status == 403
    answer = site.server.call("GET", f"/repositories/{repository.id}/refs/main/objects?path=other&presign=true")
    assert (answer.status, answer.body) == (302, b"")
    assert call(site, "GET", answer.headers["location"]).body == b"other"


def test_links_hold_at_their_own_path(site: Site, repository: lakefs.Repository) -> None:
    base = f"/repositories/{repository.id}/branches/main/staging/backing?path="
    place = site.server.call("GET", f"{base}linked&presign=true").json()
    assert place["physical_address"].startswith(f"{repository.properties.storage_namespace}/data/")
    put = call(site, "PUT", place["presigned_url"], b"five!")
    assert (put.status, put.headers["etag"].strip('"')) == (200, FIVE)
    assert call(site, "PUT", place["presigned_url"], b"five!").status == 200, "a lost answer: it is sent again"
    assert call(site, "GET", place["presigned_url"]).status == 403
    wanted = {"staging": place, "checksum": f'"{FIVE}"', "size_bytes": 5, "content_type": "text/plain"}
    linked = site.server.call("PUT", f"{base}linked", {**wanted, "user_metadata": {"a": "b"}})
    assert linked.status == 200
    stats = linked.json()
    assert (stats["checksum"], stats["metadata"], stats["physical_address"]) == (
        FIVE, {"a": "b"}, place["physical_address"],
    )  # fmt: skip
    assert site.server.call("PUT", f"{base}linked", wanted).status == 200
    again = site.server.call("PUT", f"{base}linked", wanted, headers={"If-None-Match": "*"})
    assert again.status == 412
    elsewhere = site.server.call("PUT", f"{base}elsewhere", wanted)
    assert (elsewhere.status, elsewhere.json()["message"]) == (400, "invalid address signature: invalid address")
    forged = {**wanted, "staging": {"physical_address": f"{repository.properties.storage_namespace}/data/x/y"}}
    answer = site.server.call("PUT", f"{base}linked", forged)
    assert (answer.status, answer.json()["message"]) == (400, "address is not signed: link address invalid")
    for outside in ("local:///etc/passwd", "file:///etc/passwd", "http://x/y", "../x"):
        answer = site.server.call("PUT", f"{base}linked", {**wanted, "staging": {"physical_address": outside}})
        assert answer.status in (400, 403), outside
    assert repository.branch("main").object("linked").reader(mode="rb").read() == b"five!"
    if "/signed/" in place["presigned_url"]:
        assert call(site, "PUT", place["presigned_url"], b"other").status == 409, "bytes never change"
    empty = site.server.call("GET", f"{base}never").json()
    assert "presigned_url" not in empty
    site.server.call("PUT", f"{base}never", {**wanted, "staging": empty})
    gone = site.server.call("GET", f"/repositories/{repository.id}/refs/main/objects?path=never")
    assert (gone.status, gone.json()["message"], gone.headers["etag"]) == (410, "No data", f'"{FIVE}"')


def test_an_upload_in_parts(site: Site, repository: lakefs.Repository) -> None:
    base = f"/repositories/{repository.id}/branches/main/staging/pmpu"
    made = site.server.call("POST", f"{base}?path=big&parts=2")
    assert made.status == 201
    upload = made.json()
    address, where = {"physical_address": upload["physical_address"]}, f"{base}/{upload['upload_id']}"
    parts, bodies = [], (b"a" * 700_000, b"b" * 5, b"five!")
    site.server.call("POST", f"/repositories/{repository.id}/branches/main/objects?path=source", b"five!")
    for number, (url, body) in enumerate(zip(upload["presigned_urls"], bodies, strict=False), 1):
        call(site, "PUT", url, b"comes again")
        put = call(site, "PUT", url, body)
        parts.append({"part_number": number, "etag": put.headers["etag"]})
    third = site.server.call("PUT", f"{where}/parts/3?path=big", address).json()
    assert call(site, "PUT", third["presigned_url"], b"wrong").status == 200
    source = {"repository": repository.id, "ref": "main", "path": "source"}
    copied = site.server.call("PUT", f"{where}/parts/3/copy?path=big", {**address, "copy_source": source})
    assert copied.status == 204
    parts.append({"part_number": 3, "etag": copied.headers["etag"]})
    wrong = site.server.call("PUT", f"{where}?path=other", {**address, "parts": parts})
    assert wrong.status == 400
    stats = site.server.call("PUT", f"{where}?path=big", {**address, "parts": parts, "content_type": "x/y"}).json()
    digests = b"".join(hashlib.md5(body).digest() for body in bodies)
    assert (stats["checksum"], stats["size_bytes"], stats["content_type"], stats["physical_address"]) == (
        f"{hashlib.md5(digests).hexdigest()}-3", 700_010, "x/y", upload["physical_address"],
    )  # fmt: skip
    assert repository.branch("main").object("big").reader(mode="rb").read() == b"".join(bodies)
    assert site.server.call("DELETE", f"{where}?path=big", address).status == 404
    other = site.server.call("POST", f"{base}?path=big").json()
    dropped = {"physical_address": other["physical_address"]}
    assert site.server.call("DELETE", f"{base}/{other['upload_id']}?path=big", dropped).status == 204


def test_an_upload_in_parts_has_the_urls_that_it_asks_for(site: Site, repository: lakefs.Repository) -> None:
    base = f"/repositories/{repository.id}/branches/main/staging/pmpu"
    begun = {count: site.server.call("POST", f"{base}?path=big&parts={count}") for count in (0, 1, 10_000, 10_001, -1)}
    assert [answer.status for answer in begun.values()] == [201, 201, 201, 400, 400]
    assert "presigned_urls" not in begun[0].json()
    assert len(set(begun[10_000].json()["presigned_urls"])) == 10_000


def test_an_upload_in_parts_is_ended_by_its_address_and_parts(site: Site, repository: lakefs.Repository) -> None:
    base = f"/repositories/{repository.id}/branches/main/staging/pmpu/none?path=big"
    part = {"part_number": 1, "etag": "x"}
    assert site.server.call("DELETE", base, {"physical_address": ""}).status == 400
    assert site.server.call("PUT", base, {"physical_address": "", "parts": [part]}).status == 400
    assert site.server.call("PUT", base, {"physical_address": "data/1", "parts": []}).status == 400
    assert site.server.call("PUT", base, {"physical_address": "data/1", "parts": [part]}).status == 404


@pytest.mark.parametrize(
    ("range_", "status", "bytes_"),
    [
        ("bytes=1-3", 204, b"ive"), ("bytes=3-", 204, b"e!"), ("bytes=-2", 204, b"e!"), (None, 204, b"five!"),
        ("bytes=9-", 416, b""), ("lines=1-2", 400, b""),
    ],
)  # fmt: skip
def test_a_part_is_copied_from_a_range(
    site: Site, repository: lakefs.Repository, range_: str | None, status: int, bytes_: bytes
) -> None:
    base = f"/repositories/{repository.id}/branches/main/staging/pmpu"
    site.server.call("POST", f"/repositories/{repository.id}/branches/main/objects?path=source", b"five!")
    upload = site.server.call("POST", f"{base}?path=copied").json()
    address, where = {"physical_address": upload["physical_address"]}, f"{base}/{upload['upload_id']}"
    source = {"repository": repository.id, "ref": "main", "path": "source", "range": range_}
    copied = site.server.call("PUT", f"{where}/parts/1/copy?path=copied", {**address, "copy_source": source})
    assert copied.status == status, copied.body
    if status == 204:
        parts = [{"part_number": 1, "etag": copied.headers["etag"]}]
        assert site.server.call("PUT", f"{where}?path=copied", {**address, "parts": parts}).status == 200
        assert repository.branch("main").object("copied").reader(mode="rb").read() == bytes_


# -- imports ------------------------------------------------------------------------------------------


def test_a_linked_object_looks_as_in_lakefs(site: Site, repository: lakefs.Repository) -> None:
    """Its address is one of `lakectl`'s golden files, and without a type it has the default."""
    made = repository.branch("main").object("a").upload(b"1", pre_sign=True, content_type="")
    stat, own = made.stat(pre_sign=False), repository.properties.storage_namespace.rstrip("/")
    assert re.fullmatch("data/[0-9a-v]{20}/[0-9a-v]{20},.+", stat.physical_address.removeprefix(f"{own}/"))
    assert stat.content_type == "application/octet-stream"
    assert made.reader(mode="rb", pre_sign=True).read() == b"1"


def test_what_is_a_repositorys_own_is_not_imported(site: Site, repository: lakefs.Repository) -> None:
    branch, own = repository.branch("main"), repository.properties.storage_namespace.rstrip("/")
    for place in (own, f"{own}/data/x", own[:-2]):
        with pytest.raises(lakefs.exceptions.BadRequestException, match="invalid import source"):
            branch.import_data("own").prefix(place, "in/").start()


def test_imports_through_the_wrapper(site: Site, repository: lakefs.Repository) -> None:
    tag = repository.id
    for name in ("d/one.txt", "d/sub/two words.txt", "single"):
        (site.folder / tag / name).parent.mkdir(parents=True, exist_ok=True)
        (site.folder / tag / name).write_bytes(b"five!")
    branch, source = repository.branch("main"), f"{site.sources}{tag}/"
    status = (
        branch.import_data("take in", {"k": "v"}).prefix(f"{source}d/", "in/").object(f"{source}single", "one").run(
            time_step()
        )
    )  # fmt: skip
    assert (status.completed, status.ingested_objects) == (True, 3)
    assert status.commit is not None
    assert (status.commit.message, status.commit.metadata) == ("take in", {"k": "v"})
    assert status.commit.id == branch.get_commit().id
    assert [found.path for found in branch.objects()] == ["in/one.txt", "in/sub/two words.txt", "one"]
    written = int((site.folder / tag / "single").stat().st_mtime)
    one = branch.object("one").stat(pre_sign=True)
    modified = parsedate_to_datetime(call(site, "GET", one.physical_address).headers["last-modified"])
    assert modified.timestamp() == one.mtime
    if site.sources.startswith("local:"):
        assert one.mtime == written
    made = branch.object("in/sub/two words.txt")
    assert made.stat(pre_sign=False).physical_address == f"{source}d/sub/two words.txt"
    for pre_sign in (True, False):
        assert made.reader(mode="rb", pre_sign=pre_sign).read() == b"five!"
    empty = branch.import_data("nothing").run(time_step())
    assert (empty.completed, empty.ingested_objects) == (True, 0)
    job = branch.import_data("again").prefix(f"{source}d/", "in/")
    job.run(time_step())
    with pytest.raises(lakefs.exceptions.ConflictException):
        job.cancel()


def test_a_table_that_is_too_much_for_its_reader_fails_its_import(site: Site, repository: lakefs.Repository) -> None:
    folder = site.folder / repository.id
    folder.mkdir(parents=True)
    names = [f"{number:04d}" for number in range(600)]
    large = pa.DictionaryArray.from_arrays(pa.array(np.zeros(600, np.int32)), pa.array(["x" * (1 << 20)]))
    for name, columns in (("good", {"path": names}), ("bomb", {"path": names, "metadata": large})):
        pq.write_table(pa.table(columns), folder / name, store_schema=False)
    (folder / "text").write_text("no table")
    keys = {"client_token": f"{site.server.access_key}:{site.server.secret}"}
    with millpond.open(site.server.url, **keys) as pond:
        imports = pond.repository(repository.id).branch("main").imports

        def place(name: str) -> TableLocation:
            return TableLocation(f"{site.sources}{repository.id}/{name}", f"{name}/")

        for name, kind, said in (("text", "import_table", "not a table"), ("bomb", "import_failed", "more memory")):
            with pytest.raises(Invalid, match=said) as refused:
                imports.commit([place("good"), place(name)])
            assert refused.value.kind == kind and place(name).address in str(refused.value)
        assert imports.commit([place("good")]).entries == len(names)
    assert [found.path for found in repository.branch("main").objects(max_amount=2)] == ["good/0000", "good/0001"]


ODD = (
    "/lead//double/", "//", "a/./b", "a/../b", "..", ".", "a//b", "a/b/", "%41", "a?b=c&d#e+f g", "é", "e\u0301",
    "日本/🦀", "\x01", "a\nb", "~[]{}\\", '"', "-", " lead and tail ",
)  # fmt: skip


def test_paths_of_any_form_are_put_listed_compared_and_read(site: Site, repository: lakefs.Repository) -> None:
    base = f"/repositories/{repository.id}"
    for path in ODD:
        where = f"{base}/branches/main/objects?path={quote(path, safe='')}"
        assert site.server.call("POST", where, path.encode()).json()["path"] == path
    listed = site.server.call("GET", f"{base}/refs/main/objects/ls?amount=100").json()["results"]
    assert [found["path"] for found in listed] == sorted(ODD, key=str.encode)
    below = site.server.call("GET", f"{base}/refs/main/objects/ls?prefix=%2F&delimiter=%2F").json()["results"]
    assert [found["path"] for found in below] == ["//", "/lead/"]
    differences = site.server.call("GET", f"{base}/branches/main/diff?amount=100").json()["results"]
    assert [(found["path"], found["type"]) for found in differences] == [
        (path, "added") for path in sorted(ODD, key=str.encode)
    ]
    repository.branch("main").commit("odd")
    for path in ODD:
        where = f"{base}/refs/main@/objects?path={quote(path, safe='')}"
        assert site.server.call("GET", where).body == path.encode()
        signed = site.server.call("GET", f"{where}&presign=true")
        assert call(site, "GET", signed.headers["location"]).body == path.encode()


def test_names_of_any_form_are_imported_or_named(site: Site, repository: lakefs.Repository) -> None:
    tag = repository.id
    names = sorted(("%41", "a?b=c&d#e+f g", "é", "e\u0301", "日本/🦀", "~[]{}", "x y"), key=str.encode)
    for name in names:
        (site.folder / tag / name).parent.mkdir(parents=True, exist_ok=True)
        (site.folder / tag / name).write_bytes(b"five!")
    branch = repository.branch("main")
    status = branch.import_data("odd").prefix(f"{site.sources}{tag}/", "in//").run(time_step())
    assert (status.completed, status.ingested_objects) == (True, len(names))
    assert [found.path for found in branch.objects()] == [f"in//{name}" for name in names]
    for name in names:
        assert branch.object(f"in//{name}").reader(mode="rb", pre_sign=False).read() == b"five!"
    where = f"/repositories/{tag}/branches/main/import"
    for name in ("x y/", "/x y", "a//b", "./x y", "a/../x y"):
        wanted = {"type": "object", "path": f"{site.sources}{tag}/{name}", "destination": "one"}
        answer = site.server.call("POST", where, {"paths": [wanted], "commit": {"message": "i"}})
        assert answer.status in (400, 404), (name, answer.status, answer.body)


def time_step() -> Any:
    from datetime import timedelta

    return timedelta(milliseconds=30)


def test_an_import_that_cannot_be_is_refused_at_once(site: Site, repository: lakefs.Repository) -> None:
    where = f"/repositories/{repository.id}/branches/main/import"

    def start(path: str, kind: str = "common_prefix") -> Answer:
        wanted = {"paths": [{"type": kind, "path": path, "destination": "i/"}], "commit": {"message": "i"}}
        return site.server.call("POST", where, wanted)

    assert start("nope://x").status == 400
    assert start("local:///etc/").status == 403
    assert start(f"{site.sources}../x/").status == 400
    assert start(f"{site.sources}absent", "object").status == 404
    assert start(site.sources, "folder").status == 400
    assert site.server.call("GET", f"{where}?id=nope").json() == {"message": "not found"}
    branch = repository.branch("main")
    branch.object("staged").upload(b"")
    assert start(site.sources).json()["message"] == "uncommitted changes (dirty branch)"


def test_a_table_is_imported(site: Site, repository: lakefs.Repository) -> None:
    names = [f"{number:05}" for number in range(20_000)]
    table = pa.table({"path": names, "address": [f"{site.sources}t/{name}" for name in names]})
    (site.folder / repository.id).mkdir()
    pq.write_table(table, site.folder / repository.id / "entries.parquet")
    where = f"/repositories/{repository.id}/branches/main/import"
    source = {"type": "table", "path": f"{site.sources}{repository.id}/entries.parquet", "destination": "t/"}
    id_ = site.server.call("POST", where, {"paths": [source]}).json()["id"]
    status: dict[str, Any] = {}
    pause = threading.Event()
    until = CLOCK.monotonic() + 60
    while not status.get("completed") and CLOCK.monotonic() < until:
        status = site.server.call("GET", f"{where}?id={id_}").json()
        assert "error" not in status
        pause.wait(0.02)
    assert (status["ingested_objects"], "commit" in status) == (20_000, False)
    listed = site.server.call("GET", f"/repositories/{repository.id}/refs/main/objects/ls?prefix=t/&amount=1").json()
    assert listed["results"][0]["physical_address"] == f"{site.sources}t/00000"


def test_a_folder_of_odd_names_is_imported(site: Site, repository: lakefs.Repository) -> None:
    names = ["a b", "ü", "50%", "a+b", "q?", "x#y", "~", "(1)", "a&b=c"]
    for name in names:
        (site.folder / repository.id).mkdir(exist_ok=True)
        (site.folder / repository.id / name).write_text(name)
    branch = repository.branch("main")
    branch.import_data("odd").prefix(f"{site.sources}{repository.id}/", "").run(time_step())
    found = {made.path: branch.object(made.path).reader(mode="r").read() for made in branch.objects()}
    assert found == {name: name for name in names}
    for name in names:
        url = branch.object(name).stat(pre_sign=True).physical_address
        assert call(site, "GET", url).body.decode() == name, quote(name)


def test_the_sdk_has_what_it_needs(site: Site, repository: lakefs.Repository) -> None:
    sdk: LakeFSClient = site.server.client()
    config = sdk.config_api.get_config().storage_config
    assert config is not None
    assert config.pre_sign_support and config.pre_sign_multipart_upload and config.import_support
    assert re.fullmatch(config.import_validity_regex, f"{site.sources}x") or re.match(
        config.import_validity_regex, site.sources
    )
