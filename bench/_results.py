"""Results of benchmarks as data: the figures of a claim, its rivals, and the machine.

    bench/<script>.py ──▶ Run ──▶ bench/results/<claim>.json    a whole run: what the page and its charts are made of
                              └─▶ build/bench/<claim>.json      a smaller one (`--quick`, a part): to try, to compare

Invariants of a file:
* it satisfies `bench/results/schema.json`, which is made from the structs below;
* a figure is the median of its repetitions, in the unit itself (seconds, not milliseconds), with the least and the most
  where they are known;
* within a task and a size, the first way is Millpond's, and a ratio says how many times better it is than another;
* nothing names the machine: its shape counts, and neither its name nor its paths.

    PYTHONPATH=. python bench/_results.py            the schema
    PYTHONPATH=. python bench/_results.py --write    bench/results/schema.json anew
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal

import msgspec

__all__ = (
    "OURS", "Figure", "Load", "Machine", "Result", "Rival", "Run", "Unit", "counted", "machine", "program_version",
    "ratio", "read_result", "read_results", "schema", "version",
)  # fmt: skip

ROOT = Path(__file__).parents[1]
FOLDER, TRIALS = Path("bench", "results"), Path("build", "bench")
SCHEMA = ROOT / FOLDER / "schema.json"
OURS = "Millpond"

Unit = Literal["s", "/s", "B", "blocks", "requests"]
"""Seconds, things a second, bytes, blocks read, requests to a bucket. Of things a second more are better; of all else
fewer.
"""


class Rival(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A program that is measured in the same run, and its version."""

    name: str
    version: str


class Machine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The shape of a machine, and what it runs on."""

    cores: int
    memory_gib: int
    processor: str
    system: str
    python: str


class Load(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The machine's load averages of a minute, before and after a run. A run itself adds to the second."""

    start: float
    end: float


