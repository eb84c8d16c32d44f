"""Changes that pages ask for: their forms, buttons with and without rights, what is refused, and what is audited."""

from __future__ import annotations

import json
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millpond.events.event import NewEvent
from millpond.nodes.tokens import hash_token
from millpond.server.console.actions import ACTIONS, COOKIE
from millpond.server.routes.table import On
from tests.nodes.conftest import BEGIN, Served
from tests.ports import free_ports

RIGHTS = {
    "owner": {"admin": ["*"]}, "reader": {"read": ["*"]}, "loader": {"write": ["ours"], "read": ["theirs"]},
    "fixer": {"write": ["repo:flights/fix-*"]}, "starter": {"write": ["tenant:default"], "read": ["*"]},
}  # fmt: skip
SCRIPT = "<script>alert(1)</script>"
TOKENS = [{"name": name, "sha256": hash_token(name), "rights": rights} for name, rights in RIGHTS.items()]


class Forms(HTMLParser):
    """The forms of a page: their addresses, each with the fields that it sends."""

    def __init__(self, page: bytes) -> None:
        super().__init__()
        self.forms: dict[str, dict[str, str]] = {}
        self._fields: dict[str, str] = {}
        self.feed(page.decode())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = {name: value or "" for name, value in attrs}
        if tag == "form":
            self._fields = self.forms.setdefault(named.get("action", ""), {})
        elif tag == "input" and "name" in named:
            self._fields[named["name"]] = named.get("value", "")


class Visitor:
    """A browser without scripts, of somebody who has signed in."""

    def __init__(self, node: Served, token: str = "") -> None:
        self.node, self.headers = node, {"Cookie": f"{COOKIE}={token}"} if token else {}

    def data(self, path: str) -> Any:
        return self.node.get(path, headers={**self.headers, "Accept": "application/json"}).json()

    def forms(self, path: str) -> dict[str, dict[str, str]]:
        page = self.node.get(path, headers=self.headers)
        assert page.status == 200, page.body
        forms = Forms(page.body).forms
        return {path: fields for path, fields in forms.items() if "secret" in fields}

    def send(self, path: str, fields: dict[str, str], **headers: str) -> Any:
        kind = {"Content-Type": "application/x-www-form-urlencoded"}
        body = urlencode({name: text for name, text in fields.items() if text})
        return self.node.pool.request(
            "POST", self.node.url + path, body=body, headers={**self.headers, **kind, **headers}, redirect=False
        )

    def press(self, page: str, path: str, **fields: str) -> Any:
        """Send a form of a page, with some of its fields filled in."""
        return self.send(path, {**self.forms(page)[path], **fields})

    def drop_file(self, page: str, path: str, name: str, content: bytes, **fields: str) -> Any:
        sent = {**self.forms(page)[path], **fields}
        del sent["content"]
        return self.node.pool.request(
            "POST", self.node.url + path, fields={**sent, "content": (name, content)}, headers=self.headers,
            redirect=False,
        )  # fmt: skip


def fill(node: Served) -> None:
    node.pond.create_map("ours", kind="state", value="double", store="layers").load([{"key": "JFK", "value": 1.0}])
    node.pond.create_map("theirs", kind="state", value="double", store="layers")


def went_to(response: Any) -> str:
    assert response.status == 303, response.data
    where: str = response.headers["location"]
    return where


def path_of(name: str) -> str:
    row = ACTIONS[name]
    return row.path.replace("{name}", "ours").replace("{repository}", "pond") + (
        "?tenant=default" if row.on is On.TENANT else ""
    )


def test_an_action_is_refused_without_the_right_the_secret_or_the_origin(serve: Callable[..., Served]) -> None:
    node = serve(server_tokens=TOKENS)
    fill(node)
    before, owner, reader = node.pond.log.position(), Visitor(node, "owner"), Visitor(node, "reader")
    [secret] = {fields["secret"] for fields in owner.forms("/console/maps").values()}
    form = {"secret": secret, "typed": "ours"}

    def kind_of(visitor: Visitor, path: str, form: dict[str, str], **headers: str) -> tuple[int, str]:
        response = visitor.send(path, form, Accept="application/json", **headers)
        return response.status, json.loads(response.data)["kind"]

    for name, row in ACTIONS.items():
        path = path_of(name)
        assert kind_of(Visitor(node), path, form) == (401, "token_missing"), name
        assert kind_of(reader, path, form) == (403, "right_missing"), name
        assert kind_of(owner, path, form, Origin="https://evil.example") == (403, "origin_foreign"), name
        if row.body_bytes_max is not None:
            for wrong in ({}, {"secret": "0" * 64}, {"secret": "\u00e9"}):
                assert kind_of(owner, path, wrong) == (403, "form_foreign"), name
    assert node.pond.log.position() == before


