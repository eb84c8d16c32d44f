"""JSON that nests deep, or names what no route knows: an answer of ours from every route, and no lost connection."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.nodes.conftest import Served

pytestmark = pytest.mark.sample(6, of="file")

DEPTHS = (50, 600, 900, 980)


def texts(depth: int) -> list[str]:
    """Bodies that nest so deep."""
    nested = "[" * depth + "]" * depth
    objects = '{"a":' * depth + "1" + "}" * depth
    return [nested, objects, f'{{"name":"n","kind":"state","load_id":"x","where":{nested}}}']


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH"])
def test_json_that_nests_is_answered(node: Served, method: str) -> None:
    node.pond.create_map("m", kind="state", value="long", exist_ok=True)
    for path in [route.path for route in node.service.app.state.routes if route.method == method]:
        where = re.sub(r"\{[^}]*\}", "m", path)
        for depth in DEPTHS:
            for text in texts(depth):
                answer = node.request(method, where, body=text.encode(), headers={"Content-Type": "application/json"})
                assert answer.status != 500, (path, depth, text[:20])


@pytest.mark.parametrize(
    "body",
    [{"name": "n"}, {"self": 1}, {"overwrite": [[[1]]]}, {"overwrite": "[[["}, {"overwrite": 1}, {"retain": ["7d"]},
     {"condense": {"a": 1}}, {"retain_by": None}, {"condense_by": None}, {"retain_by": ["update_time"]},
     {"maintenance_suspended": "yes"}],
    ids=json.dumps,
)  # fmt: skip
def test_a_setting_that_is_none_is_refused_by_its_name(node: Served, body: dict[str, object]) -> None:
    node.pond.create_map("m", kind="temporal_state", value="long", exist_ok=True)
    answer = node.request("PATCH", "/v1/maps/m", body=json.dumps(body).encode(),
                          headers={"Content-Type": "application/json"})  # fmt: skip
    assert answer.status == 400, answer.body
    assert next(iter(body)) in answer.body.decode()
    assert node.pond.map("m").definition.retain_by == "effective_time"