class Figure(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """One way of doing a task, measured; `min`, `max` and `repetitions` are absent where they were not recorded."""

    task: str
    way: str
    unit: Unit
    median: float
    min: float | None = None
    max: float | None = None
    repetitions: int | None = None
    size: str = ""
    """The size of the task, where a claim measures several."""
    things: int | None = None
    """The rows, keys or events that the seconds are for."""

    @property
    def ours(self) -> bool:
        """True for a way of Millpond's."""
        return self.way.startswith(OURS)

    @property
    def key(self) -> tuple[str, str, str]:
        """Task, size and way: the figure of another run is found by them."""
        return self.task, self.size, self.way

    @property
    def span(self) -> tuple[float, float]:
        """The least and the most; the median twice where they are not known."""
        return (self.median if self.min is None else self.min), (self.median if self.max is None else self.max)

    @property
    def spread_known(self) -> bool:
        """True when more than one repetition says how far figures lie apart."""
        return self.min is not None and self.max is not None and self.repetitions != 1


Name = Annotated[str, msgspec.Meta(pattern=r"^[a-z][a-z_]*$")]
Date = Annotated[str, msgspec.Meta(pattern=r"^\d{4}-\d\d-\d\d$")]
Commit = Annotated[str, msgspec.Meta(pattern=r"^([0-9a-f]{12}(-changed)?|unknown)$")]


class Result(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """One run of a claim."""

    claim: Name
    date: Date
    commit: Commit
    recorded: Literal["by its script", "migrated from the page"]
    machine: Machine
    load: Load | None
    """None for a run whose load was not recorded."""
    sizes: dict[str, int]
    rivals: tuple[Rival, ...]
    figures: tuple[Figure, ...]
    note: str = ""
    """The circumstances of this run, such as other work on the machine."""

    def ours(self, task: str, size: str) -> Figure | None:
        """Millpond's figure of a task: the first of its ways."""
        return next((one for one in self.figures if one.ours and (one.task, one.size) == (task, size)), None)


def ratio(ours: Figure, theirs: Figure) -> float:
    """The number of times that the first is better: above 1 Millpond is ahead.

    >>> fast, slow = (Figure(task="get", way=way, unit="s", median=s) for way, s in (("Millpond", 2.0), ("other", 3.0)))
    >>> ratio(fast, slow)
    1.5
    """
    assert ours.unit == theirs.unit, (ours, theirs)
    better, worse = (ours, theirs) if ours.unit == "/s" else (theirs, ours)
    return better.median / worse.median


def read_result(file: Path) -> Result:
    """The result in a file.

    Raises: `msgspec.ValidationError` when it does not satisfy the schema.
    """
    return msgspec.json.decode(file.read_bytes(), type=Result)


def read_results(folder: Path = ROOT / FOLDER) -> dict[str, Result]:
    """All results of a folder, by claim."""
    return {file.stem: read_result(file) for file in sorted(folder.glob("*.json")) if file.name != SCHEMA.name}


def write_result(result: Result, folder: Path) -> Path:
    """Write a result; the file is named after its claim."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{result.claim}.json"
    text = msgspec.json.format(msgspec.json.encode(result), indent=1).decode()
    # A figure on one line: a change of one is a change of one line.
    text = re.sub(r'\{\n\s+("(?:task|name)".*?)\n\s+\}', _on_one_line, text, flags=re.DOTALL)
    file.write_text(text + "\n", encoding="utf-8")
    return file


def _on_one_line(found: re.Match[str]) -> str:
    return "{" + re.sub(r"\n\s+", " ", found[1]) + "}"


def schema() -> str:
    """The JSON Schema of a file of results."""
    return msgspec.json.format(msgspec.json.encode(msgspec.json.schema(Result)), indent=1).decode() + "\n"


class Run:
    """A run of one claim by its script: figures are noted while it goes on, and written at its end."""

    def __init__(self, claim: str, root: Path = ROOT) -> None:
        self.claim, self.root = claim, root
        self._figures: list[Figure] = []
        self._start = os.getloadavg()[0]

    def note(
        self, task: str, way: str, values: float | Sequence[float], *, unit: Unit = "s", size: str = "",
        things: int | None = None,
    ) -> None:  # fmt: skip
        """Note the repetitions of one way of doing a task; the first way of a task is Millpond's."""
        found = [float(value) for value in values] if isinstance(values, Sequence) else [float(values)]
        self._figures.append(
            Figure(
                task=task, way=way, unit=unit, median=_rounded(statistics.median(found)), min=_rounded(min(found)),
                max=_rounded(max(found)), repetitions=len(found), size=size, things=things,
            )
        )  # fmt: skip

    def cite(self, task: str, way: str, value: float, *, unit: Unit = "s", size: str = "") -> None:
        """Note a figure that is not measured in this run: it has no spread."""
        self._figures.append(Figure(task=task, way=way, unit=unit, median=_rounded(value), size=size))

    def write(self, rivals: Mapping[str, str] | None = None, *, whole: bool, note: str = "", **sizes: int) -> None:
        """Write what was noted, and print where; a run that is not whole leaves the published results alone.

        `rivals` are programs with their versions; `sizes` the numbers that the figures depend on.
        """
        if not self._figures:
            return
        programs = tuple(Rival(name, found) for name, found in (rivals or {}).items())
        result = Result(
            claim=self.claim, date=datetime.now(UTC).date().isoformat(), commit=commit(), recorded="by its script",
            machine=machine(), load=Load(round(self._start, 1), round(os.getloadavg()[0], 1)), sizes=dict(sizes),
            rivals=programs, figures=tuple(self._figures), note=note,
        )  # fmt: skip
        file = write_result(result, self.root / (FOLDER if whole else TRIALS))
        print(f"\nresults: {file.relative_to(self.root)}", file=sys.stderr)


def counted(number: int, thing: str) -> str:
    """A number of things.

    >>> counted(1, "client"), counted(2_000, "client")
    ('1 client', '2,000 clients')
    """
    return f"{number:,} {thing}" if number == 1 else f"{number:,} {thing}s"


def _rounded(value: float) -> float:
    """Four digits that count: no benchmark knows more."""
    return float(f"{value:.4g}")


# -- machine, commit, versions -----------------------------------------------------------------------------


def machine() -> Machine:
    """The machine that this runs on."""
    return Machine(
        cores=os.cpu_count() or 1,
        memory_gib=round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)),
        processor=_processor(),
        system=_system(),
        python=f"{sys.version_info.major}.{sys.version_info.minor}",
    )


def _processor() -> str:
    found = re.search(r"^model name\s*:\s*(.*)$", _text(Path("/proc/cpuinfo")), re.MULTILINE)
    return found[1].strip() if found else platform.machine()


def _system() -> str:
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except OSError:
        return platform.system()


def _text(file: Path) -> str:
    return file.read_text(encoding="utf-8", errors="replace") if file.exists() else ""


def commit() -> str:
    """The commit that is measured; `-changed` behind it where the code differs from it, `unknown` outside of git."""
    head = _output("git", "-C", str(ROOT), "rev-parse", "--short=12", "HEAD").strip()
    if not head:
        return "unknown"
    changed = _output("git", "-C", str(ROOT), "status", "--porcelain", "--", "src", "bench/*.py")
    return f"{head}-changed" if changed.strip() else head


def version(package: str) -> str:
    """The version of a Python package."""
    return importlib.metadata.version(package)


def program_version(*command: str) -> str:
    """The first number with a dot that a program says of itself."""
    found = re.search(r"\d+(?:\.\d+)+", _output(*command))
    return found[0] if found else "unknown"


def _output(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout + (done.stderr if done.returncode == 0 else "")


if __name__ == "__main__":
    if "--write" in sys.argv:
        SCHEMA.parent.mkdir(exist_ok=True)
        SCHEMA.write_text(schema(), encoding="utf-8")
    else:
        sys.stdout.write(schema())