def test_a_page_has_the_buttons_that_its_token_may_press(serve: Callable[..., Served]) -> None:
    node = serve(server_tokens=TOKENS)
    fill(node)

    def buttons(token: str, path: str) -> set[str]:
        visitor = Visitor(node, token)
        assert len(visitor.data(path)["actions"]) >= len(visitor.forms(path))
        return {form.rpartition("/")[2] for form in visitor.forms(path)}

    assert buttons("owner", "/console/maps/ours?key=JFK") == {"load", "alter", "tend", "delete", "drop", "copy"}
    assert buttons("loader", "/console/maps/ours?key=JFK") == {"load"}
    for path in ("/console/maps/theirs?key=JFK", "/console/maps"):
        assert buttons("loader", path) == buttons("reader", path) == set()
    assert buttons("owner", "/console/maps") == {"maps"}


def test_maps_are_made_altered_tended_and_dropped_by_forms(serve: Callable[..., Served]) -> None:
    node = serve(server_tokens=TOKENS)
    owner = Visitor(node, "owner")
    name = "a_<b>"
    refused = owner.press("/console/maps", "/console/maps", name=name, kind="temporal_state")
    assert refused.status == 400 and b"<b>" not in refused.data
    made = owner.press("/console/maps", "/console/maps", name="made", kind="temporal_state", value="double",
                       condense="30d")  # fmt: skip
    page = went_to(made)
    assert page == "/console/maps/made"
    assert owner.press("/console/maps", "/console/maps", name="made", kind="state").status == 409
    assert owner.data(page)["settings"] == {
        "condense": "30d", "retain": "", "overwrite": "yes", "maintenance_suspended": "no"
    }  # fmt: skip
    choices = {"overwrite": "no", "maintenance_suspended": "no"}
    went_to(owner.press(page, f"{page}/alter", condense="", retain="10y", **choices))
    definition = node.pond.map("made").definition
    assert (definition.condense_ms, definition.overwrite) == (None, False)
    assert definition.retain_ms == 3_650 * 86_400_000
    [secret] = {fields["secret"] for fields in owner.forms(page).values()}
    for retain in ("10y", "3650d"):  # a switch that is not there stays as it is
        went_to(owner.send(f"{page}/alter", {"secret": secret, "retain": retain}))
    assert node.pond.map("made").definition == definition
    assert owner.press(page, f"{page}/alter", retain="soon", **choices).status == 400

    node.pond.map("made").load([{"key": "a", "effective_time": BEGIN - 1, "value": 1.0}])
    for typed in ("", "Made"):
        assert owner.press(page, f"{page}/tend", what="retain", before=str(BEGIN), typed=typed).status == 400
    assert node.pond.map("made").get("a", BEGIN) == 1.0
    done = owner.press(page, f"{page}/tend", what="condense", before=str(BEGIN), typed="made")
    assert done.status == 200 and b"rows_after" in done.data
    assert owner.press(page, f"{page}/tend", what="explode", typed="made").status == 400

    wrong = owner.press(page, f"{page}/drop", typed="Made")
    assert wrong.status == 400 and b"name_mistyped" in wrong.data
    assert [shown.name for shown in node.pond.maps()] == ["made"], node.pond.maps()
    assert went_to(owner.press(page, f"{page}/drop", typed="made")) == "/console/maps"
    assert node.pond.maps() == []


