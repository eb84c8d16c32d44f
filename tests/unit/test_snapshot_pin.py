"""The place of a snapshot, as jobs carry it: whatever it names comes back, and nothing else is taken for one."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.client.snapshots.pin import SnapshotPin
from millpond.errors import Invalid

# The signs of URLs and of older forms, quotes, what JSON escapes, and letters of every kind.
ODD = st.text(
    st.one_of(st.sampled_from('#@/,"\\?&=%{}[] \n\x00é😀'), st.characters(exclude_categories=["Cs"])), min_size=1
)
PINS = st.builds(
    SnapshotPin,
    nodes=st.lists(st.one_of(ODD, st.sampled_from(["http://n1:7433", "https://[::1]:7433/a,b#c@4/subsets/x"])),
                   min_size=1, max_size=3).map(tuple),
    map=ODD, entry=st.integers(0, 2**63 - 1), subset=st.one_of(st.just(""), ODD),
    branch=st.one_of(st.just(""), ODD), ref=st.one_of(st.just(""), ODD),
)  # fmt: skip


@given(PINS)
def test_every_place_comes_back(pin: SnapshotPin) -> None:
    text = pin.to_json()
    assert SnapshotPin.from_json(text) == pin
    assert SnapshotPin.from_json(text).to_json() == text
    assert json.loads(text) == {
        "nodes": list(pin.nodes), "map": pin.map, "entry": pin.entry, "subset": pin.subset, "branch": pin.branch,
        "ref": pin.ref,
    }  # fmt: skip


@given(PINS, PINS)
def test_places_are_equal_when_their_forms_are(one: SnapshotPin, other: SnapshotPin) -> None:
    assert (one == other) == (one.to_json() == other.to_json())


def test_what_is_left_out_is_as_in_a_plain_place() -> None:
    assert SnapshotPin.from_json('{"nodes": ["http://n1"], "map": "m"}') == SnapshotPin(("http://n1",), "m")


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"until": 5}, "until"),
        ({"map": None}, "map"),
        ({"map": ""}, "under the name of a map"),
        ({"nodes": []}, "found at a node"),
        ({"nodes": "http://n1"}, "nodes"),
        ({"entry": -1}, "a snapshot is found"),
        ({"entry": "4"}, "entry"),
        ({"subset": 3}, "subset"),
    ],
)
def test_what_is_not_known_or_not_one_is_refused(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(Invalid, match=said) as refused:
        SnapshotPin.from_json(json.dumps({"nodes": ["http://n1"], "map": "m", **changed}))
    assert refused.value.kind == "snapshot_pin"
    assert refused.value.hint


@pytest.mark.parametrize("text", ["", "{", "[]", "http://localhost:7433#weather"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(Invalid, match="not the place of a snapshot"):
        SnapshotPin.from_json(text)
