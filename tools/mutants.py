"""Mutants: small mistakes put into the code one at a time; the rings of tests that find them.

    tools/setup mutants && .venv/mutants/bin/python tools/mutants.py --count 60 --seed 1 --report mutants.json

A sample of all mutants of the packages below is drawn by a seed. Each is tried in a copy of the checkout, by the unit
ring first; one that it leaves alive, by the tests of its package in the ring `test`; then by those of the ring `full`.
A mutant that is alive at the end stands in the report with its line: a test is missing there, or the line is equal to
what it was.
"""

from __future__ import annotations

import argparse
import ast
import json
import random
import shutil
import subprocess
import tempfile
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

from cosmic_ray.ast import Visitor, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator, operator_names

ROOT = Path(__file__).parents[1]
SECONDS_MAX = 900
LEFT_OUT = ("RemoveDecorator", "Variable", "NoOp", "ExceptionReplacer", "ReplaceUnaryOperator_U")
"""Operators that change no meaning, or make code that no interpreter accepts."""


@dataclass(frozen=True)
class Package:
    """Modules that are mutated, and the folders or words of the tests that speak of them."""

    modules: str
    tests: tuple[str, ...]


PACKAGES = (
    Package("kernel/*.py", ("tests/unit", "tests/models", "tests/contracts")),
    Package("ranges/*.py", ("tests/unit", "tests/models", "tests/contracts", "tests/crash")),
    Package("versions/merge*.py", ("tests/unit", "tests/models", "tests/contracts", "tests/clients")),
    Package("maps/search/*.py", ("tests/unit", "tests/models", "tests/contracts")),
    Package("workflows/engine/*.py", ("tests/unit", "tests/models", "tests/simulation", "tests/workflows")),
)
RINGS = ("unit", "test", "full")


@dataclass(frozen=True)
class Mutant:
    """One changed place."""

    path: str
    line: int
    operator: str
    occurrence: int
    before: str


class _Places(Visitor):
    def __init__(self, operator: object) -> None:
        self.operator, self.lines = operator, list[int]()

    def visit(self, node: object) -> object:
        self.lines += [start[0] for start, _ in self.operator.mutation_positions(node)]  # type: ignore[attr-defined]
        return node


def _lines_without_meaning(text: str) -> set[int]:
    """The lines of annotations, of imports, and of names that are listed: to change them changes nothing."""
    lines: set[int] = set()

    def leave(node: ast.AST | None) -> None:
        if node is not None:
            lines.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))  # type: ignore[attr-defined]

    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                # its head: from the name to the first statement
                lines.update(range(node.lineno, node.body[0].lineno))
            case ast.AnnAssign():
                leave(node.annotation)
            case ast.Import() | ast.ImportFrom() | ast.Assert():
                leave(node)
            case ast.If() if "TYPE_CHECKING" in ast.unparse(node.test):
                leave(node)
    return lines


def mutants_of(path: Path) -> list[Mutant]:
    """All mutants of a module."""
    text = path.read_text(encoding="utf-8")
    without, tree, lines = _lines_without_meaning(text), get_ast(text), text.splitlines()
    found = []
    for name in operator_names():
        if any(word in name for word in LEFT_OUT):
            continue
        places = _Places(get_operator(name)())
        places.walk(tree)
        for occurrence, line in enumerate(places.lines):
            if line not in without:
                relative = path.relative_to(ROOT).as_posix()
                found.append(Mutant(relative, line, name, occurrence, lines[line - 1].strip()))
    return found