def test_the_rows_of_a_key_are_deleted_when_it_was_typed_again(serve: Callable[..., Served]) -> None:
    node = serve()
    fill(node)
    visitor, path = Visitor(node), "/console/maps/ours/delete"
    for key in ("JFK", "\u202eevil", SCRIPT, "a'b\" or 1=1", "k" * 1_000):
        node.pond.map("ours").load([{"key": key, "value": 2.0}, {"key": "other", "value": 3.0}])
        page = f"/console/maps/ours?key={quote(key)}"
        assert visitor.press(page, path, typed="other").status == 400
        assert node.pond.map("ours").get(key) == 2.0
        assert visitor.press(page, path, typed=key).status == 200
        assert (node.pond.map("ours").get(key), node.pond.map("ours").get("other")) == (None, 3.0)


def test_a_key_of_ranges_is_deleted_and_one_that_is_no_number_is_refused(serve: Callable[..., Served]) -> None:
    node = serve()
    ranges = node.pond.create_map("ranges", kind="ranged_state", value="string")
    ranges.load([{"key_start": 1, "key_end": 9, "value": "DE"}, {"key_start": 9, "key_end": 12, "value": "FR"}])
    visitor = Visitor(node)
    visitor.press("/console/maps/ranges?key=5", "/console/maps/ranges/delete", typed="5")
    assert (ranges.get(5), ranges.get(10)) == (None, "FR")
    assert visitor.data("/console/maps/ranges?key=x")["problem"] is not None


def test_a_file_is_loaded_on_a_branch_and_seen_before_it_is_published(serve: Callable[..., Served]) -> None:
    node = serve(server_tokens=TOKENS)
    fill(node)
    loader, page = Visitor(node, "loader"), "/console/maps/ours"
    branches = node.pond.repository("pond").branches

    def begin(content: bytes, name: str = "new.csv") -> Any:
        return loader.drop_file(page, f"{page}/load", name, content)

    seen = went_to(begin(b"key,value\nJFK,2.0\nLGA,3.0\n", "../<new>.csv"))
    assert len(loader.data(seen)["keys"]["rows"]) == 2
    assert f'href="{seen}"'.encode() in node.get(page, headers=Visitor(node, "owner").headers).body
    assert node.pond.map("ours").get("LGA") is None
    assert went_to(loader.press(seen, f"{page}/publish")) == page
    assert (node.pond.map("ours").get("JFK"), node.pond.map("ours").get("LGA")) == (2.0, 3.0)

    seen = went_to(begin(b'{"key": "LGA", "value": 9.0}\n', "new.jsonl"))
    assert loader.press(seen, f"{page}/discard", typed="main").status == 400
    assert went_to(loader.press(seen, f"{page}/discard", typed=loader.data(seen)["branch"])) == page
    assert node.pond.map("ours").get("LGA") == 3.0
    for content, name in ((b"key,value\nJFK,much\n", "new.csv"), (b"x", "new.exe"), (b"", "new.parquet")):
        refused = begin(content, name)
        assert refused.status in (400, 404), refused.data
    assert loader.drop_file(page, f"{page}/load", "new.csv", b"key,value\nJFK,7\n", secret="wrong").status == 403
    assert [branch.name for branch in branches().results] == ["main"]
    assert not list((node.pond.folder / "writer").iterdir())


def test_a_file_that_is_too_much_for_its_reader_leaves_nothing(serve: Callable[..., Served], tmp_path: Path) -> None:
    node = serve(server_tokens=TOKENS)
    node.pond.create_map("ours", kind="state", value="string", store="layers")
    loader, page = Visitor(node, "loader"), "/console/maps/ours"
    few = pa.table({"key": [f"k{number}" for number in range(20_000)], "value": ["few"] * 20_000})
    large = pa.DictionaryArray.from_arrays(pa.array(np.zeros(600, np.int32)), pa.array(["x" * (1 << 20)]))
    with pq.ParquetWriter(tmp_path / "file", few.schema, store_schema=False) as file:
        for _ in range(4):
            file.write_table(few)
        file.write_table(pa.table({"key": map(str, range(600)), "value": large}).cast(few.schema))
    parquet = (tmp_path / "file").read_bytes()
    assert len(parquet) < 1 << 20
    for name, content, kind in (
        ("<bomb>.parquet", parquet, b"file_memory"), ("cut.parquet", parquet[:-99], b"input_damaged"),
        ("array.json", b"[" + b"{}," * (7 << 20) + b"1]", b"file_memory"),
        ("<no>.csv", b"key\n\xff", b"input_encoding"),
    ):  # fmt: skip
        refused = loader.drop_file(page, f"{page}/load", name, content)
        assert refused.status == 400 and kind in refused.data, refused.data
        assert name.strip("<").encode().replace(b">", b"&gt;") in refused.data
        assert str(node.pond.folder).encode() not in refused.data
        assert [branch.name for branch in node.pond.repository("pond").branches().results] == ["main"]
        assert not list((node.pond.folder / "writer").iterdir())
    assert went_to(loader.drop_file(page, f"{page}/load", "new.csv", b"key,value\nJFK,a\n"))


