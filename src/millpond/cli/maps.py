"""`millpond create`, `maps`, `alter` and `drop`."""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from millpond.cli.declared import commands
from millpond.cli.options import Branch, Confirmed, Json, MapName, PondLocation, pond_at
from millpond.cli.rows import plain
from millpond.cli.terminal import console
from millpond.cli.verbs import AT_REF, verb
from millpond.errors import Invalid
from millpond.maps.protocols import MapLike, MapOperations, PondLike
from millpond.times.durations import format_duration

if TYPE_CHECKING:
    from millpond.maps.model.aggregation import Aggregation
    from millpond.maps.model.definition import MapDefinition

__all__ = (
    "KeyChoice", "KindChoice", "SchemeChoice", "StoreChoice", "alter", "create", "drop", "maps", "rename",
    "copied",
)  # fmt: skip

_HERE = "pond"
commands(MapOperations, lambda pond, map: pond.map(map), {"map": MapName}, AT_REF)


class KindChoice(StrEnum):
    """The kinds as choices, and what two of aggregates are called; said here so that help needs no import."""

    STATE = "state"
    TEMPORAL_STATE = "temporal_state"
    RANGED_STATE = "ranged_state"
    TEMPORAL_RANGED_STATE = "temporal_ranged_state"
    SESSION = "session"
    AGGREGATE = "aggregate"
    HISTOGRAM = "histogram"
    METRIC = "metric"


class KeyChoice(StrEnum):
    """The types of keys as choices."""

    TEXT = "text"
    TAGS = "tags"


class SchemeChoice(StrEnum):
    """The schemes as choices."""

    AUTO = "auto"
    DIRECT = "direct"
    HASH = "hash"
    LOOKUP = "lookup"


class StoreChoice(StrEnum):
    """The stores as choices."""

    SHARD = "shard"
    LAYERS = "layers"


class _Age(StrEnum):
    EFFECTIVE_TIME = "effective_time"
    UPDATE_TIME = "update_time"


Condense = Annotated[
    str | None,
    typer.Option("--condense", metavar="AGE", help="Drop repeats older than this, such as 30d; 'off' turns it off."),
]
Retain = Annotated[
    str | None,
    typer.Option("--retain", metavar="AGE", help="Delete rows older than this, such as 10y; 'off' turns it off."),
]
RollUp = Annotated[
    str | None,
    typer.Option(
        "--roll-up", metavar="WIDTH",
        help="Combine rows of an aggregate older than --retain to such buckets, as '1 day'; 'off' deletes them.",
    ),
]  # fmt: skip
RetainBy = Annotated[_Age | None, typer.Option("--retain-by", help="Which time makes a row old.")]
CondenseBy = Annotated[_Age | None, typer.Option("--condense-by", help="Which time makes a repeat old.")]
Resolution = Annotated[
    str | None, typer.Option("--resolution", metavar="WIDTH", help="The buckets of an aggregate, such as '1 hour'.")
]
TimeZone = Annotated[
    str | None, typer.Option("--time-zone", metavar="ZONE", help="The clocks that buckets follow.", show_default="UTC")
]
Overwrite = Annotated[
    bool | None,
    typer.Option("--overwrite/--keep-first", help="What a second row of the same key and time does."),
]


@verb(
    "create",
    'millpond create weather --kind temporal_state --value "temp double, wind_speed double" --condense 30d',
    "millpond create ipv4_country --kind ranged_state --value string",
    "millpond create airborne --kind session",
    'millpond create sales --kind aggregate --value "orders long count, total double sum" --resolution "1 hour"',
    'millpond create late --as "select origin as key, day as time, avg(delay) as delay from flights group by 1, 2"',
    'millpond create logons --kind histogram --key tags --resolution "1 second"',
)
def create(
    name: MapName,
    kind: Annotated[
        KindChoice | None,
        typer.Option("--kind", help="What the map's rows are.", show_default="an aggregate, with --as"),
    ] = None,
    value: Annotated[
        str | None,
        typer.Option(
            "--value",
            metavar="TYPE",
            help="string, long, double, boolean, timestamp, binary, json, or fields: 'temp double, code string'.",
            show_default="each row carries its own",
        ),
    ] = None,
    scheme: Annotated[SchemeChoice, typer.Option("--scheme", help="How keys are stored; never changes an answer.")] = (
        SchemeChoice.AUTO
    ),
    hash_bytes: Annotated[int, typer.Option("--hash-bytes", help="Width of stored hashes: 8 or 4.")] = 8,
    condense: Condense = None,
    condense_by: CondenseBy = None,
    retain: Retain = None,
    retain_by: RetainBy = None,
    roll_up: RollUp = None,
    overwrite: Overwrite = None,
    store: Annotated[
        StoreChoice | None,
        typer.Option("--store", help="The form of the rows; never changes an answer.", show_default="maps.store"),
    ] = None,
    resolution: Resolution = None,
    time_zone: TimeZone = None,
    key: Annotated[
        KeyChoice | None, typer.Option("--key", help="What keys are; tags for an aggregate.", show_default="text")
    ] = None,
    as_: Annotated[
        str | None, typer.Option("--as", metavar="QUERY", help="An aggregate by a query of raw rows, which are loaded.")
    ] = None,
    exist_ok: Annotated[bool, typer.Option("--exist-ok", help="Accept a map that is there already and alike.")] = False,
    branch: Branch = None,
    pond: PondLocation = _HERE,
) -> console.Shown:
    """Create a map. The pond is made if it is not there yet."""
    import millpond

    settings = _settings(
        condense=condense, condense_by=condense_by, retain=retain, retain_by=retain_by, roll_up=roll_up,
        overwrite=overwrite,
    )  # fmt: skip
    if branch in (None, "main"):
        settings |= {"scheme": str(scheme), "hash_bytes": hash_bytes, "store": None if store is None else str(store)}
    elif store is StoreChoice.SHARD:
        raise typer.BadParameter("maps on branches are in layers: leave --store out")
    with millpond.open(pond) if branch is None else pond_at(pond, branch) as opened:
        map_ = opened.create_map(
            name, kind=None if kind is None else str(kind), value=value, exist_ok=exist_ok, resolution=resolution,
            time_zone=time_zone, key=None if key is None else str(key), as_=as_, **settings,
        )  # fmt: skip
    return _said(map_.definition, f"created {map_.name}: {_in_words(map_.definition)}")


