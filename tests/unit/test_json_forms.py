"""One codec for every form: what is written is read, and nothing else is."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.errors import Corrupt
from millpond.json_forms import ABSENT, FormError, JsonForm, OtherFormat, format_of, parse_object, stable_json
from millpond.maps.log.log import Change
from millpond.maps.model.definition import Kind
from millpond.maps.snapshots.bounds import SnapshotBounds
from millpond.maps.snapshots.manifest import Layer as SnapshotLayer
from millpond.maps.snapshots.manifest import SnapshotManifest


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True, slots=True)
class Layer:
    index: str
    groups: int


@dataclass(frozen=True, kw_only=True)
class Form:
    name: str
    colour: Colour
    layers: tuple[Layer, ...]
    least: list[int] | None = None
    counts: dict[str, int] = field(default_factory=dict)
    top: Layer | None = None
    about: dict[str, Any] = field(default_factory=dict)
    bound: str | int | None = None


FORM = JsonForm(Form)
TEXT, LONGS = st.text(), st.integers(-(2**63), 2**63 - 1)
LAYERS = st.builds(Layer, TEXT, LONGS)
JSON = st.recursive(
    st.none() | st.booleans() | LONGS | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=5,
)
FORMS = st.builds(
    Form, name=TEXT, colour=st.sampled_from(Colour), layers=st.lists(LAYERS, max_size=3).map(tuple),
    least=st.none() | st.lists(LONGS, max_size=3), counts=st.dictionaries(TEXT, LONGS, max_size=3),
    top=st.none() | LAYERS, about=st.dictionaries(TEXT, JSON, max_size=3), bound=st.none() | TEXT | LONGS,
)  # fmt: skip


@pytest.mark.usefixtures("processor")
@given(FORMS)
def test_what_is_encoded_is_decoded_and_is_plain_json(form: Form) -> None:
    data = FORM.encode(form)
    assert FORM.decode(data) == FORM.stored(data, "", kind="") == form
    assert json.loads(data) == json.loads(json.dumps(asdict(form)))
    assert FORM.decode(json.dumps(asdict(form))) == FORM.build(json.loads(data)) == form


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"size": 1}, "unknown field `size`"),
        ({"layers": [{"index": "a", "groups": 1, "size": 2}]}, r"unknown field `size` - at `\$.layers\[0\]`"),
        ({"top": {"index": "a", "groups": 1, "size": 2}}, r"unknown field `size` - at `\$.top`"),
        ({"layers": [{"index": "a"}]}, "missing required field `groups`"),
        ({"name": 1}, r"Expected `str`, got `int` - at `\$.name`"),
        ({"colour": "green"}, r"Invalid enum value 'green' - at `\$.colour`"),
        ({"least": ["1"]}, r"Expected `int`, got `str`"),
    ],
)
def test_anything_else_is_refused_and_the_field_is_named(change: dict[str, Any], message: str) -> None:
    form = asdict(Form(name="n", colour=Colour.RED, layers=())) | change
    with pytest.raises(FormError, match=message):
        FORM.decode(json.dumps(form))
    with pytest.raises(FormError, match=message):
        FORM.build(form)


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"null", b"\xff", b"{}"])
def test_what_is_no_object_of_the_form_is_refused(data: bytes) -> None:
    with pytest.raises(FormError):
        FORM.decode(data)
    with pytest.raises(Corrupt) as caught:
        FORM.stored(data, "a row cannot be read", kind="row_damaged", hint="restore it", row="r")
    assert (caught.value.kind, caught.value.hint, caught.value.values["row"]) == ("row_damaged", "restore it", "r")
    assert isinstance(caught.value.values["reason"], FormError)


# --- numbers of formats


NUMBERED = JsonForm(Layer, format=3)
LAYER = Layer("a", 1)


def test_a_number_is_written_after_the_fields_and_compared_before_them() -> None:
    assert NUMBERED.encode(LAYER) == b'{"index":"a","groups":1,"format":3}'
    assert NUMBERED.decode(b'{"format": 3, "index": "a", "groups": 1}') == LAYER
    assert NUMBERED.build(NUMBERED.plain(LAYER)) == LAYER


@pytest.mark.parametrize(
    ("data", "found"),
    [(b'{"format": 4, "anything": [1]}', 4), (b'{"index": "a", "groups": 1}', None), (b'{"format": "3"}', "3")],
)
def test_another_number_is_named_whatever_else_is_there(data: bytes, found: object) -> None:
    for read in (lambda: NUMBERED.decode(data), lambda: NUMBERED.build(json.loads(data))):
        with pytest.raises(OtherFormat) as caught:
            read()
        assert caught.value.format == found


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"3", b'{"format": 3', b'{"format": 3, "index": "a", "groups": 1, "x": 1}']
)
def test_under_its_number_a_form_is_read_like_any(data: bytes) -> None:
    with pytest.raises(FormError) as caught:
        NUMBERED.decode(data)
    assert not isinstance(caught.value, OtherFormat)


def test_a_form_without_a_number_refuses_one() -> None:
    with pytest.raises(FormError, match="unknown field `format`"):
        JsonForm(Layer).decode(NUMBERED.encode(LAYER))


@dataclass(frozen=True, slots=True)
class Sparse:
    name: str
    value: Any = ABSENT


@pytest.mark.parametrize(
    ("form", "data"), [(Sparse("a"), b'{"name":"a"}'), (Sparse("a", None), b'{"name":"a","value":null}')]
)
def test_an_absent_field_is_not_null(form: Sparse, data: bytes) -> None:
    assert JsonForm(Sparse).encode(form) == data
    assert JsonForm(Sparse).decode(data) == form


# --- bytes that are hashed


def test_hashed_bytes_are_what_they_always_were() -> None:
    """Written down once: a pond's ids and chains are hashes of such bytes."""
    change = Change("load", ("m", "n"), {"source": "é\u2028", "rows": {"n": 2, "m": 1}, "stream": None, "parts": []})
    assert change.encode() == (
        b'{"body": {"parts": [], "rows": {"m": 1, "n": 2}, "source": "\\u00e9\\u2028", "stream": null}, '
        b'"kind": "load", "maps": ["m", "n"]}'
    )
    assert SnapshotBounds(lower="a", until=5).spec == "9df362d4f85f1356"
    manifest = SnapshotManifest(
        map="m", incarnation="i", kind=Kind.STATE, value="`é` long", hash_bits=64, shard_version=1, created_ms=2,
        layers=(SnapshotLayer("x", 1, 2),),
    )  # fmt: skip
    assert (
        manifest.to_bytes()
        == (
            '{"created_ms":2,"format":1,"hash_bits":64,"incarnation":"i","intervals":null,"kind":"state",'
            '"layers":[{"groups":1,"index":"x","size":2}],"map":"m","shard_version":1,"value":"`é` long"}'
        ).encode()
    )