def test_a_load_that_conflicts_is_published_with_a_choice_for_each_key(serve: Callable[..., Served]) -> None:
    node = serve(server_tokens=TOKENS)
    fill(node)
    ours, loader, page = node.pond.map("ours"), Visitor(node, "loader"), "/console/maps/ours"
    seen = went_to(loader.drop_file(page, f"{page}/load", "new.csv", b"key,value\nJFK,2.0\nLGA,2.0\n"))
    ours.load([{"key": "JFK", "value": 3.0}, {"key": "LGA", "value": 3.0}])
    conflict = loader.press(seen, f"{page}/publish")
    assert conflict.status == 409 and b"maps/ours/JFK" in conflict.data
    branch = loader.data(seen)["branch"]
    assert f"/diff?left=main&amp;right={branch}&amp;map=ours".encode() in conflict.data
    form = Forms(conflict.data).forms[f"{page}/publish"]
    took = {**form, "take:maps/ours/JFK": "source", "take:maps/ours/LGA": "destination"}
    assert went_to(loader.send(f"{page}/publish", took)) == page
    assert (ours.get("JFK"), ours.get("LGA")) == (2.0, 3.0)
    assert [branch.name for branch in node.pond.repository("pond").branches().results] == ["main"]


def test_a_branch_that_changes_other_maps_is_not_published(serve: Callable[..., Served]) -> None:
    node = serve(server_tokens=TOKENS)
    fill(node)
    for name in ("load-other", "fix"):
        with node.pond.branch(name, source="main") as pond:
            pond.map("theirs").load([{"key": "JFK", "value": 9.0}])
    loader, path = Visitor(node, "loader"), "/console/maps/ours"
    [secret] = {fields["secret"] for fields in loader.forms(path).values()}
    for act in ("publish", "discard"):
        for branch, status in (("load-other", 403), ("fix", 400), ("load-none", 404)):
            form = {"secret": secret, "branch": branch, "typed": branch}
            assert loader.send(f"{path}/{act}", form).status == status
    assert node.pond.map("theirs").get("JFK") is None


def test_a_map_in_a_shard_takes_no_file(serve: Callable[..., Served]) -> None:
    node = serve()
    fill(node)
    node.pond.create_map("sharded", kind="state", store="shard")
    visitor = Visitor(node)
    assert "/console/maps/sharded/load" not in visitor.forms("/console/maps/sharded")
    [secret] = {fields["secret"] for fields in visitor.forms("/console/maps/ours").values()}
    answer = node.pool.request(
        "POST", f"{node.url}/console/maps/sharded/load",
        fields={"secret": secret, "content": ("a.csv", b"key,value\na,1\n")}, redirect=False,
    )  # fmt: skip
    assert answer.status == 400 and b"only a layered map has branches" in answer.data


# -- versions -----------------------------------------------------------------------------------------


