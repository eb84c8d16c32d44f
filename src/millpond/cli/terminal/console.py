"""Console output: tables on standard output; notes and progress on standard error.

Notes and progress appear only on a terminal, so that a pipe and a log stay quiet. Off a terminal a table is as
wide as its content: nothing is cut.

Invariant: no control character of a name or a value reaches the terminal: what others wrote into a map, a stream or a
repository moves no cursor, and changes no title. Only the bytes of an object (`fs cat`) and files are as they are.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from millpond.sizes import human_bytes, human_count, human_span

if TYPE_CHECKING:
    from rich.console import Console

__all__ = (
    "Advance",
    "ShowStage",
    "Shown",
    "console",
    "done",
    "facts",
    "human_bytes",
    "human_count",
    "human_span",
    "neutral",
    "note",
    "print_facts",
    "print_json",
    "print_json_list",
    "print_table",
    "progress",
    "said",
    "say",
    "stages",
    "table",
    "tell",
    "unseen",
    "working",
)

_PIPE_COLUMNS = 2_000
_FIGURE = re.compile(r"-?[\d,.]+(%| [KMGT]?i?B)?")
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""Characters that a terminal obeys, but for the tab and the end of a line; and those that turn the text behind them."""


def neutral(text: str) -> str:
    r"""Text that a terminal shows and does not obey.

    >>> neutral("a\x1b[2Jb\tc")
    'a\\x1b[2Jb\tc'
    """
    return _CONTROLS.sub(lambda match: ascii(match[0])[1:-1], text)


def console(stream: TextIO | None = None) -> Console:
    """A console on standard output, or on `stream`."""
    from rich.console import Console

    stream = stream or sys.stdout
    return Console(file=stream, width=None if stream.isatty() else _PIPE_COLUMNS, highlight=False)


def print_json(value: Any) -> None:
    """One JSON object on one line."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    sys.stdout.write(_CONTROLS.sub(lambda match: f"\\u{ord(match[0]):04x}", text) + "\n")


def print_json_list(values: Iterable[Any]) -> None:
    """One JSON object a line; an empty list where there is none, so that nothing printed always means a failure."""
    count = 0
    for value in values:
        print_json(value)
        count += 1
    if not count:
        print_json([])


def say(text: str) -> None:
    """One line of result."""
    sys.stdout.write(neutral(text) + "\n")


@dataclass(frozen=True, slots=True)
class Shown:
    """The result of a command: as JSON, or as it is drawn on a terminal."""

    write: Callable[[], None]
    draw: Callable[[], None]

    def show(self, *, as_json: bool) -> None:
        """Show it in one of both ways."""
        (self.write if as_json else self.draw)()


def said(facts: Any, text: str) -> Shown:
    """The result of a command that has one line of text."""
    return Shown(lambda: print_json(facts), lambda: say(text))


def done(act: str, name: str) -> Shown:
    """The result of a command that did something to one thing."""
    return said({act: name}, f"{act} {name}")


def facts(value: dict[str, Any], shown: dict[str, Any] | None = None) -> Shown:
    """The facts about one thing; those that are `shown` may be in other words."""
    return Shown(lambda: print_json(value), lambda: print_facts(value if shown is None else shown))


def table(
    values: Iterable[Any], columns: Sequence[str], rows: Iterable[Sequence[Any]], *, nothing: str = "", **options: Any
) -> Shown:  # fmt: skip
    """Things, one a row; `nothing` is said where there is none, and options are those of `print_table`."""

    def draw() -> None:
        cells = list(rows)
        if nothing and not cells:
            say(nothing)
        else:
            print_table(columns, cells, **options)

    return Shown(lambda: print_json_list(values), draw)


def tell(text: str) -> None:
    """One line of what happens meanwhile, on standard error."""
    sys.stderr.write(neutral(text) + "\n")
    sys.stderr.flush()


def note(text: str) -> None:
    """Tell what is being done, on a terminal only."""
    if sys.stderr.isatty():
        console(sys.stderr).print(neutral(text), style="dim", markup=False)


def print_table(
    columns: Sequence[str], rows: Iterable[Sequence[Any]], *, title: str | None = None, whole: Collection[str] = (),
    spared: Collection[str] = (),
) -> None:  # fmt: skip
    """A table; figures stand right, None is left empty.

    What is in columns named in `whole` is never folded; columns named in `spared` are left out when they are empty.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    cells = [list(row) for row in rows]
    shown = [index for index, name in enumerate(columns) if name not in spared or any(row[index] for row in cells)]
    columns, cells = [columns[index] for index in shown], [[row[index] for index in shown] for row in cells]
    table = Table(title=title and Text(neutral(title)), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for index, name in enumerate(columns):
        numeric = all(_is_figure(row[index]) for row in cells)
        table.add_column(name, justify="right" if numeric else "left", overflow="fold", no_wrap=name in whole)
    for row in cells:
        table.add_row(*(Text("" if cell is None else neutral(_cell(cell))) for cell in row))
    console().print(table)


def _is_figure(cell: Any) -> bool:
    return cell is None or isinstance(cell, int | float) or _FIGURE.fullmatch(cell) is not None


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)


