"""Repositories of a node from Python: credentials, and connections that are lost on the way."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from urllib.parse import urlsplit

import pyarrow as pa
import pytest

import millpond
from millpond.clock import SystemClock
from millpond.errors import Conflict, Denied, Invalid, NotFound, Unavailable
from millpond.nodes.tokens import TokenFile, draw_token
from millpond.settings import load_settings
from millpond.versions.imports.locations import PrefixLocation, TableLocation
from millpond.versions.protocols import RepositoryLike
from tests.clients.conftest import Server
from tests.harness.faulty_proxy import FaultyProxy, Trouble

_NAMES = itertools.count()


def login(server: Server) -> dict[str, str]:
    """The settings of a client that may do everything."""
    return {"client_token": f"{server.access_key}:{server.secret}"}


@pytest.fixture
def proxy(server: Server) -> Iterator[FaultyProxy]:
    with FaultyProxy(urlsplit(server.url).port or 0) as proxy:
        yield proxy


@pytest.fixture
def flights(server: Server, proxy: FaultyProxy) -> Iterator[RepositoryLike]:
    """A repository behind the proxy."""
    with millpond.open(proxy.url, **login(server)) as pond:
        yield pond.repositories.create(f"remote-{next(_NAMES)}")


# -- credentials --------------------------------------------------------------------------------------


def test_a_pair_comes_from_the_environment(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLPOND_CLIENT_TOKEN", f"{server.access_key}:{server.secret}")
    with millpond.open(server.url) as pond:
        made = pond.repositories.create(f"remote-{next(_NAMES)}")
        assert made.branch("main").commit("mine", committer="somebody", allow_empty=True).committer == "esti"


def test_credentials_that_open_nothing_say_so(server: Server) -> None:
    name = f"mapped-{next(_NAMES)}"
    reader = draw_token(SystemClock())
    TokenFile(server.folder).add(name, reader, {"write": ("*",), "admin": ("weather",)})
    wrong = [
        ({}, "token_missing"), ({"client_token": "mp_0"}, "token_unknown"), ({"client_token": reader}, "token_unknown"),
        ({"client_token": f"{server.access_key}:mp_0"}, "token_unknown"),
    ]  # fmt: skip
    for settings, kind in wrong:
        with millpond.open(server.url, **settings) as pond, pytest.raises(Denied) as denied:
            pond.repositories.list()
        assert denied.value.kind == kind
        assert denied.value.hint


def test_an_operators_token_opens_repositories(server: Server) -> None:
    token = draw_token(SystemClock())
    TokenFile(server.folder).add(f"operator-{next(_NAMES)}", token, {"admin": ("*",)})
    with millpond.open(server.url, client_token=token) as pond:
        assert pond.repositories.create(f"remote-{next(_NAMES)}").branch("main").head().message


def test_a_pair_does_what_its_rights_allow(server: Server, flights: RepositoryLike) -> None:
    access_key, secret = server.add_pair(f"few-{next(_NAMES)}", write=(f"{flights.name}/fix",))
    flights.create_branch("fix", "main")
    settings = {"client_token": f"{access_key}:{secret}"}
    with millpond.open(server.url, **settings) as pond:
        mine = pond.repository(flights.name)
        mine.branch("fix").put("a", b"1")
        with pytest.raises(Denied) as denied:
            mine.branch("main").put("a", iter([b"1"]))
        assert (denied.value.kind, denied.value.values["on"]) == ("right_missing", f"{flights.name}/main")
        assert [record.name for record in pond.repositories.list().results] == [flights.name]  # type: ignore[union-attr]


# -- connections that are lost ------------------------------------------------------------------------


def test_bytes_go_on_where_the_connection_was_lost(proxy: FaultyProxy, flights: RepositoryLike) -> None:
    body = bytes(range(251)) * 40_000
    main = flights.branch("main")
    main.put("large", body)
    lost = [
        proxy.trouble(Trouble("cut", match=b"/objects?path=large", after=after, down=True))
        for after in (2_500_000, 3_000_000)
    ]  # fmt: skip
    assert main.get("large") == body
    assert all(trouble.struck.is_set() for trouble in lost)


def test_another_object_is_never_read_on(proxy: FaultyProxy, flights: RepositoryLike) -> None:
    main = flights.branch("main")
    main.put("large", b"1" * 9_000_000)
    chunks = main.read("large")
    proxy.trouble(Trouble("cut", match=b"/objects?path=large", after=8_000_000, down=True))
    assert next(chunks)[:1] == b"1"
    main.put("large", b"2" * 9_000_000)
    with pytest.raises(Conflict) as changed:
        list(chunks)
    assert changed.value.kind == "object_changed"


def test_a_listing_goes_on_where_the_connection_was_lost(proxy: FaultyProxy, flights: RepositoryLike) -> None:
    count = 60_000
    main = flights.branch("main")
    paths = [f"{number:08}" for number in range(count)]
    main.staging.stage(pa.table({"path": paths, "address": ["data/x"] * count}).to_batches(max_chunksize=9_000))
    lost = proxy.trouble(Trouble("cut", match=b"/objects/ls", after=2_000_000, down=True))
    found = pa.chunked_array([batch.column("key") for batch in main.entries()])
    assert [key.decode() for key in found.to_pylist()] == paths
    assert lost.struck.is_set()


def test_a_change_whose_answer_was_lost_is_not_sent_again(proxy: FaultyProxy, flights: RepositoryLike) -> None:
    main = flights.branch("main")
    lost = proxy.trouble(Trouble("cut", match=b"/commits", down=True))
    with pytest.raises(Unavailable) as unknown:
        main.commit("once", allow_empty=True)
    assert lost.struck.is_set()
    assert "look before" in str(unknown.value.hint)
    assert [commit.message for commit in main.log(limit=2)] in (["once", "Repository created"], ["Repository created"])


# -- what a node does not do --------------------------------------------------------------------------


def test_no_folder_of_the_machine_is_named(server: Server) -> None:
    with millpond.open(server.url, **login(server)) as pond:
        for place in (
            "/etc", "local://../x", "local:///etc", "ftp://x/y", "relative", "local://a/./b", "s3://elsewhere/../b",
            "s3://elsewhere/a%2Fb", "s3://elsewhere/a?b", "s3://elsewhere/a#b", "s3://elsewhere/a//b",
        ):  # fmt: skip
            with pytest.raises(Invalid) as refused:
                pond.repositories.create(f"remote-{next(_NAMES)}", place)
            assert refused.value.kind == "namespace_place", place


def test_a_node_opens_no_bucket_that_its_settings_do_not_name(server: Server) -> None:
    with millpond.open(server.url, **login(server)) as pond:
        for place in ("s3://bucket", "s3://bucket/prefix/x", "s3://elsewhere-too/x"):
            with pytest.raises(Denied) as refused:
                pond.repositories.create(f"remote-{next(_NAMES)}", place)
            assert refused.value.kind == "namespace_denied", place
        name = f"remote-{next(_NAMES)}"
        head = next(pond.repositories.create(f"{name}-a").dump()).split(b"\n")[0]
        moved = re.sub(rb"local://[^\"]+", b"s3://bucket/prefix", head)
        with pytest.raises(Denied) as refused:
            pond.repositories.restore(name, [moved + b"\n"])
        assert refused.value.kind == "namespace_denied"
    for place in ("s3://bucket/x", "gs://bucket"):
        made = {"name": f"remote-{next(_NAMES)}", "storage_namespace": place}
        answer = server.call("POST", "/repositories", made)
        words = f"failed to create repository: {place} is not in versions.namespaces of the node"
        assert (answer.status, answer.json()) == (403, {"message": words})
    versions = load_settings().versions
    assert (versions.sources, versions.namespaces) == ((), ())


def test_imports_are_watched(flights: RepositoryLike) -> None:
    with pytest.raises(Denied) as denied:
        flights.branch("main").imports.commit([PrefixLocation("local:///nowhere/")], "no")
    assert denied.value.kind == "source_denied"
    with pytest.raises((NotFound, Unavailable, Denied, Invalid)):
        flights.branch("main").imports.stage([TableLocation("s3://no-such-bucket-here/a.parquet")])
