"""Drawings of workflows: nodes in layers, each below those that lead to it, and lines between them.

    nodes, edges ─▶ forward edges, and those that lead back ─▶ layers ─▶ places in each layer ─▶ SVG

Invariants:
* an edge that does not lead back goes to a later layer, and passes between the nodes of the layers that it crosses;
* no two nodes have one place.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from markupsafe import Markup

__all__ = ("Flow", "Layout", "flow_graph", "laid_out")

_WIDTH, _HEIGHT, _GAP, _ROW = 190, 34, 24, 66
_LETTERS_MAX = 24
_SWEEPS = 3
Edge = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Flow:
    """A graph to be drawn: the label and the state of each node, the first node first, and the edges."""

    title: str
    labels: Mapping[str, str]
    edges: Sequence[Edge]
    states: Mapping[str, str]
    """`good`, `bad` or `now` for nodes that have a state."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The layer and the place in it of each node; and of each edge that goes forward, the points that it passes."""

    positions: Mapping[str, tuple[int, float]]
    bends: Mapping[Edge, Sequence[tuple[int, float]]]
    back: Sequence[Edge]


def laid_out(nodes: Sequence[str], edges: Sequence[Edge]) -> Layout:
    """The places of nodes, of which the first is on top. Places count from the middle of a layer.

    >>> laid_out("abcd", [("a", "b"), ("a", "c"), ("b", "d"), ("c", "d"), ("d", "a")]).positions
    {'a': (0, 0.0), 'b': (1, -0.5), 'c': (1, 0.5), 'd': (2, 0.0)}
    """
    order, back = _order(nodes, edges)
    forward = [edge for edge in dict.fromkeys(edges) if edge not in back]
    layer = dict.fromkeys(order, 0)
    below: dict[str, list[str]] = {name: [] for name in order}
    for source, sink in forward:
        below[source].append(sink)
    for name in order:
        for sink in below[name]:
            layer[sink] = max(layer[sink], layer[name] + 1)
    # An edge that crosses layers has a point of its own in each, which takes part in the order as nodes do.
    paths = {
        (source, sink): [source, *((source, sink, between) for between in range(layer[source] + 1, layer[sink])), sink]
        for source, sink in forward
    }
    rows: list[list[object]] = [[] for _ in range(max(layer.values(), default=-1) + 1)]
    for name in nodes:
        rows[layer[name]].append(name)
    for path in paths.values():
        for point in path[1:-1]:
            rows[point[2]].append(point)  # type: ignore[index]
    _sort(rows, [pair for path in paths.values() for pair in pairwise(path)])
    middle = {
        point: (depth, index - (len(row) - 1) / 2) for depth, row in enumerate(rows) for index, point in enumerate(row)
    }
    bends = {edge: [middle[point] for point in path[1:-1]] for edge, path in paths.items()}
    return Layout({name: middle[name] for name in nodes}, bends, sorted(back))


def _order(nodes: Sequence[str], edges: Sequence[Edge]) -> tuple[list[str], set[Edge]]:
    """Nodes in an order in which edges go forward, but for those that lead back to a node on the way to them."""
    following: dict[str, list[str]] = {name: [] for name in nodes}
    for source, sink in edges:
        following[source].append(sink)
    done: list[str] = []
    back: set[Edge] = set()
    seen, open_ = set[str](), set[str]()
    for root in nodes:
        if root in seen:
            continue
        seen.add(root)
        open_.add(root)
        way = [(root, iter(following[root]))]
        while way:
            name, rest = way[-1]
            following_name = next(rest, None)
            if following_name is None:
                way.pop()
                open_.discard(name)
                done.append(name)
                continue
            sink = following_name
            if sink in open_:
                back.add((name, sink))
            elif sink not in seen:
                seen.add(sink)
                open_.add(sink)
                way.append((sink, iter(following[sink])))
    return done[::-1], back


