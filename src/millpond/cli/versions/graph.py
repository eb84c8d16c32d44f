"""The graph of commits, drawn with lines: one row a commit, and rows between where lines part or meet.

    ● 9c1d  Merge 'fix' into 'main'
    ├─╮
    │ ● 77aa  Mend January
    ● │ 5e02  February
    ├─╯
    ● 11ff  January

Each lane waits for one commit: the parent of the commit above. A commit is drawn in the first lane that waits for it,
and the others that do end there. Its first parent takes its lane, each other parent a free one.

Invariants:
* A lane moves nowhere: a line is straight from where it begins to where it ends.
* A commit whose children come after it, for clocks differ, is drawn once; lines to it from below it end where they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

__all__ = ("Graph", "Row")

COMMIT, MERGE = "●", "◎"


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the drawing; `commit` is the id of the commit in it, None for a row of lines alone."""

    lines: str
    commit: str | None = None


@dataclass(slots=True)
class Graph:
    """The drawing so far: what each lane waits for."""

    lanes: list[str | None] = field(default_factory=list)
    drawn: set[str] = field(default_factory=set)

    def add(self, commit: str, parents: tuple[str, ...]) -> Iterator[Row]:
        """The rows of the next commit of a log."""
        ends = [at for at, lane in enumerate(self.lanes) if lane == commit]
        index = ends[0] if ends else self._free(())
        if len(ends) > 1:
            yield Row(self._joint(index, ends[1:], "╯", "┴"))
            for at in ends[1:]:
                self.lanes[at] = None
        self.lanes[index] = commit
        self.drawn.add(commit)
        yield Row(self._points(index, MERGE if len(parents) > 1 else COMMIT), commit)
        coming = [parent for parent in parents if parent not in self.drawn]
        self.lanes[index] = coming[0] if coming else None
        opened, joined = [], []
        for parent in coming[1:]:
            if parent in self.lanes:
                joined.append(self.lanes.index(parent))
            else:
                at = self._free((index,))
                self.lanes[at] = parent
                opened.append(at)
        if opened or joined:
            yield Row(self._branching(index, opened, joined))
        while self.lanes and self.lanes[-1] is None:
            self.lanes.pop()

    def _free(self, taken: tuple[int, ...]) -> int:
        """A lane that nothing waits in: one to the right of `taken`, if any is."""
        for at, lane in enumerate(self.lanes):
            if lane is None and all(at > other for other in taken):
                return at
        self.lanes.append(None)
        return len(self.lanes) - 1

    def _points(self, index: int, mark: str) -> str:
        return " ".join(
            mark if at == index else " " if lane is None else "│" for at, lane in enumerate(self.lanes)
        ).rstrip()

    def _joint(self, index: int, ends: list[int], last: str, inner: str) -> str:
        """Lanes that end in the lane `index`, which lies left of them."""
        return self._across(index, dict.fromkeys(ends, inner) | {max(ends): last})

    def _branching(self, index: int, opened: list[int], joined: list[int]) -> str:
        """Lanes that begin in the lane `index`, and lanes that it leads to."""
        marks: dict[int, str] = {}
        for at in opened:
            marks[at] = "╮" if at > index else "╭"
        for at in joined:
            marks[at] = "┤" if at > index else "├"
        edge = max(marks), min(marks)
        for at in marks:
            if at not in edge or (at == edge[1] > index and at != edge[0]) or (at == edge[0] < index and at != edge[1]):
                marks[at] = "┬" if at in opened else "┼"
        return self._across(index, marks)

    def _across(self, index: int, marks: dict[int, str]) -> str:
        """A row with a line from the lane `index` to the outermost of the marks."""
        low, high = min(index, *marks), max(index, *marks)
        stands = self.lanes[index] is not None
        cells = []
        for at, lane in enumerate(self.lanes):
            across = low < at < high
            if at == index:
                cell = ("┼" if low < at < high else "├" if at == low else "┤") if stands else "╰"
            elif at in marks:
                cell = marks[at]
            elif lane is not None:
                cell = "┼" if across else "│"
            else:
                cell = "─" if across else " "
            cells.append(cell + ("─" if low <= at < high else " "))
        return "".join(cells).rstrip()
