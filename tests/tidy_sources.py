"""The files that are held to the taste, and the trees of their code. Read by `tidy.py`."""

from __future__ import annotations

import ast
import os
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeVar

__all__ = ("HARNESS", "Source", "read_sources", "walked")

N = TypeVar("N", bound=ast.AST)
HARNESS = "tests/harness/"  # held to the taste of what ships
TEXT_SUFFIXES = frozenset((".py", ".md", ".toml", ".txt", ".lock", ".sql", ".json", ".csv", ".xml", ".cfg", ""))
SKIPPED_FOLDERS = frozenset(
    (".git", ".venv", "__pycache__", ".hypothesis", ".mypy_cache",
     ".ruff_cache", ".pytest_cache", ".import_linter_cache", "spark-warehouse", "artifacts", "metastore_db")
)  # fmt: skip

FIELDS: dict[type[ast.AST], tuple[str, ...]] = {
    ast.Name: (), ast.Constant: (), ast.alias: (), ast.Attribute: ("value",), ast.arg: ("annotation",),
    ast.keyword: ("value",), ast.Subscript: ("value", "slice"), ast.List: ("elts",), ast.Tuple: ("elts",),
    ast.Starred: ("value",),
}  # fmt: skip
"""The fields that hold nodes, of the types that most nodes are of, and of all that have a context."""
SKIPPED_AT_THE_TOP = frozenset(("build", "demo", "dist", "pond"))


@dataclass(frozen=True)
class Source:
    """One file: its path as the repository sees it, and its text."""

    path: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @cached_property
    def statements(self) -> list[tuple[ast.stmt, list[ast.AST]]]:
        """The statements at the top, each with all nodes of it, walked once for all rules."""
        return [(statement, walked(statement)) for statement in self.tree.body]

    @cached_property
    def nodes(self) -> dict[type[ast.AST], list[ast.AST]]:
        """All nodes of the tree by their types."""
        by_type = defaultdict[type[ast.AST], list[ast.AST]](list)
        for _, inside in self.statements:
            for node in inside:
                by_type[type(node)].append(node)
        return by_type

    def of(self, *types: type[N]) -> Iterator[N]:
        """All nodes of some types."""
        for wanted in types:
            yield from self.nodes.get(wanted, ())  # type: ignore[misc]

    @property
    def python(self) -> bool:
        return self.path.endswith(".py")

    @property
    def shipped(self) -> bool:
        return self.python and self.path.startswith("src/")

    @property
    def styled(self) -> bool:
        """True for what is held to the whole taste: what ships, and the harness."""
        return self.shipped or (self.python and self.path.startswith(HARNESS))


def walked(top: ast.AST) -> list[ast.AST]:
    """All nodes but contexts, in the order of `ast.walk` and in a third of its time: there are millions."""
    nodes = [top]
    for node in nodes:  # which grows
        for name in FIELDS.get(type(node), node._fields):
            value = getattr(node, name, None)
            if isinstance(value, list):
                nodes += [inner for inner in value if isinstance(inner, ast.AST)]
            elif isinstance(value, ast.AST):
                nodes.append(value)
    return nodes


def read_sources(root: Path) -> list[Source]:
    """Every text file of the repository at `root`."""
    paths: list[Path] = []
    for folder, folders, files in os.walk(root):
        above = Path(folder)
        folders[:] = [name for name in folders if not _is_skipped(name, top=above == root)]  # the environment is large
        paths += [above / name for name in files if not _is_skipped(name, top=above == root)]
    return [
        Source(path.relative_to(root).as_posix(), path.read_text(errors="replace"))
        for path in sorted(paths)
        if path.suffix in TEXT_SUFFIXES and not path.stem.endswith("_pb2") and path.is_file()  # that are generated
    ]


def _is_skipped(name: str, *, top: bool) -> bool:
    of_tools = name in SKIPPED_FOLDERS or name.endswith(".egg-info") or name.startswith(".venv")
    return of_tools or (top and name in SKIPPED_AT_THE_TOP)
