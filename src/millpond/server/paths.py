"""Templates of paths, and what stands at them.

    paths = Paths()
    paths.at("/maps/{name}/objects/{file:path}")["GET"] = route
    paths.find("/maps/m%2F1/objects/a/b")     {"GET": route}, ["m/1", "a/b"]

Invariants:
* a path is split before its escapes are read: a name may hold a slash, and is one name; no name is empty;
* a word of a template is preferred to a name, as long as the rest of the path fits behind it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar
from urllib.parse import unquote

__all__ = ("Paths",)

T = TypeVar("T")


@dataclass(slots=True)
class _Node(Generic[T]):
    """A place in all templates: the things there by their methods, and the places below it."""

    here: dict[str, T] = field(default_factory=dict)
    words: dict[str, _Node[T]] = field(default_factory=dict)
    name: _Node[T] | None = None
    rest: dict[str, T] = field(default_factory=dict)
    """The things that take all that is left of a path as one name."""

    def find(self, segments: Sequence[str]) -> tuple[dict[str, T], list[str]]:
        """The things at a place below, and the names on the way."""
        if not segments:
            return self.here, []
        first, behind = segments[0], segments[1:]
        if first in self.words:
            methods, names = self.words[first].find(behind)
            if methods:
                return methods, names
        if self.name is not None and first:
            methods, names = self.name.find(behind)
            if methods:
                return methods, [first, *names]
        rest = "/".join(segments)
        return (self.rest if rest else {}), [rest]


class Paths(Generic[T]):
    """Templates, and what stands at each."""

    def __init__(self) -> None:
        self._root = _Node[T]()

    def at(self, template: str) -> dict[str, T]:
        """The things at a template, by their methods."""
        node = self._root
        for segment in template.split("/")[1:]:
            if segment.endswith(":path}"):
                return node.rest
            if segment.startswith("{"):
                node.name = node.name or _Node()
                node = node.name
            else:
                node = node.words.setdefault(segment, _Node())
        return node.here

    def find(self, path: str) -> tuple[dict[str, T], list[str]]:
        """The things at a path, by their methods, and its names in their order; none for a path of no template."""
        segments = path.split("/")[1:]
        if "%" in path:
            segments = [unquote(segment) for segment in segments]
        return self._root.find(segments)
