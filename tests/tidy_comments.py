"""Taste of comments: where bits, orders and fences are, the code says why. A rule of `tidy.py`."""

from __future__ import annotations

import io
import re
import tokenize
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.tidy import Source

ROOMS = ("kernel", "ranges", "stores/lmdb")
"""The rooms in which a reader has to trust most."""
PERCENT_MIN = 5
NO_SENTENCE = re.compile(r"#\s*(noqa|fmt:|type:|ruff:|mypy:|pragma:|!|--)")
"""Directives to tools, and the rules that divide a module."""


def hard_rooms_say_why(sources: list[Source]) -> Iterator[str]:
    """Of the lines of each such room that are not blank, so many have comments: sentences, and no docstrings."""
    for room in ROOMS:
        texts = [source.text for source in sources if source.python and source.path.startswith(f"src/millpond/{room}/")]
        lines = sum(bool(line.strip()) for text in texts for line in text.splitlines())
        comments = sum(map(_comments, texts))
        if 100 * comments < PERCENT_MIN * lines:
            yield f"src/millpond/{room}: {comments} comments in {lines} lines, less than {PERCENT_MIN} %; say why"


def _comments(text: str) -> int:
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return sum(token.type == tokenize.COMMENT and NO_SENTENCE.match(token.string) is None for token in tokens)
