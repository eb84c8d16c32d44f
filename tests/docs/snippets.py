"""Code blocks of a Markdown page, in order."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Snippet:
    """A block of code and the heading it stands under."""

    language: str
    text: str
    heading: str

    @property
    def for_the_checkout(self) -> bool:
        """True when it speaks of this checkout (`make …`), not of a user's folder."""
        return all(line.startswith("make ") for line in self.text.strip().splitlines())

    @property
    def serves(self) -> bool:
        """True when it starts a node, which goes on when the block has ended."""
        return self.text.startswith("millpond serve ")


def snippets(page: str) -> list[Snippet]:
    """The code blocks of a page of this repository."""
    text = (ROOT / page).read_text(encoding="utf-8")
    found = []
    for match in _BLOCK.finditer(text):
        headings = re.findall(r"^#+ (.*)$", text[: match.start()], re.MULTILINE)
        found.append(Snippet(match[1], match[2], headings[-1] if headings else ""))
    return found