def drawn(count: int, seed: int) -> list[tuple[Package, Mutant]]:
    """As many mutants of each package; of like operators at one line, one."""
    source, found = random.Random(seed), []
    for package in PACKAGES:
        places: dict[tuple[str, int], list[Mutant]] = {}
        for path in sorted((ROOT / "src" / "millpond").glob(package.modules)):
            for mutant in mutants_of(path):
                places.setdefault((mutant.path, mutant.line), []).append(mutant)
        chosen = source.sample(sorted(places), min(count // len(PACKAGES), len(places)))
        found += [(package, source.choice(places[place])) for place in chosen]
    return found


def _failure(copy: Path, ring: str, tests: tuple[str, ...]) -> str:
    """The end of what is printed when a test fails; empty when none does."""
    # not "unit" alone, which would hold tests to their processor time while the copy compiles its kernels
    chosen = {"unit": "unit and not full", "test": "not unit and not full and not spark", "full": "full and not spark"}[
        ring
    ]
    command = [
        str(ROOT / ".venv" / "bin" / "python"), "-m", "pytest", "-q", "-x", "-m", chosen, "-p", "no:cacheprovider",
        "-n", "2", "--dist", "loadscope", "--maxfail", "1", *tests,
    ]  # fmt: skip
    environment = {
        "PATH": "/usr/bin:/bin:/usr/sbin", "PYTHONPATH": f"{copy / 'src'}:{copy}", "HYPOTHESIS_PROFILE": "ci",
        "HOME": str(copy), "TEST_RING": "full" if ring == "full" else "test",
    }  # fmt: skip
    try:
        done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, timeout=SECONDS_MAX, check=False)
    except subprocess.TimeoutExpired:
        return f"no end after {SECONDS_MAX} s"
    # whatever else it is: a mutant may end a worker, or pytest itself, and the tests passed without it
    return "" if done.returncode in (0, 5) else f"pytest ends with {done.returncode}\n{done.stdout.decode()[-2000:]}"


def tried(copy: Path, package: Package, mutant: Mutant, rings: tuple[str, ...]) -> str:
    """The ring that finds a mutant; `alive` for none."""
    path = copy / mutant.path
    text = path.read_text(encoding="utf-8")
    changed = mutate_code(text, get_operator(mutant.operator)(), mutant.occurrence)
    assert changed is not None
    path.write_text(changed, encoding="utf-8")
    try:
        return next((ring for ring in rings if _failure(copy, ring, package.tests)), "alive")
    finally:
        path.write_text(text, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--skip", type=int, default=0, help="mutants at the beginning that were tried before")
    parser.add_argument("--rings", default=",".join(RINGS))
    parser.add_argument("--report", type=Path, default=Path("mutants.json"))
    options = parser.parse_args()
    outcomes: list[dict[str, object]] = []
    counts: dict[str, Counter[str]] = {}
    with tempfile.TemporaryDirectory(prefix="millpond-mutants-") as folder:
        copy = Path(folder) / "checkout"
        left_out = {ROOT / name for name in (".git", ".venv", ".hypothesis", "demo", "build", "dist")}
        shutil.copytree(
            ROOT, copy, ignore=lambda folder, names: [name for name in names if Path(folder, name) in left_out]
        )
        (copy / ".venv").symlink_to(ROOT / ".venv")
        for package in PACKAGES:
            failure = _failure(copy, "unit", package.tests)
            assert not failure, f"the tests of {package.modules} fail without a mutant:\n{failure}"
        chosen = drawn(options.count, options.seed)[options.skip :]
        for number, (package, mutant) in enumerate(chosen, options.skip + 1):
            ring = tried(copy, package, mutant, tuple(options.rings.split(",")))
            outcomes.append(asdict(mutant) | {"found_by": ring})
            counts.setdefault(package.modules, Counter())[ring] += 1
            print(f"{number:4} {ring:6} {mutant.path}:{mutant.line} {mutant.operator}: {mutant.before}", flush=True)
            options.report.write_text(json.dumps(outcomes, indent=1) + "\n", encoding="utf-8")
    for modules, found in counts.items():
        print(f"{modules:24} " + "  ".join(f"{ring} {found[ring]}" for ring in (*RINGS, "alive")))


if __name__ == "__main__":
    main()
