"""Error responses are final and keep their class; lost connections are retried, then named. Readers try other nodes."""

from __future__ import annotations

import doctest
import json
import multiprocessing
import pickle
import ssl
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import trustme

from millpond import errors
from millpond.client import connections, location, wire_errors
from millpond.client.connections import may_have_token, node_urls
from millpond.client.transport import Connection, Nodes
from millpond.client.wire_errors import from_wire, to_wire
from millpond.clock import ManualClock
from millpond.errors import AlreadyExists, Conflict, Denied, Internal, Invalid, MillpondError, NotFound, Unavailable
from millpond.maps.model import json_values
from millpond.settings import Settings, load_settings
from tests.harness.cluster import free_port
from tests.nodes.acted import Stage, cut, half, half_of_headers, refuse, say, silence


def quick(**options: Any) -> Settings:
    return load_settings(**{"client_read_timeout": "5s"} | options)


def nobody() -> str:
    return f"http://127.0.0.1:{free_port()}"


@pytest.mark.parametrize(
    "module", [location, connections, wire_errors, json_values], ids=lambda module: module.__name__
)
def test_the_examples_hold(module: ModuleType) -> None:
    tested = doctest.testmod(module)
    assert tested.attempted
    assert not tested.failed


# -- one node -----------------------------------------------------------------------------------------


def test_a_well_answer_comes_whole() -> None:
    with Stage(say(200, {"position": 7}, X_Answer="yes")) as stage:
        node = Connection(stage.url, quick(client_token="secret"))
        answer = node.request("POST", "/v1/x", json={"a": 1}, query={"key": "é/&"})
        assert (answer.status, answer.json(), answer.headers["x-answer"]) == (200, {"position": 7}, "yes")
        method, path, headers, body = stage.requests[0]
        assert (method, path, body) == ("POST", "/v1/x?key=%C3%A9%2F%26", b'{"a": 1}')
        assert headers["Authorization"] == "Bearer secret"
        assert headers["Content-Type"] == "application/json"


def test_connections_are_reused() -> None:
    ports = set()

    def note(request: Any) -> None:
        ports.add(request.client_address)
        request.answer(200, {})

    with Stage(note) as stage:
        node = Connection(stage.url, quick())
        for _ in range(5):
            node.request("GET", "/")
        assert len(ports) == 1


def test_not_modified_is_an_answer() -> None:
    with Stage(say(304, b"")) as stage:
        assert Connection(stage.url, quick()).request("GET", "/").status == 304


@pytest.mark.parametrize(
    ("status", "cls"),
    [(400, Invalid), (401, Denied), (404, NotFound), (409, AlreadyExists), (409, Conflict), (500, Internal)],
)
def test_an_error_response_is_the_error_it_was_and_requested_once(status: int, cls: type[MillpondError]) -> None:
    with Stage(refuse(status, cls.__name__, "some_kind", map="m", n=3)) as stage:
        with pytest.raises(cls) as caught:
            Connection(stage.url, quick()).request("GET", "/")
        error = caught.value
        assert (error.kind, error.message, error.hint, error.values) == (
            "some_kind", "no: some_kind", "do better", {"map": "m", "n": 3},
        )  # fmt: skip
        assert len(stage.requests) == 1


def test_every_error_crosses_the_wire_with_its_type() -> None:
    for name in errors.__all__:
        cls = getattr(errors, name)
        error = cls("what", kind="k", hint="h", file=Path("x"), n=1, names=["a", Path("b")])
        body = pickle.loads(pickle.dumps(to_wire(error)))
        back = from_wire("http://n", 400, json.dumps(body).encode())
        assert type(back) is cls
        assert (back.message, back.kind, back.hint) == ("what", "k", "h")
        assert back.values == {"file": "x", "n": 1, "names": ["a", "b"]}


@pytest.mark.parametrize("status", [404, 400, 301, 405])
def test_what_is_no_node_is_an_error(status: int) -> None:
    with Stage(say(status, b"<html>hello</html>")) as stage:
        with pytest.raises(Invalid) as caught:
            Connection(stage.url, quick()).request("GET", "/v1/node")
        assert caught.value.kind == "not_a_node"
        assert caught.value.values["node"] == stage.url
    with Stage(say(200, b"<html>hello</html>")) as stage, pytest.raises(Invalid) as caught:
        Connection(stage.url, quick()).request("GET", "/v1/node").json()
    assert caught.value.kind == "not_a_node"


