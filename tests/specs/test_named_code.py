"""The code that a specification names is there: its files, and what it names of each. So a name that changes is seen.

A head says "Stands for: `name` and `Class.method` of folder/file.py; …", of folders below `src/millpond`.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SOURCE = HERE.parents[1] / "src" / "millpond"
SPECIFICATIONS = sorted(HERE.glob("*.tla"))
TOKEN = re.compile(r"`([^`]+)`|([a-z_]+(?:/[a-z_]+)*\.(?:py|lua))")
Defined = ast.FunctionDef | ast.ClassDef


def names_of(path: Path) -> set[str]:
    """The functions and classes of a module, and its methods as `Class.method`."""
    names = set[str]()
    for node in ast.parse(path.read_text()).body if path.suffix == ".py" else []:
        if isinstance(node, Defined):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{part.name}" for part in node.body if isinstance(part, Defined)}
    return names


def stands_for(text: str) -> tuple[list[tuple[str, set[str]]], set[str]]:
    """The files that a head names, each with the names before it; and the names in the rest of the specification."""
    start = text.index("Stands for: ")
    stop = text.index("\n\n", start)
    files, before = list[tuple[str, set[str]]](), set[str]()
    for name, path in TOKEN.findall(text[start:stop]):
        if path:
            files.append((path, before))
            before = set()
        else:
            before.add(name)
    rest = {name for name, _ in TOKEN.findall(text[:start] + text[stop:]) if name}
    return files, rest | before


@pytest.mark.parametrize("path", SPECIFICATIONS, ids=lambda path: path.stem)
def test_what_a_specification_names_is_there(path: Path) -> None:
    files, rest = stands_for(path.read_text())
    assert files
    known = set[str]()
    for file, names in files:
        assert (SOURCE / file).is_file(), file
        there = names_of(SOURCE / file)
        assert names <= there, (file, names - there)
        known |= there
    assert rest <= known, rest - known


def test_a_name_that_changed_is_seen() -> None:
    files, rest = stands_for("(* Stands for: `a` and `B.c` of x/y.py; `d` of\nz.lua.\n\nFaults: none. *)\n(* `e`: *)")
    assert files == [("x/y.py", {"a", "B.c"}), ("z.lua", {"d"})]
    assert rest == {"e"}
    assert {"names_of", "Defined"} & names_of(Path(__file__)) == {"names_of"}
    assert {"LeaseRow", "LeaseRow.take", "take"} & names_of(SOURCE / "kernel/lease.py") == {"LeaseRow", "LeaseRow.take"}