@given(st.dictionaries(TEXT, JSON, max_size=4))
def test_stable_bytes_are_those_of_sorted_json(payload: dict[str, Any]) -> None:
    assert stable_json(payload) == json.dumps(payload, sort_keys=True).encode()
    compact = json.dumps(payload, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    assert stable_json(payload, compact=True) == compact
    assert parse_object(compact) == payload


@pytest.mark.parametrize("opening", [b"[", b'{"a":', b'{"format":1,"a":' + b"["])
def test_json_that_is_nested_too_deeply_is_no_form(opening: bytes) -> None:
    for read in (parse_object, format_of, JsonForm(SnapshotManifest).decode):
        with pytest.raises(FormError):
            read(opening * 100_000)


FIRST_AT_ONCE = """
import dataclasses, sys, threading
from millpond.json_forms import JsonForm

sys.setswitchinterval(1e-6)


def build(form, barrier):
    barrier.wait()
    form.build({"inner": {"a1": 1}, "more": [{}]})


for number in range(100):
    fields = [(f"a{field}", "int | None", None) for field in range(6)]
    inner = dataclasses.make_dataclass(f"Inner{number}", fields)
    outer = dataclasses.make_dataclass(f"Outer{number}", [("inner", inner), ("more", list[inner])])
    barrier = threading.Barrier(4)
    threads = [threading.Thread(target=build, args=(JsonForm(outer), barrier)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""


@pytest.mark.usefixtures("process")
def test_threads_may_be_the_first_to_use_a_form_at_once() -> None:
    done = subprocess.run([sys.executable, "-c", FIRST_AT_ONCE], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
