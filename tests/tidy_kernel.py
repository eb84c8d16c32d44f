"""Taste of the kernel: what it holds is shared. A rule of `tidy.py`."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.tidy import Source

PARTS = {part: part for part in ("maps", "versions", "events", "workflows")} | {"stores": "below", "ranges": "below"}
"""The parts that share the kernel, by their folders; all other folders are above them, and one part."""


def the_kernel_is_shared(sources: list[Source]) -> Iterator[str]:
    """Every module of the kernel is imported by two parts at least: what one of them needs alone lies in that part.

    The parts are maps, versions, events, workflows; what is below them (stores, ranges), and what is above them (nodes,
    server, client, spark, cli and so on) are one each. Modules of the kernel are no part: what only they import is a
    piece of the one that imports it.
    """
    prefix = "src/millpond/kernel/"
    modules = {source.path.removeprefix(prefix)[:-3] for source in sources if source.path.startswith(prefix)}
    users: dict[str, set[str]] = {module: set() for module in modules - {"__init__"}}
    for source in sources:
        folder, _, inside = source.path.partition("src/millpond/")
        room = inside.partition("/")[0]
        if folder or not source.python or room in ("kernel", "testing"):
            continue
        part = PARTS.get(room, "above")
        for node in source.of(ast.ImportFrom):
            if (node.module or "").startswith("millpond.kernel."):
                users.setdefault((node.module or "").removeprefix("millpond.kernel."), set()).add(part)
    for module, parts in sorted(users.items()):
        if len(parts) < 2:
            yield f"{prefix}{module}.py: used by {', '.join(sorted(parts)) or 'no part'} alone; it belongs there"
