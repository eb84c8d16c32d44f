"""Every hint can be followed: what it names exists where the error is raised, in the words of that door."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
import typer
from typer.testing import CliRunner

import millpond
from millpond.cli import main
from millpond.cli.terminal import hints
from millpond.errors import Invalid
from millpond.events.age_settings import AgeSettings
from millpond.maps.map import Map
from millpond.maps.snapshots.snapshot import Snapshot
from millpond.ranges import writer
from millpond.settings import SETTINGS
from millpond.statuses import KINDS
from tests.docs.snippets import ROOT
from tools import error_reference

if TYPE_CHECKING:
    from millpond import Pond

SOURCES = ROOT / "src" / "millpond"
COMMANDS: Any = typer.main.get_command(main.app)


def said(call: ast.Call) -> str | None:
    hint = next((word.value for word in call.keywords if word.arg == "hint"), None)
    return error_reference._text(hint)


def all_hints() -> Iterator[tuple[str, str]]:
    """Every hint that is written at an error, and the module."""
    for path in sorted(set(SOURCES.rglob("*.py")) - {SOURCES / "statuses.py"}):
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if "hint=" in text else ():
            if isinstance(node, ast.Call) and (hint := said(node)) is not None:
                yield path.relative_to(SOURCES).as_posix(), hint
    for row in KINDS.values():  # they are the command line's own
        if row.hint is not None:
            yield "cli/terminal/hints.py", re.sub(r"\{setting\}", "condense", row.hint)


def commands(node: Any, *path: str) -> Iterator[tuple[tuple[str, ...], set[str]]]:
    """Every command by its words, with its options."""
    options = {name for param in node.params for name in (*param.opts, *param.secondary_opts)}
    yield path, options
    for name, inner in getattr(node, "commands", {}).items():
        yield from commands(inner, *path, name)


KNOWN = dict(commands(COMMANDS))
IN_ENVIRONMENT = {name.replace(".", "_").upper() for name in SETTINGS}
EVERY_OPTION = set().union(*KNOWN.values()) | {"--help"}


def parameters() -> set[str]:
    """The names that the calls of Python take as keywords."""
    from millpond import pipelines, spark
    from millpond.client.map import RemoteMap
    from millpond.client.pond import RemotePond
    from millpond.pipelines.declare import Declared
    from millpond.spark.enrich import Lookup

    calls: list[Any] = [millpond.copy, millpond.open, spark.enrich, spark.register, Lookup, writer.write, Declared]
    calls.append(AgeSettings.set)
    calls += [getattr(pipelines, name) for name in pipelines.__all__ if inspect.isfunction(getattr(pipelines, name))]
    for owner in (millpond.Pond, Map, Snapshot, RemotePond, RemoteMap):
        calls += [act for name, act in inspect.getmembers(owner, callable) if not name.startswith("_")]
    return {name for call in calls for name in inspect.signature(call).parameters}


def command_in(hint: str) -> tuple[str, ...] | None:
    """The command that a hint names, by the longest words that are one."""
    found = re.search(r"\bmillpond((?: [a-z_]+)+)", hint)
    if found is None:
        return None
    words = tuple(found[1].split())
    path = next((words[:size] for size in (2, 1) if words[:size] in KNOWN), None)
    assert path is not None, f"there is no command {found[0]!r}: {hint}"
    return path


def test_what_a_hint_names_is_there(subtests: pytest.Subtests) -> None:
    for module, hint in sorted(set(all_hints())):
        with subtests.test(module=module, hint=hint):
            check_hint(module, hint)


def check_hint(module: str, hint: str) -> None:
    """Everything that a hint names exists in the words of the door where its error is raised."""
    command = command_in(hint)
    for found in re.finditer(r"(?<![\w-])--[a-z][a-z-]*", hint):
        option, after = found[0], "millpond " in hint[: found.start()]
        spoken = module.startswith("cli/") or module in ("server/run.py", "nodes/tokens.py") or command is not None
        assert spoken, f"{option} is no word of Python's: name the parameter, cli/terminal/hints.py knows its option"
        options = KNOWN[command] if command is not None and after else EVERY_OPTION
        assert option in options, f"{command} has no {option}"
    for name in re.findall(r"(?<![\w.%-])([a-z_]+)=(?=['\"\w…(,. ]|$)", re.sub(r"`[^`]*`", "", hint)):
        check_parameter(module, name)
    for name in re.findall(r"`([a-z_.]+)`", hint):
        assert name in {*SETTINGS, "with"}, name
    for name in re.findall(r"\bMILLPOND_([A-Z_]+)", hint):
        assert name in IN_ENVIRONMENT | {"POND", "CONFIG", "TRACEBACK"}, name


def check_parameter(module: str, name: str) -> None:
    """A parameter of the door that the module is part of; where the command line shares the module, an option, too."""
    if module.startswith("server/"):
        assert name in ("key", "key_hex", "at"), f"no route takes {name}"
    elif name == "failOnTrimmed":
        assert name in Path(SOURCES / "spark/options.py").read_text()
    elif not module.startswith("cli/"):
        assert name in PARAMETERS, f"no call takes {name}"
        alone = module.startswith(("airflow/", "spark/", "pipelines/", "stores/", "ranges/", "maps/enrich"))
        assert alone or name in hints.OPTIONS, f"cli/terminal/hints.py lacks {name}"


PARAMETERS = parameters() | {"condense", "retain"}


def test_the_options_that_stand_for_parameters_are_there() -> None:
    assert set(hints.OPTIONS.values()) <= EVERY_OPTION
    assert set(hints.OPTIONS) <= PARAMETERS


@pytest.fixture
def pond(tmp_path: Path) -> Iterator[Pond]:
    with millpond.open(tmp_path / "pond") as opened:
        opened.create_map("weather", kind="temporal_state", value="double")
        yield opened


def test_a_lookup_names_nothing_that_it_has_not(pond: Pond) -> None:
    weather = pond.map("weather")
    naive = pa.array(["2013-02-08"]).cast(pa.timestamp("ms"))
    for act, zoned in [
        (lambda: weather.lookup(["JFK"], at=naive), False),
        (lambda: weather.load({"key": ["JFK"], "effective_time": naive, "value": [1.0]}), True),
    ]:
        with pytest.raises(Invalid) as caught:
            act()
        assert caught.value.kind == "time_naive"
        assert ("zone='UTC'" in str(caught.value.hint)) is zoned


def test_the_command_line_speaks_of_its_options(pond: Pond, tmp_path: Path) -> None:
    from pyarrow import parquet

    with pytest.raises(Invalid, match=r"alter_map\('weather', condense='30d'\)"):
        pond.map("weather").condense()
    assert "--before TIME; or set it for good: millpond alter weather --condense 30d" in run(
        "maintenance", "condense", "weather", pond=pond
    )
    times = pa.array(["2013-02-08"]).cast(pa.timestamp("ms"))
    parquet.write_table(pa.table({"key": ["a"], "time": times, "value": [1.0]}), tmp_path / "rows.parquet")
    output = run("load", "weather", str(tmp_path / "rows.parquet"), pond=pond)
    assert "such as --zone UTC" in output
    assert "zone='UTC'" not in output


def test_settings_are_named_by_their_options(pond: Pond) -> None:
    assert "give --compress-after VALUE, --retention VALUE, or both" in run(
        "events", "settings", "set", "etl", pond=pond
    )
    made = run("create", "m", "--kind", "state", "--roll-up", "1d", pond=pond)
    assert "leave out --roll-up VALUE, or say --kind aggregate" in made
    made = run("create", "m", "--kind", "state", "--time-zone", "UTC", pond=pond)
    assert "leave out --resolution VALUE and --time-zone VALUE, or say --kind aggregate" in made


def run(*words: str, pond: Pond) -> str:
    done = CliRunner().invoke(
        main.app, [*words, "--pond", str(pond.folder)], prog_name="millpond", env={"COLUMNS": "300"}
    )
    assert done.exit_code
    return " ".join(done.stderr.split())
