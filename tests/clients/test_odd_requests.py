"""Requests that no client sends: every route, with names, queries and bodies drawn at random. None is a fault of ours.

The routes are those that are declared, so one that is added later is tried as well.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millpond.server.lakefs.api import ROUTES
from millpond.server.lakefs.needs import PREFIX, REPOSITORY
from tests.clients.conftest import Answer, Server
from tests.clients.replay import Replay, lines
from tests.rings.sampling import examples

MUTATED = examples(2, 20)
EXAMPLES = examples(3, 60)
UNUSUAL = ["", "0", "-1", "9" * 30, "nan", "../x", "\x00", "\n", "ü", "{x}", "%", "main", "main~1", "main$", "a/", "*"]
TEXTS = st.one_of(st.sampled_from(UNUSUAL), st.text(st.characters(codec="utf-8"), max_size=12))
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXTS, inner, max_size=3)),
    max_leaves=6,
)
QUERIES = (
    "prefix", "after", "amount", "delimiter", "path", "dest_path", "ref", "type", "since", "stop_at", "objects",
    "limit", "force", "presign", "user_metadata", "show_hidden", "first_parent", "include_right_stats",
    "source_metarange", "id", "parts", "search", "no_tombstone",
)  # fmt: skip
FIELDS = (
    "name", "id", "ref", "source", "message", "metadata", "date", "allow_empty", "force", "hidden", "type", "path",
    "paths", "prefixes", "strategy", "resolutions", "take", "parent_number", "commit_overrides", "storage_namespace",
    "keys", "set", "src_path", "src_ref", "staging", "checksum", "size_bytes", "mtime", "content_type", "user_metadata",
    "physical_address", "commit", "default_retention_days", "branches", "deletions", "sealed_tokens", "dry_run",
    "access_key_id", "secret_access_key", "pattern", "parts",
)  # fmt: skip
HEADERS = ("If-Match", "If-None-Match", "Range", "Content-Type", "X-Lakefs-Meta-a", "Authorization")


def sound(server: Server, answer: Answer, request: object) -> None:
    """An answer that a client can act on."""
    assert answer.status < 500 or answer.status == 501, (request, answer.status, answer.body)
    assert str(server.folder).encode() not in answer.body, request
    if answer.status >= 400 and answer.body and answer.headers["content-type"] == "application/json":
        assert {"message", "reference"} & set(answer.json()), request


def paths(draw: st.DataObject, repository: str, template: str) -> Iterator[str]:
    """A path of a route: its names are the right ones, or odd."""
    for segment in template.split("/")[1:]:
        if segment[0] != "{":
            yield segment
        elif draw.draw(st.booleans()):
            yield quote(draw.draw(TEXTS), safe="") or "x"
        else:
            yield repository if segment == "{repository}" else draw.draw(st.sampled_from(["main", "main%24", "nope"]))


@pytest.mark.sample(20)
@pytest.mark.parametrize(
    ("method", "template"),
    [
        (route.method, route.path.removeprefix(PREFIX))
        for route in ROUTES
        if (route.method, route.path) != ("DELETE", PREFIX + REPOSITORY)
    ],
)
def test_no_request_is_answered_with_a_500(server: Server, repository: str, method: str, template: str) -> None:
    server.branch(repository).put("a/1", b"1")

    @settings(max_examples=EXAMPLES, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(draw=st.data())
    def tried(draw: st.DataObject) -> None:
        path = "/" + "/".join(paths(draw, repository, template))
        query = draw.draw(st.dictionaries(st.sampled_from(QUERIES), TEXTS, max_size=4))
        shaped = st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=8)
        payload = draw.draw(st.one_of(shaped, VALUES))
        body = json.dumps(payload).encode() if draw.draw(st.integers(0, 9)) else draw.draw(st.binary(max_size=30))
        drawn = draw.draw(st.dictionaries(st.sampled_from(HEADERS), TEXTS, max_size=1))
        headers = {name: value for name, value in drawn.items() if value.isascii() and value.isprintable()}
        url = f"{path}?{urlencode(query)}" if query else path
        sent = body if method != "GET" else None
        sound(server, server.call(method, url, sent, headers=headers), (method, url, headers, sent))

    tried()


# -- recorded requests, of which one part is odd ------------------------------------------------------


def mutated(draw: st.DataObject, case: dict[str, Any]) -> dict[str, Any]:
    """A recorded request with one odd part: a field of its body, a value of its query, a name of its path."""
    case = dict(case)
    if isinstance(case.get("json"), dict) and draw.draw(st.booleans()):
        fields = [*case["json"], *(draw.draw(st.sampled_from(FIELDS)) for _ in range(2))]
        case["json"] = {**case["json"], draw.draw(st.sampled_from(fields)): draw.draw(VALUES)}
        return case
    path, mark, query = case["path"].partition("?")
    if mark and draw.draw(st.booleans()):
        name = query.partition("=")[0]
        case["path"] = f"{path}?{urlencode({name: draw.draw(TEXTS), draw.draw(st.sampled_from(QUERIES)): '1'})}"
        return case
    segments = path.split("/")
    segments[draw.draw(st.integers(1, len(segments) - 1))] = quote(draw.draw(TEXTS), safe="") or "x"
    case["path"] = "/".join(segments) + mark + query
    return case


def test_no_recorded_request_with_an_odd_part_is_answered_with_a_500(server: Server) -> None:
    numbers = itertools.count()

    @settings(max_examples=MUTATED, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(draw=st.data())
    def tried(draw: st.DataObject) -> None:
        replay = Replay(server, f"odd-{next(numbers)}")
        for case in lines("requests.jsonl"):
            odd = draw.draw(st.integers(0, 4)) == 0 and case["case"] not in ("repository create", "delete repository")
            sent = mutated(draw, case) if odd else case
            sound(server, replay.send(sent), sent)

    tried()
