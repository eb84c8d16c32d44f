"""Writes docs/reference/keyspaces.md from the registry of keyspaces: `make docs`. A test compares the two.

python tools/keyspaces.py            prints the page
python tools/keyspaces.py --write    writes docs/reference/keyspaces.md
"""

from __future__ import annotations

import sys
from pathlib import Path

import millpond.pond  # noqa: F401  # it brings every part, and each part registers its keyspaces
from millpond.kernel.keyspace import REGISTRY, Keyspace

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "keyspaces.md"

OPENING = """\
# Keyspaces

<!-- written by `make docs` from the registry of keyspaces -->

Every row of a pond's [space](../format/space.md). Its key begins with two texts: the part of Millpond whose row it is,
and the name of its keyspace. *A clone* says what happens to the row when a node copies the space of another one.

| key | a clone | value | what it is |
|---|---|---|---|
"""


def page() -> str:
    """The page: one row for each keyspace, in the order of the keys."""
    return OPENING + "".join(map(_row, REGISTRY.of()))


def _row(keyspace: Keyspace) -> str:
    fate = {"shared": "copies it", "local": "begins without", "folder": "leaves it"}[keyspace.scope]
    return f"| `{_key(keyspace)}` | {fate} | {keyspace.value} | {keyspace.doc} |\n"


def _key(keyspace: Keyspace) -> str:
    return "(" + ", ".join((f'"{keyspace.part}"', f'"{keyspace.name}"', *keyspace.rest)) + ")"


if __name__ == "__main__":
    if "--write" in sys.argv:
        PAGE.write_text(page(), encoding="utf-8")
    else:
        sys.stdout.write(page())
