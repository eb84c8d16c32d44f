"""Map definitions: kind, value type, scheme and settings, as pure values.

| kind | row | question it answers |
|---|---|---|
| `state` | key → value | value of key |
| `temporal_state` | key, effective_time → value | latest value with effective_time ≤ t |
| `ranged_state` | key_start, key_end → value | value of the narrowest range that holds n |
| `temporal_ranged_state` | the same with effective_time | narrowest range first, then latest time ≤ t |
| `session` | key, start, end | the innermost session that holds t |
| `aggregate` | key, time (of a bucket) → fields, each with a rule | the combined values of the bucket that holds t |

Ranges and sessions hold both their ends. Times are UTC milliseconds (`int64`).
The choices that shape bytes (kind, value type, scheme, hash) are stored with the map. Of them only the fields of a
layered map change: `field_changes.py`.
"""

from __future__ import annotations

import hashlib
import re
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from typing import Any

from millpond.errors import Corrupt, Invalid
from millpond.json_forms import FormError, JsonForm, parse_object, stable_json, to_json
from millpond.maps.model.aggregation import Aggregation
from millpond.maps.model.field_ids import FieldIds

__all__ = (
    "COLUMNS",
    "PLAIN_KINDS",
    "Kind",
    "MapDefinition",
    "ScalarType",
    "Scheme",
    "Store",
    "folder_name",
    "ValueType",
    "check_field",
    "check_name",
    "parse_scalar",
    "parse_value_type",
    "store_of",
)


class Kind(StrEnum):
    """The six kinds of map."""

    STATE = "state"
    TEMPORAL_STATE = "temporal_state"
    RANGED_STATE = "ranged_state"
    TEMPORAL_RANGED_STATE = "temporal_ranged_state"
    SESSION = "session"
    AGGREGATE = "aggregate"

    @cached_property
    def keyed(self) -> bool:
        """Rows carry a `key`; the others carry `key_start, key_end`."""
        return self not in (Kind.RANGED_STATE, Kind.TEMPORAL_RANGED_STATE)

    @cached_property
    def temporal(self) -> bool:
        """Rows carry an `effective_time`."""
        return self in (Kind.TEMPORAL_STATE, Kind.TEMPORAL_RANGED_STATE)

    @cached_property
    def timed(self) -> bool:
        """Questions carry a time: `at`."""
        return self.temporal or self in (Kind.SESSION, Kind.AGGREGATE)

    @cached_property
    def valued(self) -> bool:
        """Rows carry a value: all but sessions."""
        return self is not Kind.SESSION

    @cached_property
    def address(self) -> tuple[str, ...]:
        """The columns that tell one row from another, in order."""
        return COLUMNS[self]


COLUMNS: dict[Kind, tuple[str, ...]] = {
    Kind.STATE: ("key",),
    Kind.TEMPORAL_STATE: ("key", "effective_time"),
    Kind.RANGED_STATE: ("key_start", "key_end"),
    Kind.TEMPORAL_RANGED_STATE: ("key_start", "key_end", "effective_time"),
    Kind.SESSION: ("key", "start", "end"),
    Kind.AGGREGATE: ("key", "time"),
}

PLAIN_KINDS = tuple(kind for kind in Kind if kind is not Kind.AGGREGATE)
"""The kinds whose rows replace one another: those of aggregates combine."""

RESERVED_COLUMNS = frozenset(("key", "effective_time", "value_type", "value", "key_start", "key_end", "start", "end"))


class Scheme(StrEnum):
    """The storage scheme of a shard's keys; it never changes an answer.

    * `auto`: short keys directly, longer ones by hash. The default; smallest and fastest for most data.
    * `direct`: every key that LMDB can hold is stored directly, the rest by hash. Keeps key order for scans.
    * `hash`: `xxh3_64` of the key (8 bytes, or 4), rows of clashing keys side by side.
    * `lookup`: keys and values interned once, rows hold ids. Smallest for highly repeated data, slower to write.
    """

    AUTO = "auto"
    DIRECT = "direct"
    HASH = "hash"
    LOOKUP = "lookup"


