"""Writes docs/reference/ from the docstrings: `make docs`. Tests compare the pages with the code and run the examples.

python tools/api_reference.py            prints the pages
python tools/api_reference.py --write    writes python.md, spark.md and versions.md there

Examples lie in tools/api_examples.py: what follows a line `# == NAME` stands under NAME.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import millpond
import millpond.spark
from millpond.client.map import RemoteMap
from millpond.client.parts import RemoteParts
from millpond.client.pond import RemoteLog, RemotePond
from millpond.kernel.verify import Problem, Report
from millpond.maps.inputs.mapping import ColumnMapping
from millpond.maps.loads.pond_log import PondLog
from millpond.maps.loads.pond_parts import PondParts
from millpond.maps.log.queue import PartStatus
from millpond.maps.maintenance.maintenance import MaintenanceReport
from millpond.maps.snapshots.snapshot import Snapshot
from millpond.versions.branch import Branch, Staging
from millpond.versions.imports.importing import Imports
from millpond.versions.multipart import Uploads
from millpond.versions.reference import Reference
from millpond.versions.repositories import Repositories
from millpond.versions.repository import Repository

FOLDER = Path(__file__).parents[1] / "docs" / "reference"
EXAMPLES = Path(__file__).with_name("api_examples.py")
LINE_MAX = 100

PYTHON = """\
# Python reference

<!-- written by `make docs` from the docstrings -->

`import millpond` brings everything a program needs: open a pond, then use its maps. A pond in a folder is a `Pond`
with `Map`s. A pond on nodes is a `RemotePond` with `RemoteMap`s, and has the same methods. The examples of this page
run from top to bottom in an empty folder. Spark has [its own page](spark.md).

Everywhere:

* A **time** is an aware `datetime`, ISO 8601 text with a zone (`2013-02-08T18:00Z`), or UTC milliseconds as a whole
  number. A column of times is an Arrow timestamp with a zone, or text, or numbers.