def print_facts(facts: dict[str, Any]) -> None:
    """Names and values, one a line, the values under each other."""
    width = max((len(name) for name in facts), default=0)
    for name, value in facts.items():
        if value is not None:
            say(f"{name:<{width}}  {_cell(value)}")


class Advance(Protocol):
    """Tell a progress bar that `count` more are done; `part` of its total, where that is measured otherwise."""

    def __call__(self, count: int, part: int | None = None, /) -> None: ...


@contextmanager
def progress(what: str, *, total: int | None = None, unit: str = "rows", quiet: bool = False) -> Iterator[Advance]:
    """Show how far something is, on a terminal: yields the function to call with how much more is done."""
    if quiet or not sys.stderr.isatty():
        yield unseen
        return
    from rich import progress as bars

    columns: list[bars.ProgressColumn] = [bars.SpinnerColumn(), bars.TextColumn("{task.description}")]
    if total is not None:
        columns += [bars.BarColumn(), bars.TaskProgressColumn(), bars.TimeRemainingColumn()]
    columns += [bars.TextColumn("{task.fields[rate]}"), bars.TimeElapsedColumn()]
    with bars.Progress(*columns, console=console(sys.stderr), transient=True) as bar:
        task = bar.add_task(what, total=total, rate="")
        counted = 0

        def advance(count: int, part: int | None = None, /) -> None:
            nonlocal counted
            counted += count
            elapsed = bar.tasks[task].elapsed or 0.0
            speed = f" · {counted / elapsed:,.0f} {unit}/s" if elapsed > 1 else ""
            bar.update(task, advance=count if part is None else part, rate=f"{counted:,} {unit}{speed}")

        yield advance


class ShowStage(Protocol):
    """Tell what work is at: its stage, the rows so far, and of how many tasks how many have ended."""

    def __call__(self, stage: str, rows: int, tasks: tuple[int, int] = (0, 0), /) -> None: ...


@contextmanager
def stages(*, quiet: bool = False) -> Iterator[ShowStage]:
    """Show the stages of work on a terminal: yields the function to call when something has changed."""
    if quiet or not sys.stderr.isatty():
        yield lambda _stage, _rows, _tasks=(0, 0), /: None
        return
    from rich import progress as bars

    columns = [bars.SpinnerColumn(), bars.TextColumn("{task.description}"), bars.TextColumn("{task.fields[figures]}")]
    with bars.Progress(*columns, bars.TimeElapsedColumn(), console=console(sys.stderr), transient=True) as bar:
        task = bar.add_task("starting", total=None, figures="")

        def show(stage: str, rows: int, tasks: tuple[int, int] = (0, 0), /) -> None:
            elapsed = bar.tasks[task].elapsed or 0.0
            figures = [f"{tasks[0]:,} of {tasks[1]:,} tasks"] if tasks[1] else []
            figures += [human_count(rows, "row")] if rows else []
            figures += [f"{rows / elapsed:,.0f} rows/s"] if rows and elapsed > 1 else []
            bar.update(task, description=stage, figures=" · ".join(figures))

        yield show


def unseen(_count: int, _part: int | None = None, /) -> None:
    """Nobody watches."""


@contextmanager
def working(what: str, *, quiet: bool = False) -> Iterator[None]:
    """Show that something is being done, and for how long, on a terminal: for work that does not count aloud."""
    with progress(what, quiet=quiet):
        yield
