"""Web pages and nodes without tokens: DNS rebinding and cross-site requests are refused."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import urlsplit

import pytest

from millpond.nodes.tokens import hash_token
from tests.nodes.conftest import Served

FOREIGN_HOSTS = ("evil.example", "evil.example:7433", "127.0.0.1.evil.example", "10.0.0.1", "", "[", "localhost@evil")


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/healthz"), ("GET", "/v1/maps/m/get?key=a"), ("POST", "/v1/jobs/merge/run"), ("GET", "/nowhere")],
)
def test_a_page_reaches_no_node_without_tokens(node: Served, method: str, path: str) -> None:
    node.pond.create_map("m", kind="state", value="long").load([{"key": "a", "value": 1}])
    runs = node.get("/v1/jobs/merge").json()["runs"]
    for host in FOREIGN_HOSTS:
        answer = node.request(method, path, headers={"Host": host})
        assert (answer.status, answer.json()["kind"]) == (403, "host_foreign"), host
    for origin in ("https://evil.example", "null", "http://localhost:1", node.url.replace("http", "https")):
        answer = node.request(method, path, headers={"Origin": origin})
        assert (answer.status, answer.json()["kind"]) == (403, "origin_foreign"), origin
    assert node.get("/v1/jobs/merge").json()["runs"] <= runs + 1, "only by itself"
    assert node.request(method, path).status < 500
    own = {"Origin": node.url}
    assert node.request(method, path, headers=own).status != 403, "the page /docs of the node itself"
    port = urlsplit(node.url).port
    for host in (f"localhost:{port}", f"127.0.0.2:{port}", f"[::1]:{port}", "LOCALHOST"):
        assert node.request(method, path, headers={"Host": host}).status != 403, host
    metrics = node.get("/metrics").body.decode()
    assert 'millpond_requests_refused_total{kind="host_foreign",surface="http"}' in metrics
    assert 'millpond_requests_refused_total{kind="origin_foreign",surface="http"}' in metrics


def test_names_of_the_settings_are_the_nodes_own(serve: Callable[..., Served]) -> None:
    node = serve(server_url="http://pond.example:80")
    port = node.service.node.settings.server.port
    local = f"http://127.0.0.1:{port}/v1/maps"
    for host, status in (("pond.example", 200), ("other.example", 403)):
        assert node.pool.request("GET", local, headers={"Host": host}).status == status


def test_where_tokens_are_wanted_any_name_will_do(serve: Callable[..., Served]) -> None:
    node = serve(server_tokens=[{"name": "a", "sha256": hash_token("secret"), "rights": {"read": ["*"]}}])
    headers = {"Host": "proxy.example", "Origin": "https://proxy.example", "Authorization": "Bearer secret"}
    assert node.get("/v1/maps", headers=headers).status == 200
    assert node.get("/v1/maps", headers={"Host": "evil.example"}).status == 401
