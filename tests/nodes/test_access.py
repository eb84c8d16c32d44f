"""Access control: tokens, their rights, their storage, and TLS."""

from __future__ import annotations

import json
import os
import ssl
import stat
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme
import urllib3

import millpond
from millpond.clock import ManualClock, SystemClock
from millpond.errors import AlreadyExists, Corrupt, Denied, Invalid, NotFound
from millpond.nodes.node import is_loopback
from millpond.nodes.tokens import ANYBODY, Caller, TokenFile, Tokens, draw_token, hash_token
from millpond.settings import TokenSetting
from tests.nodes.conftest import Served

pytestmark = pytest.mark.sample(5, of="file")

MAPS = ("weather", "weather_hourly", "people")
SECRETS = {"reader": "r" * 20, "loader": "l" * 20, "boss": "b" * 20}
RIGHTS: dict[str, dict[str, list[str]]] = {
    "reader": {"read": ["people"]},
    "loader": {"write": ["weather*"]},
    "boss": {"admin": ["*"]},
}
TOKENS = [{"name": name, "sha256": hash_token(secret), "rights": RIGHTS[name]} for name, secret in SECRETS.items()]


def shown(who: str | None) -> dict[str, str]:
    return {} if who is None else {"Authorization": f"Bearer {SECRETS.get(who, who)}"}


@pytest.fixture
def guarded(serve: Callable[..., Served]) -> Served:
    """A node that asks for tokens, with three maps."""
    node = serve(server_tokens=TOKENS)
    for name in MAPS:
        node.pond.create_map(name, kind="state", value="long")
    return node


# -- rights -------------------------------------------------------------------------------------------


def test_rights_imply_smaller_ones_on_the_same_names() -> None:
    caller = Caller("x", {"write": ("weather*",), "admin": ("people",)})
    assert [caller.may("read", name) for name in MAPS] == [True, True, True]
    assert [caller.may("write", name) for name in MAPS] == [True, True, True]
    assert [caller.may("admin", name) for name in MAPS] == [False, False, True]
    assert caller.may("read", "WEATHER"), "names of maps have no case"
    assert not caller.may("read"), "a right on everything is a right on *"
    assert ANYBODY.may("admin")


@pytest.mark.parametrize(
    ("who", "method", "path", "body", "status"),
    [
        (None, "GET", "/v1/maps", None, 401),
        ("stranger", "GET", "/v1/maps", None, 401),
        (None, "GET", "/healthz", None, 200),
        (None, "GET", "/readyz", None, 200),
        (None, "GET", "/v1/node", None, 200),
        (None, "GET", "/docs", None, 200),
        (None, "GET", "/metrics", None, 401),
        ("reader", "GET", "/metrics", None, 403),
        ("boss", "GET", "/metrics", None, 200),
        ("reader", "GET", "/v1/maps/people", None, 200),
        ("reader", "GET", "/v1/maps/weather", None, 403),
        ("reader", "GET", "/v1/maps/nothing", None, 403),
        ("boss", "GET", "/v1/maps/nothing", None, 404),
        ("reader", "GET", "/v1/maps/people/get?key=a", None, 200),
        ("reader", "GET", "/v1/maps/weather/get?key=a", None, 403),
        ("reader", "GET", "/v1/maps/weather/snapshot", None, 403),
        ("loader", "GET", "/v1/maps/weather/snapshot", None, 200),
        ("loader", "POST", "/v1/maps", {"name": "weather_new", "kind": "state"}, 403),
        ("boss", "POST", "/v1/maps", {"name": "weather_new", "kind": "state"}, 200),
        ("loader", "PATCH", "/v1/maps/weather", {"retain": "1d"}, 403),
        ("loader", "DELETE", "/v1/maps/weather", None, 403),
        ("boss", "DELETE", "/v1/maps/weather", None, 200),
        ("reader", "GET", f"/v1/parts/{'0' * 32}/upload", None, 403),
        ("loader", "GET", f"/v1/parts/{'0' * 32}/upload", None, 200),
        ("loader", "GET", "/v1/log", None, 403),
        ("boss", "GET", "/v1/log", None, 200),
        ("loader", "POST", "/v1/verify", {"full": False}, 403),
        ("loader", "POST", "/v1/jobs/merge/run", None, 403),
        ("loader", "POST", "/v1/maps/weather/maintenance", {"what": "compact"}, 403),
        ("boss", "POST", "/v1/maps/people/maintenance", {"what": "compact"}, 200),
    ],
)
def test_every_route_asks_for_its_right(
    guarded: Served, who: str | None, method: str, path: str, body: Any, status: int
) -> None:
    answer = guarded.request(method, path, body=body, headers=shown(who))
    assert answer.status == status, answer.body
    if status in (401, 403):
        assert answer.json()["error"] == "Denied"
        assert answer.headers.get("WWW-Authenticate") == ("Bearer" if status == 401 else None)
        assert not any(secret in answer.body.decode() for secret in SECRETS.values())