@pytest.mark.parametrize("status", [429, 503])
def test_a_node_that_asks_for_a_moment_is_tried_again(status: int) -> None:
    body = {"error": "Unavailable", "kind": "starting", "message": "m", "hint": None, "values": {}}
    busy = say(status, body, Retry_After="0")
    with Stage(busy, busy, say(200, {})) as stage:
        assert Connection(stage.url, quick()).request("GET", "/").status == 200
    with Stage(busy) as stage:
        with pytest.raises(Unavailable, match="m") as caught:
            Connection(stage.url, quick()).request("GET", "/")
        assert caught.value.kind == "starting"
        assert len(stage.requests) == 3
    with Stage(say(status, body, Retry_After="3600")) as stage:
        with pytest.raises(Unavailable):
            Connection(stage.url, quick()).request("GET", "/")
        assert len(stage.requests) == 1


@pytest.mark.parametrize(
    "broken",
    [cut(), half(b"{}"), half_of_headers(), say(502, b"bad gateway"), say(504, b"")],
    ids=["reset", "cut short", "cut within the headers", "bad gateway", "gateway time-out"],
)
def test_a_lost_connection_is_tried_again(broken: Any) -> None:
    with Stage(broken, broken, say(200, {"well": True})) as stage:
        assert Connection(stage.url, quick()).request("GET", "/").json() == {"well": True}
        assert len(stage.requests) == 3


def test_a_connection_that_was_cut_is_made_anew_at_once() -> None:
    with Stage(cut(), say(200, {})) as stage:
        assert Connection(stage.url, quick(client_read_timeout="1h")).request("GET", "/").status == 200


def test_a_connection_that_stays_lost_names_node_attempts_and_reason() -> None:
    with Stage(cut()) as stage:
        with pytest.raises(Unavailable, match="after 3 attempts") as caught:
            Connection(stage.url, quick()).request("GET", "/")
        assert caught.value.kind == "node_unreachable"
        assert caught.value.values["node"] == stage.url
        assert "reset" in str(caught.value.values["reason"])
        assert len(stage.requests) == 3
    url = nobody()
    with pytest.raises(Unavailable, match=r"after 1 attempt\.") as caught:
        Connection(url, quick(client_attempts=1)).request("GET", "/")
    assert caught.value.values == {"node": url, "reason": "Connection refused"}
    with pytest.raises(Unavailable) as caught:
        Connection("http://no.such.host.invalid:1", quick()).request("GET", "/")
    assert "name" in str(caught.value.values["reason"])


def test_silence_ends() -> None:
    with Stage(silence()) as stage:
        with pytest.raises(Unavailable) as caught:
            Connection(stage.url, quick(client_read_timeout="100ms", client_attempts=1)).request("GET", "/")
        assert caught.value.values["reason"] == "no answer in time"
        with pytest.raises(Unavailable):
            Connection(stage.url, quick(client_attempts=1)).request("GET", "/", timeout=0.1)


def test_what_may_have_been_done_is_not_sent_twice() -> None:
    with Stage(cut()) as stage:
        with pytest.raises(Unavailable, match="may have been done"):
            Connection(stage.url, quick()).request("POST", "/", json={}, repeatable=False)
        assert len(stage.requests) == 1
    with pytest.raises(Unavailable, match="after 3 attempts"):  # nothing was sent
        Connection(nobody(), quick()).request("POST", "/", json={}, repeatable=False)


def test_an_event_ends_the_wait() -> None:
    stop = threading.Event()
    stop.set()
    with pytest.raises(Unavailable, match="after 1 attempt"):
        Connection(nobody(), quick(client_read_timeout="1h")).until(stop).request("GET", "/")


def test_an_answer_is_read_as_it_comes() -> None:
    with Stage(say(200, b"0123456789" * 1000)) as stage, Connection(stage.url, quick()).stream("GET", "/") as body:
        assert body.read(4) == b"0123"
        assert body.status == 200
        buffer = bytearray(6)
        assert body.readinto(buffer) == 6
        assert bytes(buffer) == b"456789"
        assert len(body.read()) == 9990
    with Stage(half(b"01234")) as stage, Connection(stage.url, quick()).stream("GET", "/") as body:
        assert body.read(5) == b"01234"
        with pytest.raises(Unavailable) as caught:
            body.read(5)
        assert caught.value.kind == "node_unreachable"
        assert caught.value.values["node"] == stage.url
    with Stage(refuse(404, "NotFound", "map_not_found")) as stage, pytest.raises(NotFound):
        Connection(stage.url, quick()).stream("GET", "/")


def test_connections_are_pickled_without_their_sockets() -> None:
    with Stage(say(200, {"well": True})) as stage:
        node = Connection(stage.url, quick(client_token="t"))
        node.request("GET", "/")
        other = pickle.loads(pickle.dumps(node))
        assert other.request("GET", "/").json() == {"well": True}
        nodes = pickle.loads(pickle.dumps(Nodes([stage.url], quick(client_token="t"))))
        assert nodes.first(lambda connection: connection.request("GET", "/").status) == 200
        assert {headers["Authorization"] for _, _, headers, _ in stage.requests} == {"Bearer t"}