def test_a_repository_is_branched_committed_tagged_merged_and_reverted_by_forms(serve: Callable[..., Served]) -> None:
    node = serve(server_tokens=TOKENS)
    repository = node.pond.repositories.create("flights")
    base, owner = "/console/versions/flights", Visitor(node, "owner")
    repository.branch("main").put("a.csv", b"1")
    went_to(owner.press(base, f"{base}/commit", message=SCRIPT))
    branch = went_to(owner.press(base, f"{base}/branch", name="fix"))
    assert branch == f"{base}?ref=fix"
    repository.branch("fix").put("b.csv", b"2")
    went_to(owner.press(branch, f"{base}/commit", message="b"))
    assert owner.press(branch, f"{base}/commit", message="nothing").status == 400
    assert went_to(owner.press(branch, f"{base}/tag", name="v1")) == f"{base}?ref=v1"
    assert owner.press(branch, f"{base}/tag", name="v1").status == 409
    assert went_to(owner.press(branch, f"{base}/merge", into="main")) == f"{base}?ref=main"
    assert [item.path for item in repository.ref("main").list().results] == ["a.csv", "b.csv"]
    commit = owner.data(f"{base}?ref=fix")["commits"][0]["id"]
    went_to(owner.press(f"{base}?ref={commit}", f"{base}/revert", branch="main"))
    assert [item.path for item in repository.ref("main").list().results] == ["a.csv"]
    assert repository.ref("main").head().committer == "owner"
    assert owner.press(branch, f"{base}/unbranch", typed="main").status == 400
    went_to(owner.press(branch, f"{base}/unbranch", typed="fix"))
    assert [item.name for item in repository.branches().results] == ["main"]


def commit_both_sides(node: Served) -> list[str]:
    """A repository in which `main` and `fix` changed the same paths, which are returned."""
    repository = node.pond.repositories.create("flights")
    names = [f"{SCRIPT}.csv", "\u202eb.csv", "c.csv"]

    def commit(branch: str, content: bytes) -> None:
        for name in names:
            repository.branch(branch).put(name, content)
        repository.branch(branch).commit(content.decode())

    commit("main", b"base")
    repository.create_branch("fix", "main")
    commit("main", b"destination")
    commit("fix", b"source")
    return names


@pytest.mark.sample(1)
@pytest.mark.parametrize("side", ["source", "destination", "base"])
def test_conflicts_of_a_merge_are_resolved_path_by_path(side: str, serve: Callable[..., Served]) -> None:
    node = serve()
    names = commit_both_sides(node)
    main = node.pond.repository("flights").branch("main")
    base, visitor = "/console/versions/flights", Visitor(node)
    conflict = visitor.press(f"{base}?ref=fix", f"{base}/merge", into="main")
    assert conflict.status == 409 and SCRIPT.encode() not in conflict.data
    form = Forms(conflict.data).forms[f"{base}/merge"]
    assert visitor.send(f"{base}/merge", {**form, "take:c.csv": "mine"}).status == 400
    some = visitor.send(f"{base}/merge", {**form, "take:c.csv": side})
    assert some.status == 409
    form = Forms(some.data).forms[f"{base}/merge"]
    assert form["take:c.csv"] == side
    assert visitor.send(f"{base}/merge", {**form, "strategy": "mine"}).status == 400
    if side == "base":
        went_to(visitor.send(f"{base}/merge", {**form, **{f"take:{name}": side for name in names}}))
    else:
        went_to(visitor.send(f"{base}/merge", {**form, "strategy": "source-wins" if side == "source" else "dest-wins"}))
    assert {main.get(name) for name in names} == {side.encode()}


def test_a_token_changes_the_branches_that_it_may_write(serve: Callable[..., Served]) -> None:
    node = serve(server_tokens=TOKENS)
    node.pond.repositories.create("flights")
    fixer, base = Visitor(node, "fixer"), "/console/versions/flights"
    assert {form.rpartition("/")[2] for form in fixer.forms(base)} == {"branch", "merge"}
    own = went_to(fixer.press(base, f"{base}/branch", name="fix-1"))
    assert {form.rpartition("/")[2] for form in fixer.forms(own)} == {"branch", "commit", "merge", "unbranch"}
    assert fixer.press(base, f"{base}/branch", name="other").status == 403
    secret = fixer.forms(base)[f"{base}/merge"]["secret"]
    assert fixer.send(f"{base}/commit", {"secret": secret, "branch": "main", "message": "x"}).status == 403
    assert fixer.press(base, f"{base}/merge", into="main").status == 403
    assert Visitor(node, "reader").forms(base) == {}