def test_everybody_sees_only_what_they_may_read(guarded: Served) -> None:
    def seen(who: str) -> list[str]:
        return sorted(entry["name"] for entry in guarded.get("/v1/maps", headers=shown(who)).json()["maps"])

    assert seen("reader") == ["people"]
    assert seen("loader") == ["weather", "weather_hourly"]
    assert seen("boss") == sorted(MAPS)


def test_a_part_is_written_to_its_map_only(guarded: Served) -> None:
    headers = {"Upload-Checksum": "0" * 32, **shown("loader")}
    path = f"/v1/parts/{'0' * 32}/upload"
    assert guarded.put(path, body=b"x", headers={**headers, "Upload-Map": "people"}).status == 403
    assert guarded.put(path, body=b"x", headers={**headers, "Upload-Map": "weather"}).status == 422


def test_a_load_needs_the_right_on_every_map_it_brings_rows_to(guarded: Served) -> None:
    boss = millpond.open(guarded.url, client_token=SECRETS["boss"])
    loader = millpond.open(guarded.url, client_token=SECRETS["loader"])
    loader.map("weather").load([{"key": "a", "value": 1}])
    boss.map("people").load([{"key": "a", "value": 1}])
    with pytest.raises(Denied):
        loader.map("people").load([{"key": "b", "value": 1}])
    known = guarded.pond.parts.list("people")[0].part
    refused = guarded.post("/v1/loads", {"load_id": "x", "parts": [known]}, headers=shown("loader"))
    assert refused.status == 404, "not even of rows that are there already"


# -- tokens -------------------------------------------------------------------------------------------


def test_a_token_is_drawn_at_random_and_stored_as_a_hash(tmp_path: Path) -> None:
    drawn = {draw_token(SystemClock()) for _ in range(20)}
    assert len(drawn) == 20
    assert all(len(token) == 3 + 64 for token in drawn), "32 bytes"
    token = draw_token(ManualClock())
    file = TokenFile(tmp_path)
    file.add("loader", token, {"read": ["*"], "write": [], "admin": ["weather*"]})
    stored = file.path.read_text()
    assert token not in stored
    assert hash_token(token) in stored
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600
    assert [(token.name, token.rights) for token in file.read()] == [
        ("loader", {"read": ("*",), "admin": ("weather*",)})
    ]


def test_tokens_have_names_and_rights(tmp_path: Path) -> None:
    file = TokenFile(tmp_path)
    with pytest.raises(Invalid, match="needs a right"):
        file.add("a", "t", {"read": []})
    file.add("a", "t", {"read": ["*"]})
    with pytest.raises(AlreadyExists):
        file.add("a", "u", {"read": ["*"]})
    with pytest.raises(NotFound, match="there is: a"):
        file.revoke("b")
    file.revoke("a")
    assert file.read() == []


@pytest.mark.parametrize("damage", ["", "{}", "[1]", '[{"name": "a"}]', "[", '[{"name":"a","sha256":"x","rights":{}}]'])
def test_nobody_is_let_in_by_a_damaged_file(tmp_path: Path, damage: str) -> None:
    file = TokenFile(tmp_path)
    file.path.write_text(damage)
    with pytest.raises(Corrupt) as raised:
        Tokens(file, (), ManualClock(), required=False).caller(None)
    assert raised.value.kind == "tokens_damaged"


