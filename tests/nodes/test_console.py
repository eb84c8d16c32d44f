"""The console from the other side of HTTP: pages with 0, 1 and many things, hostile names, rights, signing in."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from typing import Any
from urllib.parse import quote, urlencode

import pytest

from millpond.console.charts import lanes
from millpond.console.rendering import asset
from millpond.events.event import NewEvent
from millpond.nodes.tokens import hash_token
from millpond.server.console.pages import CONSOLE, COOKIE, PAGE_ROWS
from tests.nodes.conftest import BEGIN, Answer, Served
from tests.nodes.console_pond import HOSTILE, PATHS, SCRIPT, TOKENS, deep_paths, fill
from tests.nodes.test_console_actions import Visitor, went_to
from tests.nodes.test_console_runs import serve_runs

JSON = {"Accept": "application/json"}


class _Page(HTMLParser):
    """The tags of a page with their attributes, and what breaks the policy of content."""

    def __init__(self, page: bytes) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.names: list[str] = []
        """The texts that are names or values."""
        self.feed(page.decode())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.tags[-1:] == [("bdi", {})] and self.tags[-2][0] != "dd":  # facts are in words
            self.names.append(data)

    def handle_endtag(self, tag: str) -> None:
        if tag == "bdi":
            self.tags.append(("", {}))

    @property
    def faults(self) -> list[str]:
        """Scripts, styles and handlers in the page itself, and addresses of other machines."""
        faults = [tag for tag, attributes in self.tags if tag == "script" and "src" not in attributes]
        faults += [tag for tag, _ in self.tags if tag == "style"]
        for tag, attributes in self.tags:
            faults += [f"{tag} {name}" for name in attributes if name == "style" or name.startswith("on")]
            targets = (attributes.get(name) or "" for name in ("src", "href", "action", "hx-get", "sse-connect"))
            faults += [target for target in targets if target.startswith("//") or ":" in target.split("?")[0]]
        return faults

    @property
    def links(self) -> set[str]:
        return {attributes["href"] or "" for tag, attributes in self.tags if tag == "a" and "href" in attributes}


def page_of(answer: Answer, status: int = 200) -> _Page:
    assert answer.status == status, answer.body[:300]
    assert answer.headers["content-type"].startswith("text/html")
    assert "script-src 'self';" in answer.headers["content-security-policy"]
    page = _Page(answer.body)
    assert not page.faults
    return page


def test_pages_of_an_empty_pond_say_so_and_break_no_policy(serve: Callable[..., Served]) -> None:
    node = serve()
    for path in PATHS:
        page_of(node.get(path), 404 if "find" in path else 200)
        assert json.loads(node.get(path, headers=JSON).body) is not None
    page_of(node.get("/console/maps/no-such-map"), 404)
    for store in ("layers", "shard"):
        node.pond.create_map(store, kind="state", store=store)
        page_of(node.get(f"/console/maps/{store}"))
    assert len(node.get("/console/maps", headers=JSON).json()["maps"]) == 2
    page_of(node.get("/console/no/such/page"), 404)


def test_pages_of_hostile_things_escape_them_and_lead_to_pages_that_are_there(serve: Callable[..., Served]) -> None:
    node = serve(events_reports=True)
    fill(node)
    seen: set[str] = set()
    for path in [*PATHS, *deep_paths()]:
        answer = node.get(path)
        page = page_of(answer, 404 if "find" in path else 200)
        assert SCRIPT.encode() not in answer.body
        seen |= page.links
    for link in sorted(link for link in seen if link.startswith("/")):
        assert node.get(link).status in (200, 303), link


def test_an_unknown_page_is_a_page_to_browsers_and_data_to_programs(serve: Callable[..., Served]) -> None:
    node = serve(server_tokens=TOKENS)
    browser = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
    for path in ("/nothing", f"/{quote(SCRIPT)}", "/v1/nothing", "/console/nothing", "/%zz", "/maps/"):
        page = page_of(node.get(path, headers=browser), 404)
        assert "/" in page.links and SCRIPT.encode() not in node.get(path, headers=browser).body
        for wanted in ("application/json", "*/*") if not path.startswith("/console") else ("application/json",):
            answer = node.get(path, headers={"Accept": wanted})
            assert (answer.status, answer.json()["kind"]) == (404, "route_not_found"), path
    wrong = node.request("DELETE", "/console/maps", headers=browser)
    assert wrong.status == 405 and wrong.headers["allow"] == "GET, POST"
    page_of(wrong, 405)
    listed = node.get("/api/v1/nothing", headers=browser)  # clients of another protocol have its errors
    assert listed.headers["content-type"] == "application/json"


def test_a_parameter_that_a_page_does_not_know_is_refused_on_every_page(serve: Callable[..., Served]) -> None:
    node = serve()
    routes = [route for route in node.service.app.state.routes if route.dialect is CONSOLE]
    assert len(routes) > 50
    for route in routes:
        path = re.sub(r"\{\w+(:path)?\}", "x", route.path)
        for query in ("whoever=1", "tenant=default&whoever"):
            page_of(node.request(route.method, f"{path}?{query}", headers={"Accept": "text/html"}), 400)
            error = node.request(route.method, f"{path}?{query}", headers=JSON).json()
            unknown = "tenant" if query.startswith("tenant") and "tenant" not in route.parameters else "whoever"
            assert (error["kind"], error["values"]["parameter"]) == ("parameter_unknown", f"'{unknown}'"), route.path
    error = node.get("/console/maps?whoever=1", headers=JSON).json()
    assert (error["kind"], error["values"]["known"]) == ("parameter_unknown", "after, prefix, ref")


def test_the_same_url_gives_its_data_as_json(serve: Callable[..., Served]) -> None:
    node = serve(events_reports=True)
    fill(node)

    def data(path: str) -> Any:
        answer = node.get(path, headers=JSON)
        assert answer.headers["content-type"] == "application/json"
        return answer.json()

    assert {load["map"] for load in data("/")["loads"]} == {"added", "ours", "theirs", "ranges"}
    assert [shown["name"] for shown in data("/console/maps")["maps"]] == ["added", "ours", "ranges", "theirs"]
    shown = data("/console/maps/ours?key=JFK")
    assert (shown["answer"]["value"], len(shown["history"]["rows"]), shown["branches"]) == (2.0, 2, ["fix"])
    assert {(load["rows"], load["rejected"], load["error"]) for load in shown["loads"]} == {(1, 0, None)}
    assert SCRIPT in {load["source"] for load in shown["loads"]} <= {SCRIPT, ""}
    assert data(f"/console/maps/ours?key=JFK&at={BEGIN + 1}")["answer"]["value"] == 1.0
    assert "nothing was known" in data(f"/console/maps/ours?key=JFK&known_at={BEGIN - 1}")["problem"]["message"]
    changes = data("/console/versions/pond/diff?left=main&right=fix&map=ours")["keys"]
    assert [row[changes["columns"].index("key")] for row in changes["rows"]] == ["JFK"]
    commits = data("/console/versions/pond?ref=main")["commits"]
    assert commits[0]["moment_ms"] // 1000 == commits[0]["created"]
    page = node.get("/console/versions/pond?ref=main").body.decode()
    times = re.findall(r"[0-9-]+T[0-9:.]+Z", page[page.index(commits[0]["id"]) :])
    assert node.pond.refs.states.resolve(times[0]) == commits[0]["id"]
    assert [change["path"] for change in data("/console/versions/flights/diff?left=main~1&right=main")["paths"]] == [
        "data/b.csv"
    ]
    assert data("/console/sql?q=select+count(*)+as+n+from+theirs")["result"]["rows"] == [[len(HOSTILE)]]
    assert "only reads" in data("/console/sql?q=drop+table+ours")["error"]


def texts_in(data: Any) -> Iterator[str]:
    """The texts and numbers of an answer, and the names of its fields."""
    if isinstance(data, dict | list):
        yield json.dumps(data, separators=(",", ":"), ensure_ascii=False)
        for part in [*data, *data.values()] if isinstance(data, dict) else data:
            yield from texts_in(part)
    else:
        yield data if isinstance(data, str) else json.dumps(data)


def test_the_data_of_a_page_has_every_name_and_value_that_it_shows(serve: Callable[..., Served]) -> None:
    node = serve_runs(serve, events_reports=True)
    fill(node)
    with node.pond.branch("load-1", source="main") as branch:
        branch.map("ours").load([{"key": SCRIPT, "effective_time": BEGIN, "value": 7.0}])
    start = "/console/runs/start"
    run = went_to(Visitor(node).press(f"{start}?workflow=asks", f"{start}?tenant=default", **{"input.count": "3"}))
    paths = [
        *PATHS, *deep_paths(), run, "/console/maps/ours/load?branch=load-1", f"{start}?workflow=asks",
        "/console/workflows/workflow?name=asks", "/console/maps/none",
    ]  # fmt: skip
    missing: list[tuple[str, str]] = []
    for path in paths:
        answer = node.get(path, headers=JSON)
        assert answer.headers["content-type"] == "application/json"
        there = " ".join(texts_in(answer.json()))
        names = (name.removesuffix("…")[:2_000] for name in _Page(node.get(path).body).names)
        missing += [(path, name[:200]) for name in names if name not in there]
    assert {name for _, name in missing} == {"any", "nobody known"}, missing
    assert sum(node.get("/console/maps", headers=JSON).json()["maps"][0]["hours"]) == 3
    [thread] = node.get(run, headers=JSON).json()["specified"]
    assert [part["label"] for part in thread["nodes"]][1:-1] == ["user task: approve"]
    pages = [
        route.path for route in node.service.app.state.routes if route.dialect is CONSOLE and route.method == "GET"
    ]
    queries = {path.split("?")[0] for path in paths}
    patterns = {path: re.compile(re.sub("{.*?}", "[^/]+", path)) for path in pages}
    assert {path for path in pages if not any(map(patterns[path].fullmatch, queries))} == {
        "/console/now", "/console/events/live", "/console/static/{file}", "/console/sql/export",
        "/console/sign-in", "/console/versions/{repository}/image",
    }  # fmt: skip


def test_lists_are_paged_without_leaving_anything_out(serve: Callable[..., Served]) -> None:
    node = serve(events_reports=True)
    fill(node)
    for number in range(PAGE_ROWS + 2):
        node.pond.create_map(f"map_{number:03}", kind="state")
        node.pond.repositories.create(f"repository-{number:03}")

    def walk(path: str, field: str, name: str) -> list[str]:
        shown = []
        next_path: str | None = path
        while next_path:
            page = node.get(next_path, headers=JSON).json()
            assert len(page[field]) <= PAGE_ROWS
            shown += [row[name] for row in page[field]]
            next_path = page["next"]
        return shown

    maps = walk("/console/maps", "maps", "name")
    assert maps == sorted(definition.name for definition in node.pond.catalogue.list())
    names = walk("/console/versions", "repositories", "name")
    assert (
        names == sorted({*names}) and len([name for name in names if name.startswith("repository-")]) == PAGE_ROWS + 2
    )
    stream = urlencode({"queue": "etl", "job_set": SCRIPT})
    ids = walk(f"/console/events/stream?{stream}", "events", "id")
    assert len(ids) == PAGE_ROWS + 5 and ids == sorted({*ids})


def test_a_page_shows_what_its_token_may_see(serve: Callable[..., Served]) -> None:
    node = serve(server_tokens=TOKENS, events_reports=True)
    fill(node)

    def get(token: str, path: str, **headers: str) -> Answer:
        return node.get(path, headers={"Cookie": f"{COOKIE}={token}", **headers})

    def names(token: str) -> list[str]:
        return [shown["name"] for shown in get(token, "/console/maps", **JSON).json()["maps"]]

    assert names("everything") == ["added", "ours", "ranges", "theirs"]
    assert names("ours") == ["ours"]
    assert {load["map"] for load in get("ours", "/", **JSON).json()["loads"]} == {"ours"}
    page_of(get("ours", "/console/maps/theirs"), 403)
    assert get("ours", "/console/sql?q=select+1+from+theirs", **JSON).json()["error"]
    for token, path in (("ours", "/console/jobs"), ("ours", "/console/events"), ("etl", "/console/maps"),
                        ("etl", "/console/versions/flights"), ("flights", "/console/versions/pond")):  # fmt: skip
        page_of(get(token, path), 403)
    assert "/console/jobs" not in page_of(get("ours", "/")).links
    assert "/console/events" in page_of(get("etl", "/")).links
    assert get("everything", "/console/jobs", **JSON).json()["settings"] == {}
    assert "server.port" in get("operator", "/console/jobs", **JSON).json()["settings"]
    assert [shown["name"] for shown in get("flights", "/console/versions", **JSON).json()["repositories"]] == [
        "flights"
    ]
    for q in ("theirs", "flights", "etl/x"):
        assert get("ours", f"/console/find?q={quote(q)}").status == 404
    # Each route of the console is refused without a token, but for those of signing in.
    routes = [route for route in node.service.app.state.routes if route.dialect is CONSOLE]
    for route in routes:
        path = re.sub(r"{.*?}", "x", route.path)
        if route.needs.right is not None:
            assert node.request(route.method, path, headers=JSON).status == 401, path
            assert route.needs.audited is (route.method != "GET"), path


def test_keys_of_maps_that_a_token_may_not_read_take_no_place_in_a_page(serve: Callable[..., Served]) -> None:
    rights = {"read": ["ours", "repo:pond"]}
    node = serve(server_tokens=[{"name": "some", "sha256": hash_token("some"), "rights": rights}])
    for name in ("before", "ours"):
        node.pond.create_map(name, kind="state", store="layers")
    with node.pond.branch("fix", source="main") as branch:
        branch.map("before").load([{"key": f"{number}", "value": "x"} for number in range(300)])
        branch.map("ours").load([{"key": key, "value": "x"} for key in "abc"])
    page = node.get(
        "/console/versions/pond/diff?left=main&right=fix", headers={"Cookie": f"{COOKIE}=some", **JSON}
    ).json()["keys"]
    assert ([row[:1] for row in page["rows"]], page["more"]) == ([["ours"]] * 3, False)


def test_the_box_finds_names_keys_paths_commits_and_job_sets(serve: Callable[..., Served]) -> None:
    node = serve(server_tokens=TOKENS, events_reports=True)
    fill(node)
    commit = node.pond.repository("flights").ref("main").head().id

    def places(token: str, q: str) -> list[str]:
        headers = {"Cookie": f"{COOKIE}={token}", **JSON}
        answer = node.pool.request(
            "GET", f"{node.url}/console/find?{urlencode({'q': q})}", headers=headers, redirect=False
        )
        if answer.status == 303:
            return [answer.headers["location"]]
        listed = [place["path"] for place in answer.json()["places"]]
        assert (answer.status == 200) is bool(listed)
        return listed

    expected = {
        "ours": "/console/maps/ours", "ours/any": "/console/maps/ours?key=any", SCRIPT: "/console/maps/theirs",
        HOSTILE[1]: "/console/maps/theirs", "flights": "/console/versions/flights",
        "flights/data": "/console/versions/flights/objects?ref=main&prefix=data",
        commit[:8]: f"/console/versions/flights?ref={commit[:8]}", commit: f"/console/versions/flights?ref={commit}",
        f"etl/{SCRIPT}": "/console/events/stream?queue=etl&", "alone": "/console/events/stream?queue=late&",
    }  # fmt: skip
    flights = node.pond.repository("flights")
    for name in ("b", "c"):
        flights.create_branch(name, "main")
        flights.branch(name).put("own/x.csv", b"")
    flights.branch("c").put("data/c.csv", b"")
    flights.branch("c").commit("c")
    flights.create_tag("v1", "c")
    flights.branch("c").delete("own/x.csv")
    for q, refs in {"flights/own/x": ["b", "v1"], "flights/data/c.csv": ["c", "v1"]}.items():
        found = [f"/console/versions/flights/objects?{urlencode({'ref': ref, 'prefix': q[8:]})}" for ref in refs]
        assert places("everything", q) == found and places("ours", q) == []
    for queue, job_set in (("etl", "\U0010ffff"), ("later", "\U0010ffff" * 2), ("late", "alone")):
        node.pond.events.append(queue, job_set, [NewEvent(BEGIN, b"", "submitted")])
    for q, path in expected.items():
        shown = places("everything", q)
        assert len(shown) == 1 + (q in HOSTILE) and shown[0].startswith(path), (q, shown)
        assert all("job_set=" in place for place in shown[1:])  # a job set has the name, too
    for q in ("", " ", "nothing", "flights/none", "theirs/", "0" * 64, "a/b/c", "\u202e" * 1_000):
        assert places("everything", q) == []
    for q in expected:
        assert (places("flights", q) != []) is (q.startswith("flights") or commit.startswith(q)), q


def test_signing_in_keeps_the_token_where_no_script_reads_it(serve: Callable[..., Served]) -> None:
    node = serve(server_tokens=TOKENS)
    answer = node.pool.request("GET", f"{node.url}/console/maps?prefix=a", redirect=False)
    assert answer.status == 303
    assert answer.headers["location"] == "/console/sign-in?next=%2Fconsole%2Fmaps%3Fprefix%3Da"
    page_of(node.get(answer.headers["location"]))

    def sign_in(token: str, target: str = "/console/maps", **headers: str) -> Any:
        headers = {"Content-Type": "application/x-www-form-urlencoded", **headers}
        body = urlencode({"token": token, "next": target})
        return node.pool.request("POST", f"{node.url}/console/sign-in", body=body, headers=headers, redirect=False)

    assert sign_in("wrong").status == 401
    assert sign_in("ours", Origin="https://evil.example").status == 403
    for target, led_to in (("/console/maps", "/console/maps"), ("//evil.example", "/"), ("https://evil.example", "/")):
        signed_in = sign_in("ours", target, Origin=node.url)
        assert (signed_in.status, signed_in.headers["location"]) == (303, led_to)
    cookie = signed_in.headers["set-cookie"]
    assert {"HttpOnly", "SameSite=lax", "Path=/"} <= {*re.split("; ?", cookie)}
    signed = {"Cookie": cookie.split(";")[0]}
    page_of(node.get("/console/maps", headers=signed))
    assert node.get("/v1/maps", headers=signed).status == 401  # a cookie opens pages, and nothing that changes
    node.service.app.state.tickets["once"] = "ours"
    ways = [node.pool.request("GET", f"{node.url}/console/sign-in?ticket=once", redirect=False) for _ in range(2)]
    assert [way.status for way in ways] == [303, 200]
    assert (
        node.pool.request("POST", f"{node.url}/console/sign-out", redirect=False)
        .headers["set-cookie"]
        .count("Max-Age=0")
    )


def test_events_that_come_are_sent_as_rows(serve: Callable[..., Served]) -> None:
    node = serve(events_reports=True)
    fill(node)
    path = f"/console/events/live?{urlencode({'queue': 'etl', 'job_set': SCRIPT, 'kind': 'new'})}"
    answer = node.pool.request("GET", node.url + path, preload_content=False)
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.readline() == b": watching\n"
    other, new = (NewEvent(BEGIN, b"<b>\n\n2", kind, {}) for kind in ("old", "new"))
    node.pond.events.append("etl", SCRIPT, [other, new])
    lines: list[bytes] = []
    while not lines or lines[-1] != b"\n" or b"event: event\n" not in lines:
        lines.append(answer.readline())
    answer.close()
    assert any(line.startswith(b"id: ") for line in lines)
    row = b"".join(line.removeprefix(b"data: ") for line in lines if line.startswith(b"data: "))
    assert b"&lt;b&gt;" in row and b"<b>" not in row and row.count(b"<tr>") == 1


def test_files_are_what_their_licences_say() -> None:
    import hashlib
    from importlib.resources import files

    static = files("millpond.console") / "static"
    vendored = [line.split() for line in (static / "LICENSES.txt").read_text().splitlines() if ".min.js  " in line]
    assert {line[0] for line in vendored} == {"htmx.min.js", "htmx-sse.min.js"}
    for line in vendored:
        digest = hashlib.sha256((static / line[0]).read_bytes()).hexdigest()
        assert digest in line
    sent = (asset(name) for name in ("console.css", "console.js", "icon.svg", *(line[0] for line in vendored)))
    assert sum(len(data[0]) for data in sent if data is not None) < 100_000
    assert asset("../rendering.py") is None and asset("nothing.js") is None and asset(f"{'a' * 300}.js") is None


@pytest.mark.parametrize(
    ("commits", "expected"),
    [
        ([("c", ["b"]), ("b", ["a"]), ("a", [])], [0, 0, 0]),
        ([("m", ["a", "b"]), ("a", ["r"]), ("b", ["r"]), ("r", [])], [0, 0, 1, 0]),
        ([("o", ["a", "b", "c"]), ("c", []), ("b", []), ("a", [])], [0, 2, 1, 0]),
    ],
)
def test_lanes(commits: list[tuple[str, list[str]]], expected: list[int]) -> None:
    assert [dot.lane for dot in lanes(commits)] == expected
