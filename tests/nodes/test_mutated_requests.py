"""Requests that nobody sends in earnest: whatever a caller sends, the node has an answer of its own, never a 500."""

from __future__ import annotations

import io
import json
from typing import Any
from urllib.parse import quote, urlencode

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.nodes.conftest import Answer, Served
from tests.rings.sampling import examples

pytestmark = pytest.mark.sample(1, of="file")

EXAMPLES = examples(4, 12)
"""Of each route. Most defects show in the first few."""
FINE = 500
KEYS = ["a", "b", None, "a"]

TEXTS = st.one_of(
    st.sampled_from(["", "m", "M", "merge", "0", "-1", "0" * 32, "9" * 30, "nan", "1e999", "../x", "\x00", "\n", "ü"]),
    st.text(st.characters(codec="utf-8"), max_size=20),
)  # fmt: skip
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXTS, inner, max_size=3)),
    max_leaves=6,
)


@pytest.fixture
def odd(serve: Any) -> Served:
    node: Served = serve()
    for name, kind in (("m", "state"), ("t", "temporal_state"), ("r", "ranged_state")):
        node.pond.create_map(name, kind=kind, value="long")
    node.pond.map("m").load([{"key": "a", "value": 1}])
    return node


def described(node: Served) -> list[tuple[str, str, dict[str, Any], list[str]]]:
    """Every operation of the OpenAPI description, with the fields of its JSON body."""
    document = node.get("/openapi.json").json()
    return [
        (verb.upper(), path, operation, body_fields(document["components"]["schemas"], operation))
        for path, verbs in sorted(document["paths"].items())
        for verb, operation in verbs.items()
    ]


def body_fields(schemas: dict[str, Any], operation: dict[str, Any]) -> list[str]:
    content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
    reference = content.get("schema", {}).get("$ref", "")
    return list(schemas.get(reference.rpartition("/")[2], {}).get("properties", ()))


def sound(node: Served, answer: Answer, request: object) -> None:
    """An answer that a caller can act on."""
    if answer.status >= FINE:
        assert answer.status in (503, 507), (request, answer.status, answer.body)
    assert str(node.pond.folder).encode() not in answer.body, request
    if answer.status == 503 and "reasons" in answer.json():
        assert set(answer.json()) == {"ready", "reasons"}, request  # /readyz
    elif answer.status >= 400 and answer.body:
        standard = {"error", "error_description"}  # of OAuth 2.0
        ours = {"error", "kind", "message", "hint", "values"}
        assert set(answer.json()) in ((ours, standard) if "/v1/oauth/token" in str(request) else (ours,)), request


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), database=None)
@given(draw=st.data())
def everything(node: Served, operations: list[tuple[str, str, dict[str, Any], list[str]]], draw: st.DataObject) -> None:
    node.post("/v1/nodes/drain", {"draining": False})  # a request of the example before may have drained it
    for method, template, operation, fields in operations:
        path, query, headers = template, {}, {}
        for parameter in operation.get("parameters", ()):
            value = draw.draw(TEXTS)
            if parameter["in"] == "path":
                path = path.replace(f"{{{parameter['name']}}}", quote(value or "m", safe=""))
            elif parameter["name"] in ("wait", "timeout"):
                query[parameter["name"]] = "0"
            elif parameter["in"] == "query" and draw.draw(st.booleans()):
                query[parameter["name"]] = value
            elif parameter["in"] == "header" and value.isascii() and value.isprintable():
                headers[parameter["name"]] = value
        body: bytes | None = None
        if "requestBody" in operation:
            shaped = st.fixed_dictionaries({}, optional=dict.fromkeys(fields, VALUES))
            payload = draw.draw(st.one_of(shaped, VALUES))
            if isinstance(payload, dict) and "timeout" in payload:
                payload["timeout"] = 0
            body = json.dumps(payload).encode() if draw.draw(st.integers(0, 9)) else draw.draw(st.binary(max_size=30))
            headers["Content-Type"] = "application/json"
        if template.endswith(("/repair", "/verify")):
            continue  # they read all there is
        url = f"{path}?{urlencode(query)}" if query else path
        sound(node, node.request(method, url, body=body, headers=headers), (method, url, headers, body))


def test_no_request_is_answered_with_a_500(odd: Served) -> None:
    everything(odd, described(odd))


@pytest.mark.parametrize("position", [-1, 1 << 63, 1 << 70])
def test_a_status_of_a_peer_is_a_position_of_a_log(odd: Served, position: int) -> None:
    facts = odd.get("/v1/node").json()
    status = {"url": "http://x", "pond": facts["pond"], "chain": "", "sound": True, "clock_ms": 0}
    assert odd.post("/v1/nodes/status", {**status, "position": position}).status == 400


# -- Arrow --------------------------------------------------------------------------------------------


def stream(*batches: pa.RecordBatch, **options: Any) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, batches[0].schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return sink.getvalue()