def test_a_running_node_knows_new_and_revoked_tokens_at_once(node: Served) -> None:
    assert node.get("/v1/maps").status == 200, "no token is required while there is none"
    file = TokenFile(node.pond.folder)
    file.add("a", "secret-a", {"read": ["*"]})
    assert node.get("/v1/maps").status == 401
    assert node.get("/v1/maps", headers=shown("secret-a")).status == 200
    file.add("b", "secret-b", {"read": ["*"]})
    file.revoke("a")
    assert node.get("/v1/maps", headers=shown("secret-a")).status == 401
    assert node.get("/v1/maps", headers=shown("secret-b")).status == 200


def test_who_revokes_the_last_token_lets_nobody_in(serve: Callable[..., Served]) -> None:
    node = serve()
    file = TokenFile(node.pond.folder)
    file.add("a", "secret-a", {"admin": ["*"]})
    assert file.revoke("a") == 0
    for headers in ({}, shown("secret-a"), shown("secret-b")):
        assert node.get("/v1/maps", headers=headers).status == 401
    assert "millpond token add" in node.get("/v1/maps").json()["hint"]
    file.path.unlink()
    assert node.get("/v1/maps").status == 401, "nobody opens a running node by taking its file away"
    file.add("b", "secret-b", {"admin": ["*"]})
    file.revoke("b")
    node.close()
    again = serve(server_data=str(node.pond.folder))
    assert again.get("/v1/maps").status == 401, "also after the next start"
    again.close()
    opened = serve(server_data=str(node.pond.folder), server_access="open")
    assert opened.get("/v1/maps").status == 200, "to be open is a setting"


@pytest.mark.settings(server_access="tokens")
def test_tokens_can_be_wanted_before_there_is_one(node: Served) -> None:
    assert node.get("/v1/maps").status == 401
    TokenFile(node.pond.folder).add("a", "secret-a", {"read": ["*"]})
    assert node.get("/v1/maps", headers=shown("secret-a")).status == 200


def test_an_address_others_can_reach_is_never_open(serve: Callable[..., Served]) -> None:
    with pytest.raises(Denied) as refused:
        serve(server_host="0.0.0.0", server_url="http://127.0.0.1:1", server_access="open")
    assert refused.value.kind == "access_open"


def test_processes_that_change_the_tokens_at_once_lose_none(tmp_path: Path) -> None:
    """Each adds its own and revokes every other of them, as fast as it can."""
    code = (
        "import sys; from pathlib import Path; from millpond.nodes.tokens import TokenFile\n"
        "file, me = TokenFile(Path(sys.argv[1])), sys.argv[2]\n"
        "sys.stdin.readline()\n"
        "for n in range(20):\n"
        "    file.add(f'{me}{n}', f'secret{me}{n}', {'read': ['*']})\n"
        "    if n % 2: file.revoke(f'{me}{n}')\n"
    )
    children = [
        subprocess.Popen([sys.executable, "-c", code, str(tmp_path), who], stdin=subprocess.PIPE) for who in "ab"
    ]
    for child in children:
        child.communicate(b"go\n")
        assert child.returncode == 0
    assert {token.name for token in TokenFile(tmp_path).read()} == {
        f"{who}{n}" for who in "ab" for n in range(0, 20, 2)
    }


def test_the_file_is_its_owners_alone_from_its_first_byte_on(tmp_path: Path) -> None:
    """Under any umask, and whatever the file was before; nothing else in the folder tells more."""
    file = TokenFile(tmp_path)
    seen: list[int] = []
    before, real = os.umask(0), os.fsync

    def fsync(handle: int) -> None:
        found = os.fstat(handle)
        if stat.S_ISREG(found.st_mode) and found.st_size:
            seen.append(stat.S_IMODE(found.st_mode))
        real(handle)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "fsync", fsync)
        try:
            file.add("a", "one", {"read": ["*"]})
            file.path.chmod(0o644)
            file.add("b", "two", {"read": ["*"]})
        finally:
            os.umask(before)
    assert seen == [0o600, 0o600], "before it has its name"
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600