def test_a_merge_of_maps_changes_those_that_its_token_may_write(serve: Callable[..., Served]) -> None:
    rights = {"write": ["ours", "repo:pond"]}
    merger = {"name": "merger", "sha256": hash_token("merger"), "rights": rights}
    node = serve(server_tokens=[*TOKENS, merger])
    fill(node)
    visitor, base = Visitor(node, "merger"), "/console/versions/pond"
    for name, status in (("theirs", 403), ("ours", 303)):
        with node.pond.branch(f"fix-{name}", source="main") as pond:
            pond.map(name).load([{"key": "JFK", "value": 9.0}])
        assert visitor.press(f"{base}?ref=fix-{name}", f"{base}/merge", into="main").status == status
    assert node.pond.map("theirs").get("JFK") is None and node.pond.map("ours").get("JFK") == 9.0
    commit = next(commit.id for commit in node.pond.refs.log("fix-theirs"))
    with node.pond.branch("fix-theirs") as pond:
        pond.merge()
    assert visitor.press(f"{base}?ref={commit}", f"{base}/revert", branch="main").status == 403
    assert node.pond.map("theirs").get("JFK") == 9.0


# -- a node, and events -------------------------------------------------------------------------------


def test_jobs_are_run_paused_and_resumed_and_a_node_drained_and_repaired(serve: Callable[..., Served]) -> None:
    node = serve(server_tokens=TOKENS)
    owner, page = Visitor(node, "owner"), "/console/jobs"

    def job(name: str = "merge") -> Any:
        return next(shown for shown in owner.data(page)["jobs"] if shown["name"] == name)

    [secret] = {fields["secret"] for fields in owner.forms(page).values()}
    form = {"secret": secret, "job": "merge"}
    went_to(owner.send(f"{page}/pause", form))
    assert job()["paused"]
    runs = job()["runs"]
    went_to(owner.send(f"{page}/run", form))
    node.until(lambda: job()["runs"] > runs)
    went_to(owner.send(f"{page}/resume", form))
    assert not job()["paused"]
    for act in ("run", "pause", "resume"):
        assert owner.send(f"{page}/{act}", {**form, "job": SCRIPT}).status == 404
    went_to(owner.press(page, f"{page}/drain"))
    assert node.node.drain.active
    assert owner.data(page)["draining"]
    went_to(owner.press(page, f"{page}/drain"))
    assert not node.node.drain.active
    went_to(owner.send(f"{page}/parts", form))
    repaired = owner.press(page, f"{page}/repair")
    assert repaired.status in (303, 400, 409), repaired.data
    assert Visitor(node, "reader").forms(page) == {}


def test_the_page_of_a_node_tells_of_the_others(serve: Callable[..., Served]) -> None:
    ports = free_ports(2)
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    primary, replica = (serve(server_port=port, server_url=url, nodes_urls=urls)
                        for port, url in zip(ports, urls, strict=True))  # fmt: skip

    def other(node: Served) -> Any:
        [row] = Visitor(node).data("/console/jobs")["others"]
        return row

    primary.until(lambda: other(primary)["sound"])
    replica.until(lambda: other(replica)["sound"])
    assert (other(primary)["url"], other(primary)["role"], other(replica)["role"]) == (urls[1], "replica", "primary")
    assert f'href="{urls[1]}/console/jobs"'.encode() in primary.get("/console/jobs").body
    replica.close()
    primary.until(lambda: other(primary)["error"] is not None)
    assert b"last heard" in primary.get("/console/jobs").body


def test_days_of_events_are_compressed_and_dropped_by_forms(serve: Callable[..., Served]) -> None:
    node = serve()
    day = 86_400_000
    for back in (9, 5, 0):
        node.pond.events.append("etl", "night", [NewEvent(BEGIN - back * day, b"x", "new", {})])
    visitor, page = Visitor(node), "/console/events"
    assert visitor.press(page, f"{page}/compress", age="1d").status == 200
    assert visitor.press(page, f"{page}/compress", age="soon").status == 400
    for age, again in (("7d", ""), ("7d", "8d"), ("", "")):
        assert visitor.press(page, f"{page}/expire", age=age, typed=again).status == 400
    assert len(list(node.pond.events.read("etl", "night"))) == 3
    assert visitor.press(page, f"{page}/expire", age="7d", typed="7d").status == 200
    assert len(list(node.pond.events.read("etl", "night"))) == 2
