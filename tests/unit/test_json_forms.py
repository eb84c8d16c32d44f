"""One codec for every form: what is written is read, and nothing else is."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.json_forms import FormError, JsonForm


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


@given(FORMS)
def test_what_is_encoded_is_decoded_and_is_plain_json(form: Form) -> None:
    data = FORM.encode(form)
    assert FORM.decode(data) == form
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