@pytest.mark.parametrize("make", ["damaged", "folder", "dangling link"])
def test_a_running_node_lets_nobody_in_by_a_file_it_cannot_read(node: Served, make: str) -> None:
    file = TokenFile(node.pond.folder)
    if make == "damaged":
        file.path.write_text("[")
    elif make == "folder":
        file.path.mkdir()
    else:
        file.path.symlink_to(file.path.with_name("nowhere"))
    answer = node.get("/v1/maps")
    assert answer.status == (500 if make == "damaged" else 503)
    assert answer.json()["kind"] == ("tokens_damaged" if make == "damaged" else "tokens_unreadable")


def test_tokens_of_the_settings_and_of_the_folder_both_count(tmp_path: Path) -> None:
    file = TokenFile(tmp_path)
    file.add("folder", "one", {"read": ["*"]})
    shared = TokenSetting(name="shared", sha256=hash_token("two"), rights={"admin": ("*",)})
    tokens = Tokens(file, (shared,), ManualClock(), required=True)
    assert [tokens.caller(token).name for token in ("one", "two")] == ["folder", "shared"]
    for wrong in (None, "", "three", "one "):
        with pytest.raises(Denied):
            tokens.caller(wrong)


def test_nobody_is_let_in_when_the_last_token_is_revoked_on_an_open_address(tmp_path: Path) -> None:
    file = TokenFile(tmp_path)
    file.add("a", "one", {"read": ["*"]})
    tokens = Tokens(file, (), ManualClock(), required=True)
    file.revoke("a")
    with pytest.raises(Denied):
        tokens.caller(None)


# -- addresses ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "only_here"),
    [("127.0.0.1", True), ("127.1.2.3", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("::", False),
     ("10.0.0.1", False), ("node.example", False), ("", False)],
)  # fmt: skip
def test_what_others_can_reach_is_known(host: str, only_here: bool) -> None:
    assert is_loopback(host) == only_here


def test_an_open_address_needs_tokens(serve: Callable[..., Served], tmp_path: Path) -> None:
    with pytest.raises(Denied) as refused:
        serve(server_host="0.0.0.0", server_url="http://127.0.0.1:1")
    assert refused.value.kind == "tokens_wanted"
    TokenFile(tmp_path / "served0").add("a", "secret", {"read": ["*"]})
    node = serve(server_host="0.0.0.0")
    port = node.node.settings.server.port
    answer = node.pool.request("GET", f"http://127.0.0.1:{port}/v1/maps", headers=shown("secret"))
    assert answer.status == 200


# -- TLS ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("tls")
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1", "localhost")
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    issued.private_key_pem.write_to_path(str(folder / "node.key"))
    issued.cert_chain_pems[0].write_to_path(str(folder / "node.pem"))
    return {"tls_ca": str(folder / "ca.pem"), "tls_cert": str(folder / "node.pem"),
            "tls_key": str(folder / "node.key")}  # fmt: skip


def test_a_node_speaks_https(serve: Callable[..., Served], certificates: dict[str, str], tmp_path: Path) -> None:
    node = serve(**certificates)
    assert node.url.startswith("https://")
    with millpond.open(node.url, tls_ca=certificates["tls_ca"]) as pond:
        pond.create_map("m", kind="state", value="long")
        pond.map("m").load([{"key": "a", "value": 1}])
        pond.merge()
        assert pond.map("m").get("a") == 1
    with pytest.raises(millpond.Unavailable, match="TLS"):
        millpond.open(node.url).maps()
    with urllib3.PoolManager(retries=False, ca_certs=certificates["tls_ca"]) as pool:
        assert json.loads(pool.request("GET", node.url + "/healthz").data)["status"] == "ok"