def batch(keys: pa.Array, at: pa.Array | None = None) -> pa.RecordBatch:
    columns = {"key": keys} if at is None else {"key": keys, "at": at}
    return pa.RecordBatch.from_pydict(columns)


def odd_arrays() -> dict[str, pa.Array]:
    plain = pa.array(KEYS)
    words = plain.dictionary_encode()
    return {
        "run ends": pa.RunEndEncodedArray.from_arrays(pa.array([2, 4], pa.int32()), pa.array(["a", "b"])),
        "run ends of nulls": pa.RunEndEncodedArray.from_arrays(pa.array([4], pa.int16()), pa.nulls(1, pa.string())),
        "dictionary": words,
        "dictionary of run ends": pa.RunEndEncodedArray.from_arrays(pa.array([4], pa.int64()), words.slice(0, 1)),
        "dense union": pa.UnionArray.from_dense(
            pa.array([0, 1], pa.int8()), pa.array([0, 0], pa.int32()), [pa.array(["a"]), pa.array([1])]
        ),
        "sparse union": pa.UnionArray.from_sparse(
            pa.array([0, 1], pa.int8()), [pa.array(["a", "b"]), pa.array([1, 2])]
        ),
        "nulls": pa.nulls(4),
        "view": plain.cast(pa.string_view()),
        "binary view": plain.cast(pa.binary()).cast(pa.binary_view()),
        "large": plain.cast(pa.large_string()),
        "fixed binary": pa.array([b"ab", None], pa.binary(2)),
        "list": pa.array([["a"], None]),
        "list view": pa.array([["a"], None], pa.list_view(pa.string())),
        "map": pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64())),
        "struct": pa.array([{"a": "b"}, None]),
        "empty struct": pa.array([{}], pa.struct([])),
        "decimal": pa.array([1, None], pa.decimal128(5, 2)),
        "wide decimal": pa.array([1], pa.decimal256(50, 2)),
        "bool": pa.array([True, None]),
        "double": pa.array([1.5, float("nan"), float("inf")]),
        "half": pa.array([1.5], pa.float16()),
        "unsigned": pa.array([2**64 - 1], pa.uint64()),
        "duration": pa.array([1], pa.duration("ns")),
        "interval": pa.array([(1, 2, 3)], pa.month_day_nano_interval()),
        "time": pa.array([1], pa.time64("ns")),
        "date": pa.array([1], pa.date32()),
        "naive": pa.array([1], pa.timestamp("s")),
        "far away": pa.array([2**62], pa.timestamp("s", "UTC")),
        "empty": pa.array([], pa.string()),
    }  # fmt: skip


def test_every_type_of_arrow_has_an_answer(odd: Served) -> None:
    """As keys and as times, of maps whose keys are text and numbers."""
    for what, array in odd_arrays().items():
        for name in ("m", "t", "r"):
            bodies = [stream(batch(array))]
            keys = pa.array(["a"] * len(array)) if name != "r" else pa.array([1] * len(array), pa.int64())
            bodies.append(stream(batch(keys, array)))
            for body in bodies:
                answer = odd.post(f"/v1/maps/{name}/lookup", body)
                sound(odd, answer, (what, name))
                assert answer.status != 503, (what, name, answer.body)


def test_dictionaries_that_grow_are_read(odd: Served) -> None:
    first = pa.DictionaryArray.from_arrays(pa.array([0], pa.int8()), pa.array(["a"]))
    longer = pa.DictionaryArray.from_arrays(pa.array([1, 0], pa.int8()), pa.array(["a", "b"]))
    other = pa.DictionaryArray.from_arrays(pa.array([0], pa.int8()), pa.array(["x"]))
    for deltas in (True, False):
        body = stream(batch(first), batch(longer), emit_dictionary_deltas=deltas)
        answer = odd.post("/v1/maps/m/lookup", body)
        assert answer.status == 200, answer.body
        found = pa.ipc.open_stream(answer.body).read_all().column("value").to_pylist()
        assert found == [1, None, 1]
        sound(odd, odd.post("/v1/maps/m/lookup", stream(batch(first), batch(other))), "replaced")


@settings(max_examples=examples(15, 60), deadline=None, suppress_health_check=list(HealthCheck), database=None)
@given(draw=st.data())
def mutated(node: Served, draw: st.DataObject) -> None:
    words = pa.array(KEYS).dictionary_encode()
    whole = bytearray(stream(batch(words), batch(words[::-1])))
    for _ in range(draw.draw(st.integers(0, 3))):
        at = draw.draw(st.integers(0, len(whole) - 1))
        noise = draw.draw(st.binary(min_size=1, max_size=8))
        whole[at : at + len(noise)] = noise
    body = bytes(whole[: draw.draw(st.integers(0, len(whole)))])
    sound(node, node.post("/v1/maps/m/lookup", body), body)


def test_no_noise_in_an_arrow_stream_gets_through(odd: Served) -> None:
    mutated(odd)