def _settings(**settings: str | bool | None) -> dict[str, Any]:
    """Only the settings that were given: the rest keep what they are."""
    return {
        name: value if isinstance(value, bool) else str(value) for name, value in settings.items() if value is not None
    }


def _in_words(definition: MapDefinition) -> str:
    words = [definition.kind_name]
    if definition.tagged:
        words.append("of tags")
    if definition.kind.valued:
        words.append(f"value {_value_of(definition, 'of any type')}")
    if definition.aggregation is not None:
        words.append(_buckets_of(definition.aggregation))
    if definition.store == "layers":
        words.append("in layers")
    return ", ".join(words)


def _value_of(definition: MapDefinition, untyped: str = "any") -> str:
    if definition.value is None or definition.aggregation is None:
        return str(definition.value or untyped)
    from millpond.maps.model.aggregate_fields import fields_in_words

    return fields_in_words(definition.value, definition.aggregation)


def _buckets_of(aggregation: Aggregation) -> str:
    if aggregation.resolution == "none":
        return "one bucket"
    return f"buckets of {aggregation.resolution}, {aggregation.time_zone}"


@verb("maps", "millpond maps", "millpond maps weather", "millpond maps --branch fix --json", on=AT_REF)
def maps(
    pond: PondLike,
    name: Annotated[str | None, typer.Argument(metavar="[MAP]", help="Show everything about this one.")] = None,
) -> console.Shown:
    """List the maps, or show everything about one: its definition, its settings, its state."""
    if name is not None:
        return _facts(pond.map(name))
    listed = [(pond_map.definition, pond_map.info()) for pond_map in pond.maps()]
    return console.table(
        (definition.to_dict() | _plain(info) for definition, info in listed),
        ["map", "kind", "store", "rows", "size", "value"],
        [
            [
                definition.name, definition.kind_name, info["store"],
                console.human_count(info["rows"]), console.human_bytes(info["shard_bytes"]),
                _value_of(definition) if definition.kind.valued else "",
            ]
            for definition, info in listed
        ],
        nothing="there are no maps yet; 'millpond create' makes one"
    )  # fmt: skip


def _facts(pond_map: MapLike) -> console.Shown:
    definition = pond_map.definition
    description = definition.to_dict() | _plain(pond_map.info())
    shown = {name: value for name, value in description.items() if name != "hash_bits"}  # 64, but in tests
    if definition.aggregation is not None:
        shown |= {"kind": definition.kind_name, "value": _value_of(definition)}
        shown["aggregation"] = _buckets_of(definition.aggregation) + (", of tags" if definition.tagged else "")
    return console.facts(
        description, {name.removesuffix("_ms"): _readable(name, value) for name, value in shown.items()}
    )


def _plain(info: dict[str, Any]) -> dict[str, Any]:
    return {name: plain(value) for name, value in info.items()}