class Store(StrEnum):
    """The form in which a map's rows are stored; it never changes an answer.

    * `shard`: one LMDB file, merged into in place. The default.
    * `layers`: immutable layers of ranges, the form of snapshots: a load costs what it brings.
    """

    SHARD = "shard"
    LAYERS = "layers"


class ScalarType(StrEnum):
    """Types of a single value."""

    STRING = "string"
    LONG = "long"
    DOUBLE = "double"
    BOOLEAN = "boolean"
    TIMESTAMP = "timestamp"
    BINARY = "binary"
    JSON = "json"


_ALIASES = {
    "str": "string", "varchar": "string", "text": "string", "bigint": "long", "int": "long",
    "integer": "long", "float": "double", "bool": "boolean", "bytes": "binary",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ValueType:
    """A scalar, or a struct of named scalars: exactly one of `scalar` and `fields` is set."""

    scalar: ScalarType | None = None
    fields: tuple[tuple[str, ScalarType], ...] = ()

    def __post_init__(self) -> None:
        assert (self.scalar is None) == bool(self.fields), self

    def __str__(self) -> str:
        """Spark's DDL words, which `parse_value_type` reads back."""
        if self.scalar:
            return str(self.scalar)
        return ", ".join(f"{_quoted(name)} {scalar}" for name, scalar in self.fields)

    @property
    def parts(self) -> tuple[tuple[str, ScalarType], ...]:
        """The fields; a single value is a field `value`."""
        return self.fields or (("value", self.scalar),)  # type: ignore[return-value]


def _quoted(name: str) -> str:
    """A field's name in backticks where it would not be read back without them."""
    return name if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) else f"`{name}`"


SEPARATOR = r"(?:\s*+:\s*+|(?=\s* )\s++)"
"""A colon or a blank between the name of a field and its type, and blanks around it, each of which is taken once."""
_FIELD = re.compile(rf"^\s*+(`[^`]+`|[A-Za-z_][A-Za-z0-9_]*+){SEPARATOR}([A-Za-z]++)\s*+$")


def parse_value_type(text: str) -> ValueType:
    """A value type from Spark's DDL words.

    >>> str(parse_value_type("bigint"))
    'long'
    >>> str(parse_value_type("temp double, code: string"))
    'temp double, code string'
    >>> str(parse_value_type("`wind speed` double"))
    '`wind speed` double'

    Raises: `Invalid` naming the word that is not a type, or the field that is given twice.
    """
    stripped = text.strip()
    struct = re.fullmatch(r"struct\s*<(.*)>", stripped, re.IGNORECASE | re.DOTALL)
    if struct:
        stripped = struct.group(1)
    if re.fullmatch(r"[A-Za-z]+", stripped):
        return ValueType(scalar=_scalar(stripped, text))
    parsed: dict[str, ScalarType] = {}
    for piece in stripped.split(","):
        match = _FIELD.match(piece)
        if not match:
            raise Invalid(
                "value type is not understood", kind="value_type_unknown", value=repr(text),
                hint="write one type, or fields such as 'temp double, wind_speed double'",
            )  # fmt: skip
        name = match.group(1).strip("`")
        if name in parsed:
            raise _field_name(name)
        parsed[name] = _scalar(match.group(2), text)
    return ValueType(fields=tuple(parsed.items()))


def check_field(name: str, *, taken: bool = False) -> None:
    """See that a field may have this name.

    Raises: `Invalid`.
    """
    if taken or name.lower() in RESERVED_COLUMNS or not name.strip() or "`" in name or "," in name:
        raise _field_name(name, {name} if taken else ())


def _field_name(name: str, taken: Iterable[str] = ()) -> Invalid:
    return Invalid(
        "value field name is reserved or given twice", kind="value_field_name", field=name,
        hint=f"choose another name, none of: {', '.join(sorted(RESERVED_COLUMNS.union(taken)))}",
    )  # fmt: skip


def parse_scalar(word: str) -> ScalarType:
    """The type of a single field.

    Raises: `Invalid` naming the types there are.
    """
    return _scalar(word.strip(), word)


def _scalar(word: str, whole: str) -> ScalarType:
    lowered = word.lower()
    try:
        return ScalarType(_ALIASES.get(lowered, lowered))
    except ValueError:
        types = ", ".join(ScalarType)
        raise Invalid(
            "value type is not known", kind="value_type_unknown", type=word, value=repr(whole),
            hint=f"known types: {types}",
        ) from None  # fmt: skip


