"""Drawings of workflows: any graph gets places of its own, layer below layer, and names are text."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from millpond.console.flows import Flow, flow_graph, laid_out

NAMES = [f"{number}-n" for number in range(12)]
EDGES = st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(NAMES)), max_size=40)


@given(EDGES)
def test_edges_lead_down_unless_they_lead_back(edges: list[tuple[str, str]]) -> None:
    layout = laid_out(NAMES, edges)
    assert layout.positions.keys() == {*NAMES}
    points = [*layout.positions.values(), *(point for way in layout.bends.values() for point in way)]
    assert len({*points}) == len(points)
    assert {*layout.bends, *layout.back} == {*edges} and not {*layout.bends} & {*layout.back}
    for (source, sink), bends in layout.bends.items():
        depths = [layout.positions[source][0], *(depth for depth, _ in bends), layout.positions[sink][0]]
        assert depths == list(range(depths[0], depths[-1] + 1)) and len(depths) > 1
    for source, sink in layout.back:  # without it there is a way from its end to its begin
        assert source in reached(sink, {edge for edge in edges if edge != (source, sink)})


def reached(begin: str, edges: set[tuple[str, str]]) -> set[str]:
    there = {begin}
    while more := {sink for source, sink in edges if source in there} - there:
        there |= more
    return there


def test_names_are_text_and_large_graphs_are_drawn() -> None:
    names = ["<script>", "\u202eevil", '"', "k" * 1_000, *(f"n{number}" for number in range(2_000))]
    page = flow_graph(Flow("<b>", {name: name for name in names}, [*zip(names, names[1:])], {names[0]: "bad"}))  # noqa: B905, RUF007
    assert page.count("<rect") == page.count("<text") == len(names)
    assert "<script>" not in page and "<b>" not in page and len(page) < 300 * len(names)