def _readable(name: str, value: Any) -> Any:
    if name.endswith("_ms") and isinstance(value, int):
        return format_duration(value)
    if name.endswith("_bytes") and isinstance(value, int) and name != "hash_bytes":
        return console.human_bytes(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return console.human_count(value)
    if isinstance(value, dict):
        return ", ".join(
            f"{key}: {' '.join(map(str, part)) if isinstance(part, list | tuple) else part}"
            for key, part in value.items()
        )
    return value


@verb(
    "alter",
    "millpond alter weather --retain 10y --retain-by effective_time",
    'millpond alter sales --retain 90d --roll-up "1 day"',
    "millpond alter weather --suspend-maintenance",
    "millpond alter weather --resume-maintenance --condense off",
    'millpond alter weather --add "gust double" --default gust=0 --drop visib --rename temp=temperature',
    "millpond alter weather --widen temp=double --branch fix",
    "millpond alter weather --store layers",
)
def alter(
    name: MapName,
    condense: Condense = None,
    condense_by: CondenseBy = None,
    retain: Retain = None,
    retain_by: RetainBy = None,
    roll_up: RollUp = None,
    overwrite: Overwrite = None,
    maintenance: Annotated[
        bool | None,
        typer.Option(
            "--resume-maintenance/--suspend-maintenance", help="Whether condense and retain may touch this map."
        ),
    ] = None,
    add: Annotated[list[str] | None, typer.Option("--add", metavar="FIELD TYPE", help="Add a field.")] = None,
    default: Annotated[
        list[str] | None, typer.Option("--default", metavar="FIELD=VALUE", help="What older rows have in a new field.")
    ] = None,
    drop_fields: Annotated[list[str] | None, typer.Option("--drop", metavar="FIELD", help="Drop a field.")] = None,
    rename: Annotated[list[str] | None, typer.Option("--rename", metavar="OLD=NEW", help="Rename a field.")] = None,
    widen: Annotated[
        list[str] | None, typer.Option("--widen", metavar="FIELD=TYPE", help="Give a field a wider type.")
    ] = None,
    store: Annotated[StoreChoice | None, typer.Option(help="Convert the map to this form of rows.")] = None,
    branch: Branch = None,
    pond: PondLocation = _HERE,
) -> console.Shown:
    """Change a map's settings, or the fields of a layered map: rows stay as they are, and show the new fields."""
    settings = _settings(
        condense=condense, condense_by=condense_by, retain=retain, retain_by=retain_by, roll_up=roll_up,
        overwrite=overwrite,
    ) | _field_changes(add, default, drop_fields, rename, widen)  # fmt: skip
    if maintenance is not None:
        settings["maintenance_suspended"] = not maintenance
    if store is not None:
        settings["store"] = store
    if not settings:
        raise typer.BadParameter("say what to change, such as --retain 10y")
    with pond_at(pond, branch) as opened:
        opened.alter_map(name, **settings)
        definition = opened.map(name).definition
    return _said(definition, f"changed {definition.name}: {', '.join(sorted(settings))}")


NewName = Annotated[str, typer.Argument(metavar="NEW", help="The new name.")]


@verb("rename", "millpond rename weather climate", "millpond rename weather climate --json")
def rename(name: MapName, new: NewName, branch: Branch = None, pond: PondLocation = _HERE) -> console.Shown:
    """Give a layered map another name."""
    with pond_at(pond, branch) as opened:
        definition = opened.catalogue.rename(name, new)
    return copied("renamed", name, definition)


def copied(done: str, name: str, definition: MapDefinition) -> console.Shown:
    """The words that a map has another name, or one more."""
    return _said(definition, f"{done} {name.lower()} to {definition.name}")


def _said(definition: MapDefinition, text: str) -> console.Shown:
    return console.said(definition.to_dict() | {"store": str(definition.store)}, text)


def _field_changes(
    add: list[str] | None, default: list[str] | None, drop_fields: list[str] | None, rename: list[str] | None,
    widen: list[str] | None,
) -> dict[str, Any]:  # fmt: skip
    from millpond.maps.model.definition import parse_value_type

    fields = [field for text in add or () for field in parse_value_type(text).parts]
    changes: dict[str, Any] = {
        "add": {name: str(scalar) for name, scalar in fields}, "default": _pairs("--default", default),
        "drop": drop_fields, "rename": _pairs("--rename", rename), "widen": _pairs("--widen", widen),
    }  # fmt: skip
    return {name: change for name, change in changes.items() if change}


def _pairs(option: str, texts: list[str] | None) -> dict[str, str]:
    pairs = [text.partition("=") for text in texts or ()]
    for name, equals, _ in pairs:
        if not equals:
            raise typer.BadParameter(f"{option} {name} lacks '=': write {option} gust=…")
    return {name.strip(): text.strip() for name, _, text in pairs}


@verb("drop", "millpond drop weather", "millpond drop weather --yes --json", "millpond drop weather --branch fix")
def drop(
    name: MapName,
    yes: Confirmed = False,
    branch: Branch = None,
    pond: PondLocation = _HERE,
    json: Json = False,
) -> console.Shown:
    """Drop a map and all its data. Asks first; off a terminal, --yes is needed."""
    with pond_at(pond, branch) as opened:
        pond_map = opened.map(name)
        if not yes:
            if json or not sys.stdin.isatty():
                raise Invalid("dropping a map is for ever", kind="not_confirmed", map=pond_map.name, hint="say --yes")
            typer.confirm(
                f"drop {pond_map.name} with {console.human_count(pond_map.info()['rows'], 'row')}?", abort=True
            )
        opened.drop_map(pond_map.name)
    return console.said({"map": pond_map.name, "dropped": True}, f"dropped {pond_map.name}")
