"""`millpond load`: files into maps.

A load is all or nothing. It reads here, in this process, unless `--spark` or `--master` is given or the files
together are larger than `HERE_BYTES_MAX`; it says which on a terminal.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import replace
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from millpond.cli.options import (
    Branch,
    InputFormat,
    Json,
    Master,
    Null,
    PondLocation,
    TimeUnit,
    Zone,
    comma_list,
    pond_at,
)
from millpond.cli.terminal import console
from millpond.cli.verbs import verb
from millpond.clock import SystemClock
from millpond.errors import Invalid
from millpond.maps.inputs.formats.files import find_files

if TYPE_CHECKING:
    from collections.abc import Iterator

    from millpond.maps.loads.load import LoadResult
    from millpond.maps.protocols import PondLike

__all__ = ("HERE_BYTES_MAX", "ExtraChoice", "load", "split_targets")

MaxRejects = Annotated[
    int, typer.Option("--max-rejects", metavar="N", min=0, help="Rows that may be rejected before the load fails.")
]
RejectFile = Annotated[
    Path | None, typer.Option("--rejects", metavar="FILE", help="JSON lines file for rejected rows and why.")
]

HERE_BYTES_MAX = 1 << 30
"""Above this, Spark reads in parallel what one process would read alone; below it, starting Spark costs more."""


def _column(flag: str, help_: str) -> Any:
    return typer.Option(flag, metavar="COLUMN", help=help_, rich_help_panel="Columns")


class ExtraChoice(StrEnum):
    """The ways with columns that a map lacks, as choices."""

    REFUSE = "refuse"
    IGNORE = "ignore"
    ADD = "add"


Extra = Annotated[ExtraChoice, typer.Option("--extra", help="What to do with columns that the map has no place for.")]
Stage = Annotated[
    bool, typer.Option("--stage", help="On a branch: no commit yet; 'millpond commit pond/BRANCH' makes it.")
]


@verb(
    "load",
    "millpond load weather weather.csv --key origin --time time_hour --value temp,wind_speed",
    "millpond load planes planes.parquet --key tailnum --value built=year,seats --max-rejects 100",
    "millpond load airborne legs.jsonl --key tailnum --start departed --end landed",
    "millpond load reference.xml --rejects bad-rows.jsonl",
    "millpond load weather year=*.parquet --master spark://host:7077",
    "millpond load weather mended.csv --key origin --time time_hour --value temp --branch fix",
)
def load(
    targets: Annotated[
        list[str],
        typer.Argument(metavar="[MAP] FILE...", help="The map and the files; XML that names its maps needs no MAP."),
    ],
    key: Annotated[str | None, _column("--key", "Column of the key; of tags one for each: host=name,dc.")] = None,
    time: Annotated[str | None, _column("--time", "Column of the effective time, or of a session's start.")] = None,
    value: Annotated[
        list[str] | None, _column("--value", "Column of the value; for fields, name=column or names alone, by commas.")
    ] = None,
    start: Annotated[str | None, _column("--start", "Column of a session's start.")] = None,
    end: Annotated[str | None, _column("--end", "Column of a session's end.")] = None,
    timeout: Annotated[str | None, _column("--timeout", "Column of how long a session lasts.")] = None,
    key_start: Annotated[str | None, _column("--key-start", "Column of a range's first number.")] = None,
    key_end: Annotated[str | None, _column("--key-end", "Column of a range's last number.")] = None,
    max_rejects: MaxRejects = 0,
    rejects: RejectFile = None,
    zone: Zone = None,
    time_unit: TimeUnit = None,
    effective_time: Annotated[
        str | None, typer.Option("--effective-time", metavar="TIME", help="Time of XML elements that have none.")
    ] = None,
    null: Null = "",
    file_format: InputFormat = None,
    extra: Extra = ExtraChoice.REFUSE,
    again: Annotated[
        bool, typer.Option("--again", help="Load data that was loaded before once more, over what came after it.")
    ] = False,
    synchronise: Annotated[
        bool, typer.Option("--synchronise", help="Wait until every node has merged it, so that it can be read at once.")
    ] = False,
    spark: Annotated[
        bool | None, typer.Option("--spark/--no-spark", help="Read with Spark, or here.", show_default="by size")
    ] = None,
    master: Master = None,
    stage: Stage = False, branch: Branch = None, pond: PondLocation = "pond", json: Json = False,
) -> None:  # fmt: skip
    """Load files into a map: Parquet, CSV, JSON lines or Stroom's XML. All rows get in, or none."""
    from millpond.maps.inputs.mapping import ColumnMapping, value_columns

    name, files = split_targets(targets)
    columns = ColumnMapping(
        key=key, time=time, value=value_columns(comma_list(value)), start=start, end=end, timeout=timeout,
        key_start=key_start, key_end=key_end, extra=str(extra),
    )  # fmt: skip
    options = {
        "columns": columns, "written": file_format, "max_rejects": max_rejects, "rejects": rejects,
        "effective_time": effective_time, "zone": zone, "time_unit": time_unit, "null": null, "again": again,
    }  # fmt: skip
    clock = SystemClock()
    began = clock.monotonic()
    options |= _branch_options(branch, stage, spark, master)
    with pond_at(pond, branch, client_synchronise=synchronise or None) as opened:
        if not stage and _by_spark(spark, master, files, file_format):
            result = _load_by_spark(opened, files, name, master, options, quiet=json)
        else:
            result = _load_here(opened, files, name, options, quiet=json)
    _tell(replace(result, seconds=clock.monotonic() - began), rejects, as_json=json)


