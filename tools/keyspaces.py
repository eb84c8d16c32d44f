"""Writes the table of keyspaces in docs/format/space.md from their registry: `make docs`. A test compares the two.

python tools/keyspaces.py            prints the page
python tools/keyspaces.py --write    writes docs/format/space.md
"""

from __future__ import annotations

import sys
from pathlib import Path

import millpond.pond  # noqa: F401  # it brings every part, and each part registers its keyspaces
from millpond.kernel.keyspace import REGISTRY, Keyspace

PAGE = Path(__file__).parents[1] / "docs" / "format" / "space.md"
START, STOP = "<!-- keyspaces: written by `make docs` from the registry -->\n", "<!-- end of keyspaces -->\n"


def page(text: str) -> str:
    """The page with its table of keyspaces as the registry is now."""
    before, rest = text.split(START)
    _, after = rest.split(STOP)
    return before + START + "\n" + table() + "\n" + STOP + after


def table() -> str:
    """One row for each keyspace, in the order of the keys."""
    head = "| key | a clone | value | what it is |\n|---|---|---|---|\n"
    return head + "".join(map(_row, REGISTRY.of()))


def _row(keyspace: Keyspace) -> str:
    fate = {"shared": "copies it", "local": "begins without", "folder": "leaves it"}[keyspace.scope]
    return f"| `{_key(keyspace)}` | {fate} | {keyspace.value} | {keyspace.doc} |\n"


def _key(keyspace: Keyspace) -> str:
    return "(" + ", ".join((f'"{keyspace.part}"', f'"{keyspace.name}"', *keyspace.rest)) + ")"


if __name__ == "__main__":
    text = page(PAGE.read_text(encoding="utf-8"))
    if "--write" in sys.argv:
        PAGE.write_text(text, encoding="utf-8")
    else:
        sys.stdout.write(text)
