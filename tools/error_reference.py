"""Writes docs/reference/errors.md and errors.json from the errors that the code raises: `make docs`. A test compares.

python tools/error_reference.py            prints the page and the list
python tools/error_reference.py --write    writes docs/reference/errors.md and docs/reference/errors.json
"""

from __future__ import annotations

import ast
import functools
import inspect
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from millpond import errors
from millpond.cli.terminal import exits
from millpond.statuses import row_of

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reference" / "errors.md"
KINDS = PAGE.with_suffix(".json")

OPENING = """\
# Errors

<!-- written by `make docs` from the errors that the code raises -->

Every error is a `MillpondError`. Its **class** says what to do next, its **kind** says precisely what happened and
never changes its name, `values` hold what it is about, and `hint` the way out, in Python's words; the command line says
the option instead of the parameter (`--zone UTC` for `zone='UTC'`).

```python
import millpond

try:
    millpond.open("nowhere", create=False)
except millpond.Invalid as error:
    print(error.kind, error.values, error.hint)
```

On the command line an error is one sentence on standard error and an exit code by its class; with `--json` it is an
object with `kind`, `class`, `message`, `hint`, `values` and `exit_code`. A node answers with `error` (the class),
`kind`, `message`, `hint` and `values`, and with the status of the class; a few kinds have statuses of their own.

## Classes

| class | means | kinds | exit code | HTTP | gRPC |
|---|---|---|---|---|---|
"""

CLOSING = """
## Kinds

[errors.json](errors.json) has a line for each kind: its class, exit code and statuses, its messages where the code
raises it (`…` stands for a value), and its ways out. Search the page for a kind, or ask for it:

```sh
grep '"too_many_rejects"' docs/reference/errors.json
```
"""

CLASSES = [name for name in errors.__all__ if name != "MillpondError"]

# Kinds whose names are made when they are raised, or that have a class: name, class, what happened, the way out.
MADE = (
    (
        "merge_conflict",
        "Conflict",
        "conflict found",
        "change one side, or merge with a strategy or resolutions",
    ),
    ("kind_unknown", "Invalid", "kind is not known", "one of the five kinds of map"),
    ("scheme_unknown", "Invalid", "scheme is not known", "one of: auto, direct, hash, lookup"),
)


@dataclass
class Explanation:
    """The code's messages and hints for a kind, wherever it raises it."""

    messages: list[str] = field(default_factory=list)
    hints: list[str] = field(default_factory=list)

    def add(self, message: str | None, hint: str | None) -> None:
        """One more place that raises it."""
        for texts, text in ((self.messages, message), (self.hints, hint)):
            if text and text not in texts:
                texts.append(text)


def page() -> str:
    """The page of classes."""
    found = raised()
    return OPENING + "".join(_class(name, len(found[name])) for name in CLASSES) + CLOSING


def _class(name: str, kinds: int) -> str:
    error = getattr(errors, name)
    meaning = " ".join(inspect.cleandoc(error.__doc__ or "").split())
    return f"| `{name}` | {meaning} | {kinds} | {exits.EXITS[error]} | {error.http_status} | `{error.grpc_status}` |\n"


def kinds() -> str:
    """Every kind as JSON, one a line in the order of their names."""
    rows = [
        {
            "kind": kind,
            "class": name,
            "exit_code": exits.EXITS[getattr(errors, name)],
            "http_status": row_of(kind).http or getattr(errors, name).http_status,
            "grpc_status": row_of(kind).grpc or getattr(errors, name).grpc_status,
            "what_happened": explanation.messages,
            "way_out": explanation.hints,
        }
        for name, explanations in raised().items()
        for kind, explanation in explanations.items()
    ]
    rows.sort(key=lambda row: (row["kind"], row["class"]))
    return "[\n" + ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n]\n"


@functools.cache
def raised() -> dict[str, dict[str, Explanation]]:
    """Class and kind of every error that what ships can raise."""
    found: dict[str, dict[str, Explanation]] = {name: {} for name in CLASSES}
    for kind, name, message, hint in MADE:
        found[name].setdefault(kind, Explanation()).add(message, hint)
    for path in sorted((ROOT / "src").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if "kind=" in text else ():
            if isinstance(node, ast.Call):
                _take(node, found)
    return found


def _take(call: ast.Call, found: dict[str, dict[str, Explanation]]) -> None:
    match call.func:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            pass
        case _:
            return
    words = {word.arg: word.value for word in call.keywords}
    texts = call.args
    if name == "stored":  # `JsonForm.stored`: its data, then what its error says
        name, texts = "Corrupt", call.args[1:]
    if name not in found or "kind" not in words:
        return
    message = _text(texts[0]) if texts else None
    for kind in _constants(words["kind"]):
        found[name].setdefault(kind, Explanation()).add(message, _text(words.get("hint")))


def _constants(value: ast.expr) -> Iterator[str]:
    """Text that is said as it stands: alone, or in either branch of a choice."""
    if isinstance(value, ast.Constant) and isinstance(value.value, str):
        yield value.value
    elif isinstance(value, ast.IfExp):
        yield from _constants(value.body)
        yield from _constants(value.orelse)


def _text(value: ast.expr | None) -> str | None:
    if isinstance(value, ast.JoinedStr):
        pieces = [str(piece.value) if isinstance(piece, ast.Constant) else "…" for piece in value.values]
        return re.sub(r"…(\s*…)+", "…", "".join(pieces)).strip()
    texts = [] if value is None else list(_constants(value))
    return "; ".join(texts) or None


if __name__ == "__main__":
    if "--write" in sys.argv:
        PAGE.write_text(page(), encoding="utf-8")
        KINDS.write_text(kinds(), encoding="utf-8")
    else:
        sys.stdout.write(page() + kinds())