def _ask_in_child(node: Connection, answers: Any) -> None:
    answers.put(node.request("GET", "/child").json())


def test_a_fork_opens_connections_of_its_own() -> None:
    peers = []

    def note(request: Any) -> None:
        peers.append((request.path, request.client_address))
        request.answer(200, {})

    with Stage(note) as stage:
        node = Connection(stage.url, quick())
        node.request("GET", "/parent")
        context = multiprocessing.get_context("fork")
        answers = context.Queue()
        child = context.Process(target=_ask_in_child, args=(node, answers))
        child.start()
        assert answers.get(timeout=20) == {}
        child.join(20)
        node.request("GET", "/parent")
        by_path = {path: {peer for requested, peer in peers if requested == path} for path, _ in peers}
        assert len(by_path["/parent"]) == 1
        assert by_path["/parent"].isdisjoint(by_path["/child"])


def test_tls_trusts_the_configured_authority(tmp_path: Path) -> None:
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    file = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(file))
    with Stage(say(200, {"well": True})) as stage:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        certificate.configure_cert(context)
        stage.socket = context.wrap_socket(stage.socket, server_side=True)
        url = stage.url.replace("http:", "https:")
        assert Connection(url, quick(tls_ca=str(file))).request("GET", "/").json() == {"well": True}
        with pytest.raises(Unavailable, match=r"after 1 attempt\..*TLS.*tls.ca"):
            Connection(url, quick()).request("GET", "/")
        with pytest.raises(Invalid, match=r"no file of certificates there. tls_ca=.*none\.pem"):
            Connection(url, quick(tls_ca=str(tmp_path / "none.pem"))).request("GET", "/")
        with pytest.raises(Unavailable, match=r"the connection was cut \(\w+ \w+") as cut:
            Connection(url.replace("https:", "http:"), quick()).request("GET", "/")
        assert cut.value.hint == f"does it speak TLS? then it is {url}"


def test_the_error_says_what_to_do_about_a_node_that_is_not_there() -> None:
    with Stage(say(200, {})) as stage:
        url = stage.url.replace("http:", "https:")
        with pytest.raises(Unavailable) as plain:
            Connection(url, quick()).request("GET", "/")
        assert plain.value.hint == f"it speaks no TLS: is it {stage.url}?"
    with pytest.raises(Unavailable) as closed:
        Connection(stage.url, quick()).request("GET", "/")
    assert closed.value.hint == "is 'millpond serve' running there, and is this its address?"


@pytest.mark.parametrize("address", ["", "n1:7433", "ftp://n1", "http://", "http://n1:port", "http://n1?x=1"])
def test_addresses_that_are_none_are_refused(address: str) -> None:
    with pytest.raises(Invalid) as caught:
        node_urls(address)
    assert caught.value.kind == "node_url"


# -- several nodes ------------------------------------------------------------------------------------


def test_readers_go_on_to_the_next_node_only_when_one_cannot_be_reached() -> None:
    with Stage(say(200, {"said": "second"})) as second:
        for down in (cut(), half(b"{}"), say(502, b"")):
            with Stage(down) as first:
                nodes = Nodes([first.url, second.url], quick())
                assert nodes.first(lambda node: node.request("GET", "/").json()["said"]) == "second"
                assert len(first.requests) == 1
        assert Nodes([nobody(), second.url], quick()).first(lambda node: node.url) is not None
    with Stage(refuse(404, "NotFound", "map_not_found")) as first, Stage(say(200, {"said": "second"})) as second:
        with pytest.raises(NotFound):
            Nodes([first.url, second.url], quick()).first(lambda node: node.request("GET", "/"))
        assert not second.requests


def test_a_node_that_was_lost_is_tried_last_for_a_while() -> None:
    clock = ManualClock()
    with Stage(cut(), say(200, {"said": "first"})) as first, Stage(say(200, {"said": "second"})) as second:
        nodes = Nodes([first.url, second.url], quick(), clock=clock)

        def ask() -> object:
            return nodes.first(lambda node: node.request("GET", "/").json()["said"])

        assert [ask(), ask()] == ["second", "second"]
        assert len(first.requests) == 1
        clock.advance(60_000)
        assert [ask(), ask()] == ["first", "first"]


def test_when_no_node_is_reached_all_are_named() -> None:
    urls = [nobody(), nobody()]
    with pytest.raises(Unavailable) as caught:
        Nodes(urls, quick()).first(lambda node: node.request("GET", "/"))
    assert caught.value.kind == "node_unreachable"
    assert all(f"{url}: Connection refused" in str(caught.value) for url in urls)


