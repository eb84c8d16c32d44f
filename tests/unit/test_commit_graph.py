"""The drawing of commits: every commit once, and lines that hang together."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.cli.versions.graph import COMMIT, MERGE, Graph, Row

UP, DOWN, LEFT, RIGHT = "│┼├┤╯╰┴", "│┼├┤╮╭┬", "─┼┤╯╮┴┬", "─┼├╰╭┴┬"


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[str, tuple[str, ...]]]:
    """Commits, children mostly before parents, each with up to three parents among those that come later."""
    count = draw(st.integers(1, 14))
    commits = []
    for number in range(count):
        later = st.integers(number + 1, count - 1) if number + 1 < count else st.nothing()
        parents = draw(st.lists(later, max_size=3, unique=True)) if number + 1 < count else []
        commits.append((str(number), tuple(map(str, parents))))
    return commits


def drawn(commits: list[tuple[str, tuple[str, ...]]]) -> list[Row]:
    """All rows."""
    graph = Graph()
    return [row for commit, parents in commits for row in graph.add(commit, parents)]


@given(histories())
def test_each_commit_is_drawn_once_and_lines_hang_together(commits: list[tuple[str, tuple[str, ...]]]) -> None:
    rows = drawn(commits)
    assert [row.commit for row in rows if row.commit is not None] == [commit for commit, _ in commits]
    width = max(len(row.lines) for row in rows) + 1
    lines = ["".join(row.lines).ljust(width) for row in rows]
    for number, (row, line) in enumerate(zip(rows, lines, strict=True)):
        assert sum(line.count(mark) for mark in (COMMIT, MERGE)) == (row.commit is not None)
        below = lines[number + 1] if number + 1 < len(lines) else " " * width
        for at, letter in enumerate(line):
            assert (letter in RIGHT) == (at + 1 < width and line[at + 1] in LEFT), line
            if letter in DOWN:  # a line goes on below, or to a commit
                assert below[at] in UP + COMMIT + MERGE, (line, below)
            if letter in UP:
                above = lines[number - 1] if number else " " * width
                assert above[at] in DOWN + COMMIT + MERGE, (above, line)


@pytest.mark.usefixtures("processor")
@given(histories(), st.randoms(use_true_random=False))
def test_commits_in_any_order_are_drawn_once(commits: list[tuple[str, tuple[str, ...]]], order: object) -> None:
    order.shuffle(commits)  # type: ignore[attr-defined]
    assert sorted(row.commit for row in drawn(commits) if row.commit is not None) == sorted(name for name, _ in commits)


def test_a_merge_a_branch_and_three_parents() -> None:
    assert [row.lines for row in drawn([("m", ("a", "b")), ("b", ("r",)), ("a", ("r",)), ("r", ())])] == [
        "◎", "├─╮", "│ ●", "● │", "├─╯", "●",
    ]  # fmt: skip
    assert [row.lines for row in drawn([("m", ("a", "b", "c")), ("c", ("a",)), ("b", ("a",)), ("a", ())])] == [
        "◎", "├─┬─╮", "│ │ ●", "│ ● │", "├─┴─╯", "●",
    ]  # fmt: skip
