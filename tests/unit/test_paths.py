"""Paths: what stands at a path is what the best template of those that fit says."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.server.paths import Paths

SEGMENTS = ["a", "b", "c", "{x}", "{y}"]
templates = st.lists(
    st.tuples(st.lists(st.sampled_from(SEGMENTS), max_size=4), st.sampled_from([[], ["{rest:path}"]])), max_size=8
).map(lambda drawn: ["".join(f"/{segment}" for segment in (*front, *end)) for front, end in drawn])
paths = st.lists(st.sampled_from(["a", "b", "c", "d", "", "x/y", "é%", "{x}"]), max_size=5)


def fit(template: str, segments: list[str]) -> tuple[list[int], list[str]] | None:
    """The kinds of a template's segments, best first, and the names that a path gives; None when it does not fit."""
    kinds, names = list[int](), list[str]()
    own = template.split("/")[1:]
    for place, segment in enumerate(own):
        if segment.endswith(":path}"):
            rest = "/".join(segments[place:])
            return ([*kinds, 2], [*names, rest]) if rest else None
        if place >= len(segments):
            return None
        if segment.startswith("{") and segments[place]:
            kinds.append(1)
            names.append(segments[place])
        elif segment == segments[place]:
            kinds.append(0)
        else:
            return None
    return (kinds, names) if len(own) == len(segments) else None


@given(templates, paths)
def test_a_path_is_that_of_its_best_template(listed: list[str], segments: list[str]) -> None:
    table: Paths[set[int]] = Paths()
    for template in listed:
        fitting = fit(template, segments)
        table.at(template).setdefault("GET", set()).add(0)
        assert table.at(template)["GET"] == {0}, fitting
    best = min((fitting for template in listed if (fitting := fit(template, segments))), default=None)
    methods, names = table.find("".join(f"/{quote(segment, safe='')}" for segment in segments))
    assert bool(methods) is (best is not None)
    if best is not None:
        assert names == best[1]


@pytest.mark.parametrize("path", ["", "/", "//", "/a/", "a"])
def test_no_name_is_empty(path: str) -> None:
    table: Paths[int] = Paths()
    for template in ("/{x}", "/a/{y}", "/b/{z:path}"):
        table.at(template)["GET"] = 1
    assert not table.find(path)[0]