def test_who_is_not_the_primary_says_who_is_and_is_believed_once() -> None:
    with Stage(say(200, {"said": "done"})) as primary, Stage() as replica:
        replica.acts = [refuse(421, "Conflict", "not_primary", primary=primary.url)]
        nodes = Nodes([replica.url], quick())
        assert nodes.on_primary(lambda node: node.request("POST", "/", json={}).json()["said"]) == "done"
    with Stage(refuse(421, "Conflict", "not_primary", primary="http://127.0.0.1:1")) as other:
        other.acts[:] = [refuse(421, "Conflict", "not_primary", primary=f"{other.url}/")]
        with Stage(refuse(421, "Conflict", "not_primary", primary=other.url)) as replica:
            with pytest.raises(Conflict):
                Nodes([replica.url], quick()).on_primary(lambda node: node.request("POST", "/", json={}))
            assert (len(replica.requests), len(other.requests)) == (1, 1)


def test_all_nodes_are_queried_at_once_and_every_one_answers_alone() -> None:
    together = threading.Barrier(2, timeout=20)

    def meet(request: Any) -> None:
        together.wait()
        request.answer(200, {"said": "met"})

    with Stage(meet) as first, Stage(meet) as second:
        urls = [first.url, second.url, nobody()]
        outcomes = Nodes(urls, quick()).all(lambda node: node.request("GET", "/").json()["said"])
        assert [outcome.node for outcome in outcomes] == urls
        assert [outcome.value for outcome in outcomes] == ["met", "met", None]
        assert outcomes[2].error is not None
        assert outcomes[2].error.kind == "node_unreachable"


def test_the_list_of_nodes_is_learned_from_any_of_them() -> None:
    with Stage() as first, Stage() as second:
        node_info = {"pond": "p", "nodes": [first.url, second.url], "primary": first.url}
        first.acts, second.acts = [say(200, node_info)], [say(200, node_info)]
        nodes = Nodes([nobody(), second.url], quick())
        assert nodes.learn()["pond"] == "p"
        assert nodes.urls == (first.url, second.url)
    with Stage(say(200, {"pond": "p", "nodes": []})) as alone:
        nodes = Nodes(alone.url, quick())
        nodes.learn()
        assert nodes.urls == (alone.url,)


def test_the_token_goes_to_named_hosts_only() -> None:
    """A node names another host, and another primary: neither gets the token, and the error says what to do."""
    with Stage() as named, Stage(say(200, {})) as other:
        elsewhere = other.url.replace("127.0.0.1", "localhost")
        status = {"pond": "p", "nodes": [elsewhere, named.url], "primary": elsewhere}
        named.acts = [say(200, status)]
        nodes = Nodes(named.url, quick(client_token="secret"))
        nodes.learn()
        assert nodes.urls == (elsewhere, named.url)
        assert nodes.where == named.url, "where processes elsewhere open the pond, all is named"
        assert nodes.first(lambda node: node.request("GET", "/v1/maps").node) == named.url
        with pytest.raises(Denied) as primary:
            nodes.on_primary(lambda node: node.request("POST", "/v1/maps", json={}))
        outcome, _ = nodes.all(lambda node: node.request("GET", "/v1/jobs"))
        assert outcome.error is not None
        assert primary.value.kind == outcome.error.kind == "node_not_named"
        assert "millpond.toml" in str(primary.value.hint)
        named.acts = [refuse(409, "Conflict", "not_primary", primary=elsewhere)]
        with pytest.raises(Denied):
            Nodes(named.url, quick(client_token="secret")).on_primary(
                lambda node: node.request("POST", "/v1/maps", json={})
            )
        assert other.requests == []
        assert {headers["Authorization"] for _, _, headers, _ in named.requests} == {"Bearer secret"}
        named.acts = [say(200, status)]
        listed = Nodes(named.url, quick(client_token="secret", nodes_urls=[elsewhere]))
        listed.learn()
        listed.on_primary(lambda node: node.request("POST", "/v1/maps", json={}))
        assert other.requests[0][2]["Authorization"] == "Bearer secret", "named in the client's own settings"
        open_to_all = Nodes(named.url, quick())
        open_to_all.learn()
        open_to_all.on_primary(lambda node: node.request("POST", "/v1/maps", json={}))
        assert "Authorization" not in other.requests[1][2], "without a token, there is none to lose"


@pytest.mark.parametrize(
    ("url", "named", "may"),
    [
        ("https://n1:1", ["https://n1:2"], True), ("http://n1:1", ["http://n1:2"], True),
        ("https://n1", ["http://n1"], True), ("http://n1", ["https://n1"], False),
        ("http://n1", ["https://n1", "http://n1:2"], True), ("https://n2", ["https://n1"], False),
        ("https://N1", ["https://n1"], True), ("https://n1.evil", ["https://n1"], False),
        ("https://n1@evil", ["https://n1"], False), ("https://evil", [], False),
    ],
)  # fmt: skip
def test_a_token_stays_with_its_host_and_encrypted(url: str, named: list[str], may: bool) -> None:
    assert may_have_token(url, named) == may
