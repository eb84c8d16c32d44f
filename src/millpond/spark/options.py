"""The options of `format("millpond")`, read into values.

| option | read | write | meaning |
|---|---|---|---|
| `pond` (or the path) | yes | yes | the pond's folder or URLs; else the session's `spark.millpond.pond` |
| `map` | yes | yes | the map |
| `branch` | yes | yes | the map as it is on a branch; of a stream, its changes there |
| `ref` | batch | | the map as it was at a ref: `main~3`, a tag, a commit or a time |
| `known_at` | batch | | the map as it was known at a time |
| `columns` | yes | | names of the columns that are wanted, by commas |
| `where` | yes | | a condition as `Map.scan` takes it: rows it refuses are not read |
| `pushdown` | batch | | `true`: take Spark's filters too, see `sources.py` |
| `partitions` | batch | | how many tasks read; by size by default |
| `startingPosition` | stream | | `earliest`, `latest`, a position of the log, or a ref: what a new query begins after |
| `maxRowsPerTrigger` | stream | | about how many rows a micro-batch takes |
| `failOnTrimmed` | stream | | `false`: go on with what is left when changes are gone |
| `changes` | stream | | `true`: of a branch also rows that are gone, each with its change and commit |
| `key`, `time`, `value`, `start` … | | yes | columns of the rows, as the fields of `ColumnMapping` |
| `extra` | | yes | `ignore` columns that the map lacks, or `add` fields for them; by default they are refused |
| `max_rejects`, `rejects` | | yes | rows that may be rejected, and the JSON lines file that takes them |
| `source` | | yes | what the rows are called in manifests and rejects |
| `again` | | batch | `true`: rows that were loaded before are loaded again, and win again |
| `freeze` | | yes | bring the snapshot up to date when the load ends; by default a batch does, a stream does not |
| `synchronise` | | yes | `true`: the load ends when every node has merged it |

Spark itself adds `checkpointLocation` and `queryName` to a stream's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from difflib import get_close_matches

from millpond.clock import Clock
from millpond.errors import Invalid
from millpond.maps.inputs.mapping import ColumnMapping, mapping_of, value_columns
from millpond.maps.inputs.zones import time_form
from millpond.spark.change_log import ChangesSettings
from millpond.spark.locations import Location, Rights, location_named
from millpond.spark.write_jobs import LoadSettings

__all__ = (
    "OPTIONS",
    "SPARKS",
    "changes_settings",
    "check_options",
    "comma_list",
    "load_settings",
    "number",
    "pond_option",
    "switch",
)

_COLUMNS = tuple(field.name for field in fields(ColumnMapping))

STREAM_OPTIONS = ("startingPosition", "maxRowsPerTrigger", "failOnTrimmed", "changes")

OPTIONS = (
    "pond", "path", "map", "branch", "ref", "known_at", "columns", "where", "pushdown", "partitions", *_COLUMNS,
    "max_rejects", "rejects", "source", "again", "freeze", "synchronise", "time_unit", *STREAM_OPTIONS,
)  # fmt: skip
SPARKS = ("checkpointlocation", "queryname")
"""The options of streams that Spark itself adds, in small letters."""


def check_options(options: Mapping[str, str], ours: Sequence[str], others: Sequence[str] = SPARKS) -> None:
    """Refuse options that mean nothing to a source: that are neither `ours` nor `others`, which a hint does not name.

    Raises: `Invalid` naming the option, and the one that may be meant.
    """
    names = {name.lower(): name for name in ours}
    for name in options:
        if name.lower() not in names and name.lower() not in others:
            near = [names[match] for match in get_close_matches(name.lower(), names, 1)]
            hint = f"did you mean {near[0]!r}?" if near else f"options: {', '.join(ours)}"
            raise Invalid("there is no such option", kind="option_unknown", option=name, hint=hint)


def pond_option(options: Mapping[str, str], default: Location | None, rights: Rights) -> Location:
    """The pond.

    Raises: `Invalid` when nobody names one.
    """
    location = options.get("pond") or options.get("path")
    if location:
        return location_named(location, rights)
    if default is None:
        raise Invalid("no pond is named", kind="pond_unnamed", hint="say option('pond', folder or URL)")
    return default


def comma_list(text: str | None) -> list[str] | None:
    """Names between commas.

    >>> comma_list("key, temp")
    ['key', 'temp']
    """
    return None if text is None else [piece.strip() for piece in text.split(",") if piece.strip()]


def number(options: Mapping[str, str], name: str) -> int | None:
    """A whole number of at least 0.

    Raises: `Invalid` naming the option.
    """
    text = options.get(name)
    if text is None:
        return None
    if not text.strip().isdigit():
        raise Invalid("option is not a whole number", kind="option_value", option=name, value=repr(text))
    return int(text)


def switch(options: Mapping[str, str], name: str, *, default: bool) -> bool:
    """True when an option is on.

    Raises: `Invalid` naming the option.
    """
    text = options.get(name, str(default)).strip().lower()
    if text not in ("true", "false"):
        raise Invalid("option is true or false", kind="option_value", option=name, value=repr(text))
    return text == "true"


def load_settings(options: Mapping[str, str], clock: Clock, *, stream: bool = False) -> LoadSettings:
    """The settings of a load, or of all the loads of a stream: their parts get salts of their own.

    Raises: `Invalid` for what is not understood.
    """
    columns = {name: options[name] for name in _COLUMNS if name in options and name != "value"}
    columns_of = ColumnMapping(**columns, value=value_columns(comma_list(options.get("value")) or ()))
    return LoadSettings(
        columns=mapping_of(columns_of),
        max_rejects=number(options, "max_rejects") or 0,
        rejects=options.get("rejects"),
        source=options.get("source", ""),
        salt=clock.random_id() if not stream and switch(options, "again", default=False) else "",
        freeze=switch(options, "freeze", default=not stream),
        synchronise=switch(options, "synchronise", default=False),
        times=time_form(unit=options.get("time_unit")),
    )


def changes_settings(options: Mapping[str, str]) -> ChangesSettings:
    """The settings of a stream of changes.

    Raises: `Invalid` for what is not understood.
    """
    start: str | int = options.get("startingPosition", "earliest").strip()
    if str(start).lower() in ("earliest", "latest"):
        start = str(start).lower()
    elif options.get("branch", "main") == "main":
        start = number(options, "startingPosition") or 0
    return ChangesSettings(
        start=start,
        marked=switch(options, "changes", default=False),
        rows_max=number(options, "maxRowsPerTrigger"),
        fail_on_trimmed=switch(options, "failOnTrimmed", default=True),
    )