* A **key** is text; in ranged maps it is a whole number of 64 bits. [Loading](../inputs.md#keys) lists the other types
  that become keys.
* A **duration** is text such as `90s`, `12h`, `30d`, `10y`, or milliseconds as a whole number; `off` is none.
* An **error** is one of a few [classes](#errors), which differ in what the caller does next.
"""

SPARK = """\
# Spark reference

<!-- written by `make docs` from the docstrings -->

`from millpond import spark as mp`, after `pip install 'millpond[spark]'`. The [guide](../spark.md) explains the data
source, its options, streams and the SQL function. A `pond` is a folder, the URL of a node, or an open pond; without
one, the session's setting `spark.millpond.pond` names it. The examples run from top to bottom in an empty folder.
"""

VERSIONS = """\
# Versions reference

<!-- written by `make docs` from the docstrings -->

What `pond.repositories` and `pond.repository(name)` are. The [guide](../versions.md) explains branches, staging and
commits. On a node they have the same methods; the guide lists the few that differ.

* Values, all below `millpond.versions`: `Entry` (`objects/entries.py`), `Commit` (`graph/commits.py`), `Page` and
  `CommonPrefix` (`paging.py`), `Change` (`diffs.py`), `Resolution`, `Strategy` and `MergeConflict` with its `paths`
  (`merges.py`), `ProtectedBranches`, `Retention` and `CompactionRules` (`repository_context.py`), `Window`
  (`graph/history.py`).
* Changing methods take `force=True` for read-only repositories.
* Every error has a `kind`; `no_changes` carries the head in `values["commit"]`.
"""

VERSION_CLASSES = (Repositories, Repository, Reference, Branch, Staging, Uploads, Imports)
INSIDE = {"Repositories.remembered", "Repositories.get_at_once", "Repositories.context", "Repositories.source"}
"""Methods for the server, not for users."""
RECORDS = (millpond.LoadResult, millpond.Lookup, ColumnMapping, MaintenanceReport, PartStatus, Report, Problem)
SPARK_NAMES = (
    "start", "register", "load", "enrich", "Lookup", "training_set", "compact_map",
    "compact_branch", "collect_garbage", "compress_events", "expire_events",
)  # fmt: skip
"""The names of `millpond.spark`, in the order of a first use."""
ERRORS = [name for name in millpond.__all__ if inspect.isclass(getattr(millpond, name)) and name != "MillpondError"]
ERRORS = [name for name in ERRORS if issubclass(getattr(millpond, name), millpond.MillpondError)]


class _Annotation(str):
    """An annotation as it is written in the source."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def pages() -> dict[str, str]:
    """The pages by the names of their files."""
    return {
        "python.md": _page(PYTHON, _python()),
        "spark.md": _page(SPARK, _spark()),
        "versions.md": _page(VERSIONS, _versions()),
    }


def _page(opening: str, parts: Iterator[str]) -> str:
    return "\n".join([opening, *parts]).rstrip() + "\n"


def _python() -> Iterator[str]:
    yield "## Opening\n"
    yield from function("millpond.open", millpond.open)
    yield from function("millpond.copy", millpond.copy)
    yield from function("millpond.open_snapshot", millpond.open_snapshot)
    yield from function("millpond.repair", millpond.repair)
    for subject in (
        millpond.Pond,
        PondLog,
        PondParts,
        millpond.Map,
        Snapshot,
        RemotePond,
        RemoteLog,
        RemoteParts,
        RemoteMap,
    ):
        yield from _class(subject)
    yield "## Values\n"
    yield "Frozen records that the methods above take or return.\n"
    for record in RECORDS:
        yield from _record(record)
    yield from _errors()
    yield "## Version\n\n`millpond.__version__` is the version of the package, as text.\n"


def _spark() -> Iterator[str]:
    for name in SPARK_NAMES:
        subject = getattr(millpond.spark, name)
        yield from _record(subject, f"mp.{name}") if inspect.isclass(subject) else function(f"mp.{name}", subject)


def _versions() -> Iterator[str]:
    for subject in VERSION_CLASSES:
        yield f"## {subject.__name__}\n"
        yield prose((subject.__doc__ or "").split("\n\n")[0])
        for name, member in vars(subject).items():
            if not name.startswith("_") and f"{subject.__name__}.{name}" not in INSIDE:
                yield from _member(subject, name, member)


def _class(subject: type) -> Iterator[str]:
    yield f"## {subject.__name__}\n"
    yield prose(subject.__doc__)
    yield from example(subject.__name__)
    for owner, members in _owners(subject):
        if owner is not subject:
            yield f"### {subject.__name__}: {_first_line(owner.__doc__)}\n"
        for name, member in members.items():
            yield from _member(subject, name, member)


def _owners(subject: type) -> Iterator[tuple[type, dict[str, Any]]]:
    """The classes whose public members the subject has, its own first, each with those that no nearer one has."""
    seen: set[str] = set()
    for owner in subject.__mro__:
        members = {name: member for name, member in vars(owner).items() if not name.startswith("_")}
        new = {name: member for name, member in members.items() if name not in seen}
        seen |= new.keys()
        if new and owner.__module__ not in ("builtins", "typing"):
            yield owner, new


def _member(subject: type, name: str, member: Any) -> Iterator[str]:
    title = f"{subject.__name__}.{name}"
    if isinstance(member, property):
        yield f"### `{title}`\n"
        yield prose(member.__doc__)
    elif isinstance(member, classmethod | staticmethod):
        yield from function(title, member.__func__)
    elif inspect.isfunction(member):
        yield from function(title, member)


def function(title: str, subject: Any) -> Iterator[str]:
    """A function or method: heading, signature, docstring, example."""
    yield f"### `{title}`\n"
    yield f"```text\n{signature(title.split('.')[-1], subject)}\n```\n"
    yield prose(subject.__doc__)
    yield from example(title)


def _record(subject: type, title: str = "") -> Iterator[str]:
    title = title or subject.__name__
    yield f"### `{title}`\n"
    yield prose(subject.__doc__)
    if dataclasses.is_dataclass(subject):
        yield "| field | type | default |\n|---|---|---|"
        for field in dataclasses.fields(subject):
            kind = str(field.type).replace("|", "\\|")
            yield f"| `{field.name}` | `{kind}` | {_default(field)} |"
        yield ""
    yield from example(title)


def _default(field: dataclasses.Field[Any]) -> str:
    if field.default is not dataclasses.MISSING:
        return f"`{field.default!r}`"
    return f"`{field.default_factory()!r}`" if field.default_factory is not dataclasses.MISSING else ""


def _errors() -> Iterator[str]:
    yield "## Errors\n"
    yield prose(millpond.MillpondError.__doc__)
    yield "Every error is a `MillpondError`; [Errors](errors.md) lists every `kind`.\n"
    yield "| class | also a | meaning |\n|---|---|---|"
    for name in ERRORS:
        error = getattr(millpond, name)
        also = ", ".join(f"`{base.__name__}`" for base in error.__bases__ if base is not millpond.MillpondError)
        yield f"| `{name}` | {also} | {' '.join(inspect.cleandoc(error.__doc__ or '').split())} |"
    yield ""
    yield from example("Errors")


def signature(name: str, subject: Any) -> str:
    """The call as it is written: on one line where it fits, else a line for each parameter."""
    parameters = [
        parameter.replace(annotation=_written(parameter.annotation), default=_shown(parameter.default))
        for parameter in inspect.signature(subject).parameters.values()
        if parameter.name not in ("self", "cls")
    ]
    answer = _written(inspect.signature(subject).return_annotation)
    call = name + str(inspect.Signature(parameters, return_annotation=answer))
    if len(call) <= LINE_MAX:
        return call
    lines = list(map(str, parameters))
    first_keyword = next(
        (n for n, parameter in enumerate(parameters) if parameter.kind is parameter.KEYWORD_ONLY), None
    )
    if first_keyword is not None:
        lines.insert(first_keyword, "*")
    return f"{name}(\n" + "".join(f"    {line},\n" for line in lines) + f") -> {answer}"


def _shown(default: Any) -> Any:
    """A default as the source has it; a function would show its address."""
    return _Annotation("…") if callable(default) and default is not inspect.Parameter.empty else default


def _written(annotation: Any) -> Any:
    return _Annotation(annotation) if isinstance(annotation, str) else annotation


def prose(docstring: str | None) -> str:
    """A docstring as Markdown: `Raises:` stands out, doctests are code, pages are links."""
    text = inspect.cleandoc(docstring or "")
    text = re.sub(r"^Raises:\n((?:    .*\n?)+)", _raised_list, text, flags=re.MULTILINE)
    text = re.sub(r"^Raises: ", "**Raises** ", text, flags=re.MULTILINE)
    text = re.sub(r"((?:^>>> .*\n(?:^(?!>>>).+\n?)*)+)", r"```pycon\n\1\n```", text, flags=re.MULTILINE)
    text = re.sub(r"\bdocs/(\w+)\.md", r"[\1](../\1.md)", text)
    return text + "\n"


def _raised_list(found: re.Match[str]) -> str:
    pieces = re.findall(r"^    (\w+): (.*(?:\n     +.*)*)", found[1], re.MULTILINE)
    return "**Raises** " + " ".join(f"`{name}`: {' '.join(meaning.split())}" for name, meaning in pieces)


def _first_line(docstring: str | None) -> str:
    line = inspect.cleandoc(docstring or "").split("\n")[0].rstrip(".")
    return line[:1].lower() + line[1:]


def example(title: str) -> Iterator[str]:
    """The example of a name, if it has one."""
    code = _examples().get(title)
    if code:
        yield f"```python\n{code}\n```\n"


def _examples() -> dict[str, str]:
    pieces = re.split(r"^# == (.*)$\n", EXAMPLES.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    return {name: code.strip("\n") for name, code in zip(pieces[::2], pieces[1::2], strict=True)}


def named_examples() -> set[str]:
    """The names that have an example."""
    return set(_examples())


if __name__ == "__main__":
    for page_name, page_text in pages().items():
        if "--write" in sys.argv:
            FOLDER.mkdir(exist_ok=True)
            (FOLDER / page_name).write_text(page_text, encoding="utf-8")
        else:
            sys.stdout.write(page_text)
