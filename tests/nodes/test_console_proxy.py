"""Users that a reverse proxy signs in: whose header counts, and what becomes of one that names nobody."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

import pytest

from millpond.errors import Invalid
from millpond.nodes.tokens import draw_access_key, hash_token
from millpond.server.console.actions import COOKIE
from tests.nodes.conftest import BEGIN, Served
from tests.nodes.test_console_actions import TOKENS, went_to
from tests.nodes.test_console_actions import Visitor as OfToken

HEADER = "X-Remote-User"
NAMES = ("\u05e9\u05dc\u05d5\u05dd", "<script>alert(1)</script>")
MORE = [
    *({"name": name, "sha256": hash_token(name), "rights": {"read": ["*"]}} for name in NAMES),
    {"name": "late", "sha256": hash_token("late"), "rights": {"read": ["*"]}, "expires_ms": BEGIN - 1},
]  # fmt: skip
BEHIND: dict[str, Any] = {
    "server_tokens": [*TOKENS, *MORE], "server_user_header": HEADER, "server_user_proxies": "10.0.0.0/8, 127.0.0.1",
}  # fmt: skip


class Visitor(OfToken):
    """A browser behind a proxy, which names its user."""

    def __init__(self, node: Served, user: str, **headers: str) -> None:
        super().__init__(node)
        self.headers = {HEADER: user.encode().decode("latin-1"), **headers}


def raw(node: Served, path: str, headers: Sequence[tuple[str, str]]) -> tuple[int, bytes]:
    """The answer to a request with headers of which one may come twice."""
    url = urlsplit(node.url)
    connection = HTTPConnection(url.hostname or "", url.port or 0, timeout=30)
    try:
        connection.putrequest("GET", path)
        for name, value in headers:
            connection.putheader(name, value.encode("latin-1"))
        connection.endheaders()
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def test_a_proxy_names_users_who_have_the_rights_of_their_tokens(serve: Callable[..., Served]) -> None:
    node = serve(**BEHIND)
    for name in ("ours", "theirs"):
        node.pond.create_map(name, kind="state", value="double", store="layers")

    def maps(visitor: OfToken) -> list[str]:
        return [shown["name"] for shown in visitor.data("/console/maps")["maps"]]

    owner, reader, loader = (Visitor(node, name) for name in ("owner", "reader", "loader"))
    assert maps(owner) == maps(reader) == ["ours", "theirs"]
    assert owner.forms("/console/maps") and not reader.forms("/console/maps")
    page = node.get("/console/maps", headers=owner.headers).body.decode()
    assert "<bdi>owner</bdi>" in page and "/console/sign-out" not in page
    for name in NAMES:
        page = node.get("/console/maps", headers=Visitor(node, name).headers).body.decode()
        assert "ours" in page and "<script>alert" not in page
    # A form counts with the secret of the user that it was shown to; what it does is audited under the name.
    fields = {"name": "new", "kind": "state"}
    went_to(owner.press("/console/maps", "/console/maps", **fields))
    secret = loader.forms("/console/maps/ours")["/console/maps/ours/load"]["secret"]
    assert owner.send("/console/maps", {"secret": secret, **fields}).status == 403
    of_token = OfToken(node, "owner").forms("/console/maps")["/console/maps"]["secret"]
    assert owner.send("/console/maps", {"secret": of_token, **fields}).status == 403
    lines = [json.loads(line) for line in (node.pond.folder / "audit.jsonl").read_text().splitlines()]
    assert [(line["token"], line["status"]) for line in lines] == [("owner", 303), ("owner", 403), ("owner", 403)]
    # A token of the user's own says more than the proxy, and the proxy more than a cookie.
    assert maps(Visitor(node, "owner", Authorization="Bearer loader")) == ["ours", "theirs"]
    assert not Visitor(node, "owner", Authorization="Bearer reader").forms("/console/maps")
    assert not Visitor(node, "reader", Cookie=f"{COOKIE}=owner").forms("/console/maps")
    wrong = {HEADER: "owner", "Authorization": "Bearer nothing", "Accept": "application/json"}
    assert node.get("/console/maps", headers=wrong).status == 401
    # The API for programs knows nothing of the header.
    assert node.get("/v1/maps", headers={HEADER: "owner"}).status == 401


@pytest.mark.parametrize("names", [
    [""], [" "], ["owner", "owner"], ["owner", "reader"], ["owner", ""], ["nobody"], ["late"], ["OWNER"], ["owner\tx"],
    ["ow\x7fner"], ["ow\x85ner"], ["\xff\xfe"], ["owner, reader"], ["pair"], ["o" * 2_000],
])  # fmt: skip
def test_a_header_that_names_no_user_of_the_node_lets_nobody_in(names: list[str], serve: Callable[..., Served]) -> None:
    pair = {"name": "pair", "sha256": hash_token("p"), "rights": {"read": ["*"]}}
    node = serve(**BEHIND | {"server_tokens": [*BEHIND["server_tokens"], pair]})
    pair["access_key"] = draw_access_key(node.clock)
    node = serve(**BEHIND | {"server_tokens": [*BEHIND["server_tokens"], pair]})
    for beside in ((), (("Cookie", f"{COOKIE}=owner"),)):
        status, body = raw(node, "/console/maps", [*((HEADER, name) for name in names), *beside])
        assert status in (400, 403), body
        assert b"No maps" not in body
        if status == 403:
            assert b"user_header" in body or b"user_unknown" in body


def test_the_header_of_a_stranger_says_nothing(serve: Callable[..., Served]) -> None:
    node = serve(**BEHIND | {"server_user_proxies": "10.0.0.0/8, ::ffff:7f00:2"})
    for forged in ({}, {"X-Forwarded-For": "10.0.0.1"}, {"X-Forwarded-For": "10.0.0.1, 10.0.0.2"},
                   {"X-Millpond-Sender": "http 1 10.0.0.1"}, {"Forwarded": "for=10.0.0.1"}):  # fmt: skip
        headers = {HEADER: "owner", **forged}
        answer = node.pool.request("GET", f"{node.url}/console/maps", headers=headers, redirect=False)
        assert answer.status == 303 and answer.headers["location"].startswith("/console/sign-in"), forged
        assert node.get("/console/maps", headers=headers | {"Accept": "application/json"}).status == 401
        reader = node.get("/console/maps", headers=headers | {"Cookie": f"{COOKIE}=reader"})
        assert reader.status == 200 and b"Make a map" not in reader.body
    without = serve(server_tokens=TOKENS)
    assert without.get("/console/maps", headers={HEADER: "owner", "Accept": "application/json"}).status == 401
    by_forwarding = serve(**BEHIND)  # the proxy says whom it serves, and is still the proxy
    headers = {HEADER: "owner", "X-Forwarded-For": "203.0.113.7"}
    assert by_forwarding.get("/console/maps", headers=headers).status == 200


@pytest.mark.parametrize(("settings", "words"), [
    ({"server_user_header": HEADER}, "given together"), ({"server_user_proxies": "127.0.0.1"}, "given together"),
    ({"server_user_header": "Cookie", "server_user_proxies": "127.0.0.1"}, "meaning of its own"),
    ({"server_user_header": "X User", "server_user_proxies": "127.0.0.1"}, "user_header"),
    ({"server_user_header": HEADER, "server_user_proxies": "proxy.example"}, "write addresses"),
    ({"server_user_header": HEADER, "server_user_proxies": "10.0.0.1/8"}, "write addresses"),
])  # fmt: skip
def test_settings_that_cannot_be_meant_are_refused(settings: dict[str, str], words: str) -> None:
    from millpond.settings import load_settings

    with pytest.raises(Invalid) as error:
        load_settings(**settings)
    assert words in str(error.value)