def _branch_options(branch: str | None, stage: bool, spark: bool | None, master: str | None) -> dict[str, bool]:
    if stage and branch is None:
        raise Invalid("only a load on a branch is staged", kind="stage_branch", hint="name one by --branch")
    if stage and (spark or master is not None):
        raise Invalid("a load by Spark is committed", kind="ref_spark", branch=branch, hint="leave out --stage")
    return {"commit": False} if stage else {}


def _by_spark(spark: bool | None, master: str | None, files: list[str], written: str | None) -> bool:
    """True when Spark reads the files: because the caller said so, or because there is much to read and Spark is
    installed.
    """
    if spark is not None or master is not None:
        return spark is not False
    return _bytes_of(files, written) > HERE_BYTES_MAX and find_spec("pyspark") is not None


def _bytes_of(files: list[str], written: str | None) -> int:
    return sum(file.size for file in find_files(files, written))


def _load_here(
    pond: PondLike, files: list[str], name: str | None, options: dict[str, Any], *, quiet: bool
) -> LoadResult:
    with _bars(_bytes_of(files, options["written"]), quiet=quiet) as bars:
        return pond.load_files(files, name, **options, advance=bars.read, sent=bars.sent)


class _Bars:
    """Progress of a load: bytes read, then bytes uploaded. One bar at a time."""

    def __init__(self, total: int, *, quiet: bool) -> None:
        self._quiet, self._bar = quiet, ExitStack()
        self.read = self._bar.enter_context(console.progress("loading", total=total, quiet=quiet))
        self._sending: console.Advance | None = None

    def sent(self, count: int, total: int) -> None:
        """So many bytes more of all that go to the nodes."""
        if self._sending is None:
            self._bar.close()
            self._sending = self._bar.enter_context(
                console.progress("uploading", total=total, unit="bytes", quiet=self._quiet)
            )
        self._sending(count)

    def close(self) -> None:
        self._bar.close()


@contextmanager
def _bars(total: int, *, quiet: bool) -> Iterator[_Bars]:
    bars = _Bars(total, quiet=quiet)
    try:
        yield bars
    finally:
        bars.close()


def _load_by_spark(
    pond: PondLike, files: list[str], name: str | None, master: str | None, options: dict[str, Any], *, quiet: bool
) -> LoadResult:
    from millpond.cli.enrich.by_spark import running
    from millpond.spark.files import load_files

    with running(master, quiet=quiet) as session, console.stages(quiet=quiet) as show:
        show("reading", 0)
        return load_files(session, files, cast(Any, pond), name, **options, show=show)


def _tell(result: LoadResult, rejects: Path | None, *, as_json: bool) -> None:
    if as_json:
        from millpond.json_forms import plain

        console.print_json(plain(result))
        return
    if result.duplicate_parts and not result.parts:
        names = ", ".join(result.maps)
        console.say(f"{names}: the same data was loaded before, so nothing was changed; --again loads it once more")
    else:
        for name, count in result.maps.items():
            merging = "" if result.synchronised else "; the nodes are merging them"
            sentence = f"loaded {console.human_count(count, 'row')} into {name} in {result.seconds:.1f} s"
            console.say(sentence + merging)
    for path in result.empty:
        console.say(f"{path} holds no rows")
    if result.rejected:
        where = f", see {rejects}" if rejects else "; --rejects FILE writes them down with their reasons"
        console.say(f"rejected {console.human_count(result.rejected, 'row')}{where}")


def split_targets(targets: list[str]) -> tuple[str | None, list[str]]:
    """The map's name, if the first target is one, and the files, folders, patterns. Names hold no `.`, `/` or `*`.

    >>> split_targets(["weather", "a.csv", "b.csv"])
    ('weather', ['a.csv', 'b.csv'])
    >>> split_targets(["reference.xml"])
    (None, ['reference.xml'])

    Raises: `Invalid` when there is no file.
    """
    named = not any(sign in targets[0] for sign in "./*?[")
    files = targets[named:]
    if not files:
        raise Invalid(
            "no file to load", kind="no_input", map=targets[0], hint=f"such as: millpond load {targets[0]} rows.csv"
        )
    return (targets[0] if named else None), files