def store_of(name: object) -> Store:
    """The store of that name.

    Raises: `Invalid`.
    """
    try:
        return Store(str(name))
    except ValueError:
        raise Invalid(
            "there is no such store", kind="setting_type", setting="store", value=repr(name)[:100],
            hint=f"write {' or '.join(Store)}",
        ) from None  # fmt: skip


_SUMMARY_LETTERS = 60
_VALUE_ID_LETTERS = 16
_NAME = re.compile(r"[a-z][a-z0-9_]{0,126}")


def check_name(name: object) -> str:
    """The map's name in its one true form, lower case.

    Raises: `Invalid` when it is not `[a-z][a-z0-9_]*` of at most 127 characters.
    """
    lowered = name.lower() if isinstance(name, str) else ""
    if not _NAME.fullmatch(lowered):
        raise Invalid(
            "map name is not valid", kind="map_name", map=repr(name),
            hint="up to 127 lower case letters, digits and underscores, starting with a letter",
        )  # fmt: skip
    return lowered


@dataclass(frozen=True, slots=True, kw_only=True)
class MapDefinition:
    """Everything that is fixed about one map, and its settings.

    `incarnation` tells a map from an earlier one of the same name that was dropped.
    `value` None: values of any scalar type may be mixed, each row carries its own type.
    `hash_bits` is for tests only: fewer than 64 keeps that many low bits of the hash, so that keys clash.
    `fields` None: they never changed. `aggregation` is that of an aggregate, and of no other kind; `query` makes events
    of raw rows, of a table by query.
    """

    name: str
    kind: Kind
    incarnation: str
    value: ValueType | None = None
    scheme: Scheme = Scheme.AUTO
    hash_bytes: int = 8
    hash_bits: int = 64
    overwrite: bool = True
    condense_ms: int | None = None
    retain_ms: int | None = None
    retain_by: str = "effective_time"
    condense_by: str = "effective_time"
    roll_up: str | None = None
    maintenance_suspended: bool = False
    store: Store = Store.SHARD
    fields: FieldIds | None = None
    aggregation: Aggregation | None = None
    query: str | None = None

    def __post_init__(self) -> None:
        check_name(self.name)
        if self.hash_bytes not in (4, 8):
            raise Invalid("hash_bytes is 4 or 8", kind="hash_bytes", hash_bytes=self.hash_bytes)
        if self.retain_by not in ("effective_time", "update_time"):
            raise Invalid("retain_by is effective_time or update_time", kind="retain_by", retain_by=self.retain_by)
        if self.condense_by not in ("effective_time", "update_time"):
            raise Invalid(
                "condense_by is effective_time or update_time", kind="condense_by", condense_by=self.condense_by
            )  # fmt: skip
        if self.kind is Kind.SESSION and self.value is not None:
            raise Invalid("sessions carry no value", kind="session_value", map=self.name)
        assert (self.aggregation is not None) == (self.kind is Kind.AGGREGATE), "an aggregate has its rules"
        if self.aggregation is not None:
            _check_aggregate(self, self.aggregation)
        elif self.roll_up is not None:
            raise Invalid(
                "only aggregates combine rows to wider buckets", kind="resolution", map=self.name, roll_up=self.roll_up,
                hint="leave out roll_up=…, or say kind='aggregate'",
            )  # fmt: skip

    @property
    def summary(self) -> str:
        """Name, kind, value type and scheme, on one line."""
        value = None if self.value is None else textwrap.shorten(str(self.value), _SUMMARY_LETTERS, placeholder=" …")
        return f"{self.name!r}, kind={self.kind_name!r}, value={value!r}, scheme={str(self.scheme)!r}"

    @property
    def tagged(self) -> bool:
        """Keys are sets of tags."""
        return self.aggregation is not None and self.aggregation.tagged

    @property
    def kind_name(self) -> str:
        """The kind as people call it: also `histogram` and `metric`."""
        return str((self.aggregation is not None and self.aggregation.form) or self.kind)

    @property
    def field_ids(self) -> tuple[int, ...]:
        """The ids of the fields, in their order."""
        if self.fields is not None:
            return self.fields.ids
        return () if self.value is None else tuple(range(1, len(self.value.parts) + 1))

    @property
    def shown(self) -> ValueType | None:
        """The type of values as people see them: with the fields that are computed."""
        if self.value is None or self.aggregation is None:
            return self.value
        computed = ((field.name, ScalarType.DOUBLE) for field in self.aggregation.computed)
        return ValueType(fields=(*self.value.fields, *computed))

    @property
    def value_id(self) -> str:
        """The name of this value type in layers that are written under it; empty for the one of the map's birth."""
        if self.fields is None:
            return ""
        text = stable_json({"value": str(self.value), "ids": self.fields.ids}, compact=True)
        return hashlib.sha256(text).hexdigest()[:_VALUE_ID_LETTERS]

    def to_dict(self) -> dict[str, Any]:
        """A JSON-able form, read back by `from_dict`. Maps keep the form of before there were layers, or changes."""
        payload: dict[str, Any] = _FORM.plain(self) | {"value": None if self.value is None else str(self.value)}
        if self.store is Store.SHARD:
            del payload["store"]
        for name, default in (("roll_up", None), ("query", None), ("condense_by", "effective_time")):
            if payload[name] == default:
                del payload[name]
        if self.fields is None:
            del payload["fields"]
        else:  # as JSON reads it back: manifests are compared with this
            fields = payload["fields"].items()
            payload["fields"] = {name: list(part) if isinstance(part, tuple) else part for name, part in fields}
        if self.aggregation is None:
            del payload["aggregation"]
        else:
            payload["aggregation"] = self.aggregation.to_dict()
        return payload

    @classmethod
    def from_dict(cls, payload: Mapping[str, Any]) -> MapDefinition:
        """Parse the dict written by `to_dict`.

        Raises: `FormError` for any other; `Invalid` for a value type that is not known.
        """
        value = payload.get("value")
        # A value type is stored as its words; the form knows it as the object that they name.
        return _FORM.build({**payload, "value": parse_value_type(value) if isinstance(value, str) else value})

    @classmethod
    def from_json(cls, row: bytes) -> MapDefinition:
        """Parse the row written by `to_json`.

        Raises: `Corrupt`.
        """
        try:
            return cls.from_dict(parse_object(row))
        except (FormError, Invalid) as error:
            raise Corrupt(
                "the definition of a map cannot be read", kind="catalogue_damaged", reason=error,
                hint="restore the pond from a copy",
            ) from error  # fmt: skip

    def to_json(self) -> bytes:
        """A row of the catalogue."""
        return to_json(self.to_dict())

    def same_shape(self, other: MapDefinition) -> bool:
        """True when both store the same bytes: all but the settings of maintenance, the incarnation and ids agree."""
        blank: dict[str, Any] = {
            "incarnation": "", "overwrite": True, "condense_ms": None, "retain_ms": None,
            "retain_by": "effective_time", "condense_by": "effective_time", "roll_up": None,
            "maintenance_suspended": False, "fields": None,
        }  # fmt: skip
        return replace(self, **blank) == replace(other, **blank)


def _check_aggregate(definition: MapDefinition, aggregation: Aggregation) -> None:
    """See that an aggregate has no settings but those of its kind."""
    endless = definition.retain_ms is not None and aggregation.resolution == "none"
    for setting, there, hint in (
        ("condense", definition.condense_ms is not None, "leave it out: rows of one bucket are one row anyway"),
        ("condense_by", definition.condense_by != "effective_time", "leave it out: nothing is condensed"),
        ("overwrite", not definition.overwrite, "leave it out: the rules say how rows combine"),
        ("retain_by", definition.retain_by != "effective_time", "leave it out: buckets are retained by their time"),
        ("retain", endless, "give the map a resolution: it has one bucket of all times"),
    ):
        if there:
            raise Invalid(
                "an aggregate does not have this setting", kind="aggregate_unsupported", map=definition.name,
                setting=setting, hint=hint,
            )  # fmt: skip


def folder_name(definition: MapDefinition) -> str:
    """The name of a map's folders: dropped and made again it gets others, files still held open belong to the old."""
    return f"{definition.name}.{definition.incarnation}"


_FORM = JsonForm(MapDefinition)