def _sort(rows: list[list[object]], pairs: Sequence[tuple[object, object]]) -> None:
    """Bring each point of a row below the middle of those above it, then above the middle of those below it."""
    above: dict[object, list[object]] = {}
    below: dict[object, list[object]] = {}
    for upper, lower in pairs:
        above.setdefault(lower, []).append(upper)
        below.setdefault(upper, []).append(lower)
    for sweep in range(_SWEEPS):
        down = sweep % 2 == 0
        near, way = (above, range(1, len(rows))) if down else (below, range(len(rows) - 2, -1, -1))
        for depth in way:
            beside = rows[depth - 1 if down else depth + 1]
            index = {point: number - len(beside) / 2 for number, point in enumerate(beside)}
            row = rows[depth]
            own = {point: number - len(row) / 2 for number, point in enumerate(row)}

            def middle(point: object, own: dict[object, float] = own, index: dict[object, float] = index,
                       near: dict[object, list[object]] = near) -> float:  # fmt: skip
                joined = [index[other] for other in near.get(point, ()) if other in index]
                return sum(joined) / len(joined) if joined else own[point]

            row.sort(key=middle)


def flow_graph(flow: Flow) -> Markup:
    """The drawing of a graph."""
    layout = laid_out(list(flow.labels), flow.edges)
    points = [*layout.positions.values(), *(point for way in layout.bends.values() for point in way)]
    widest = max((abs(index) for _, index in points), default=0)
    width = (2 * widest + 1) * (_WIDTH + _GAP) + _GAP * (1 + bool(layout.back))
    height = _ROW * (max((depth for depth, _ in points), default=0) + 1) - (_ROW - _HEIGHT) + _GAP
    return Markup('<svg class="flow" width="{:.0f}" height="{}" role="img" aria-label="{}">{}</svg>').format(
        width, height, f"graph of {flow.title[: _LETTERS_MAX * 4]}", Markup("").join(_marks(flow, layout, widest))
    )


def _marks(flow: Flow, layout: Layout, widest: float) -> Iterator[Markup]:
    def at(point: tuple[int, float]) -> tuple[float, float]:
        return (point[1] + widest + 0.5) * (_WIDTH + _GAP) + _GAP / 2, point[0] * _ROW + _GAP / 2

    for (source, sink), bends in layout.bends.items():
        x, y = at(layout.positions[source])
        path = f"M{x:.0f} {y + _HEIGHT:.0f}"
        y += _HEIGHT
        for point in (*bends, layout.positions[sink]):
            to_x, to_y = at(point)
            path += f"C{x:.0f} {y + 16:.0f} {to_x:.0f} {to_y - 16:.0f} {to_x:.0f} {to_y:.0f}"
            x, y = to_x, to_y + (_HEIGHT if point in bends else 0)
            path += f"V{y:.0f}" if point in bends else ""
        yield Markup('<path d="{}"/>').format(path)
    for source, sink in layout.back:
        (x, y), (to_x, to_y) = at(layout.positions[source]), at(layout.positions[sink])
        side = max(x, to_x) + _WIDTH / 2
        path = f"M{x + _WIDTH / 2:.0f} {y + 12:.0f}C{side + 30:.0f} {y:.0f} {side + 30:.0f} {to_y + 30:.0f}"
        yield Markup('<path class="back" d="{}"/>').format(f"{path} {to_x + _WIDTH / 2:.0f} {to_y + 22:.0f}")
    for name, label in flow.labels.items():
        x, y = at(layout.positions[name])
        short = label if len(label) <= _LETTERS_MAX else f"{label[: _LETTERS_MAX - 1]}…"
        box = Markup('<rect class="{}" x="{:.0f}" y="{:.0f}" width="{}" height="{}" rx="6"/>')
        yield box.format(flow.states.get(name, ""), x - _WIDTH / 2, y, _WIDTH, _HEIGHT)
        yield Markup('<text x="{:.0f}" y="{:.0f}">{}</text>').format(x, y + 22, short)