def issued(authority: trustme.CA, folder: Path, name: str) -> dict[str, str]:
    """A certificate and its key in files, which are overwritten."""
    made = authority.issue_cert("127.0.0.1", "localhost")
    made.private_key_pem.write_to_path(str(folder / f"{name}.key"))
    made.cert_chain_pems[0].write_to_path(str(folder / f"{name}.pem"))
    return {"tls_cert": str(folder / f"{name}.pem"), "tls_key": str(folder / f"{name}.key")}


def shown_on(ports: Iterable[int]) -> set[str]:
    """The certificates that are shown on some ports."""
    return {ssl.get_server_certificate(("127.0.0.1", port)).replace("\n", "") for port in ports}


def test_a_certificate_is_read_again_when_it_changes(serve: Callable[..., Served], tmp_path: Path) -> None:
    authority = trustme.CA()
    files = issued(authority, tmp_path, "node")
    node = serve(**files, server_grpc_port=0)
    ports = (node.node.settings.server.port, int(node.node.settings.server.grpc_port))
    chain, key = Path(files["tls_cert"]), Path(files["tls_key"])
    first, key_before = {chain.read_text().replace("\n", "")}, key.read_bytes()
    assert shown_on(ports) == first
    issued(authority, tmp_path, "node")
    key_after = key.read_bytes()
    key.write_bytes(key_before)
    assert shown_on(ports) == first, "half of a pair is no pair"
    key.write_bytes(key_after)
    assert shown_on(ports) == {chain.read_text().replace("\n", "")} != first


def test_a_node_may_want_certificates_of_its_clients(serve: Callable[..., Served], tmp_path: Path) -> None:
    authority, stranger = trustme.CA(), trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    trusted = {"tls_ca": str(tmp_path / "ca.pem")}
    node = serve(**issued(authority, tmp_path, "node"), tls_client_ca=trusted["tls_ca"], server_grpc_port=0)
    with millpond.open(node.url, **trusted, **issued(authority, tmp_path, "client")) as pond:
        assert list(pond.maps()) == []
    for others in ({}, issued(stranger, tmp_path, "stranger")):
        with pytest.raises(millpond.Unavailable):
            millpond.open(node.url, **trusted, **others).maps()
    address, root = f"localhost:{node.node.settings.server.grpc_port}", (tmp_path / "ca.pem").read_bytes()
    pair = [(tmp_path / name).read_bytes() for name in ("client.key", "client.pem")]
    for own, fits in ((pair, True), ([], False)):
        with grpc.secure_channel(address, grpc.ssl_channel_credentials(root, *own)) as channel:
            call = channel.unary_unary("/api.Event/Health").future(b"", timeout=5)
            assert (call.exception() is None) is fits


def test_nodes_replicate_over_https(serve: Callable[..., Served], certificates: dict[str, str]) -> None:
    from tests.ports import free_ports

    ports = free_ports(2)
    nodes = [f"https://localhost:{port}" for port in ports]
    wanted = {"tls_client_ca": certificates["tls_ca"]}  # a node shows its own to the others
    settings = {"nodes_urls": nodes, "server_tokens": TOKENS, "client_token": SECRETS["boss"], **certificates, **wanted}
    first, second = (
        serve(server_port=port, server_url=url, **settings) for port, url in zip(ports, nodes, strict=True)
    )
    with millpond.open(",".join(nodes), client_token=SECRETS["boss"], **certificates) as pond:
        pond.create_map("weather", kind="state", value="long")
        pond.map("weather").load([{"key": "a", "value": 1}])
    second.pond.log.wait_applied(first.pond.log.position()[0])
    assert second.pond.map("weather").get("a") == 1


def test_a_certificate_that_does_not_fit_is_a_sentence(
    serve: Callable[..., Served], certificates: dict[str, str]
) -> None:
    with pytest.raises(Invalid) as refused:
        serve(tls_cert=certificates["tls_cert"], tls_key=certificates["tls_ca"])
    assert refused.value.kind == "tls_files"
    with pytest.raises(Invalid):
        serve(tls_cert="nowhere.pem", tls_key="nowhere.key")
