"""`get_state` for one map in DuckDB: the types that may be keys and times, and their way into a lookup.

DuckDB would cast anything to text, also what `load` refuses. So the macro that stands for a map looks at the type of
its arguments, which DuckDB knows while it plans a query, and chooses one of these functions:

| type | keyed maps | ranged maps |
|---|---|---|
| text, whole numbers, decimals, booleans, dates | `text`: as DuckDB writes it, which is the key | |
| whole numbers | | `number`: as they are |
| other types that may be keys | `typed`: as text, read by the rule of `inputs/keys.py` | the same |
| structs and maps, for sets of tags; of text, whole numbers, booleans, dates | `typed`: as JSON | |
| any other | `refused`: an error, as soon as the query is planned | the same |

Times are timestamps, dates, text (without a zone: UTC), or whole numbers, which are UTC milliseconds: one that could be
seconds is an error, as everywhere.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from inspect import Parameter, Signature
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from millpond.errors import Invalid
from millpond.json_forms import parse_list, parse_object
from millpond.maps.inputs.tags import type_of_keys_refused
from millpond.maps.model.definition import MapDefinition
from millpond.times.instants import parse_instant, read_times

__all__ = ("WITHIN", "add_macro", "check_plan", "instants_of_numbers", "typed_keys")

Lookup = Callable[[Any, Any, Any, Any], Any]
WITHIN = "get_state_within"
"""The form of `get_state` that has a window."""

_INTEGERS = (
    "TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT", "UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT", "UHUGEINT",
    '"NULL"',
)  # fmt: skip
_FLOATS = {"FLOAT": pa.float32(), "DOUBLE": pa.float64()}
_TIMES = (
    "TIMESTAMP WITH TIME ZONE", "TIMESTAMP", "TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP_NS", "DATE", "VARCHAR", '"NULL"',
)  # fmt: skip
# Functions take and give Arrow columns, in which null means no answer.
_BULK = {"type": "arrow", "null_handling": "special"}
_REFUSED = re.compile(r"get_state(?:_within)?_refused:(\w+)\"?\(.*?'(key|time)', '((?:[^']|'')*)'\)", re.DOTALL)
_UNDECIDED = """CAST('"NULL"' AS VARCHAR)"""
"""Part of a plan in which DuckDB did not choose by types yet: the name of a column tells all that it is made of."""
_ESCAPED = re.compile(r"\\x([0-9A-Fa-f]{2})")


def add_macro(
    connection: Any, definition: MapDefinition, answer: str, lookup: Lookup, instants: Callable[[Any], Any],
    form: str = "get_state",
) -> None:  # fmt: skip
    """Make `get_state:<map>`, of a key, a time, and when it was known; of the form `WITHIN` a window is the last.

    `lookup` takes columns of them; None: now, and no window. `instants` is `instants_of_numbers`, whose errors
    the caller may keep.
    """
    name = definition.name

    def ask(keys: Any, at: Any = None, known_at: Any = None, window: Any = None, types: Any = None) -> Any:
        return lookup(keys if types is None else typed_keys(keys, types), at, known_at, window)

    def refused(_key: Any, what: Any, kind: Any) -> Any:
        raise _refusal(definition, str(what[0]), str(kind[0]))

    make, last = connection.create_function, ("window",) if form == WITHIN else ()
    make(f"{form}_refused:{name}", refused, ["VARCHAR", "VARCHAR", "VARCHAR"], answer, **_BULK)
    # DuckDB counts the parameters of each.
    make(f"{form}_instants:{name}", lambda numbers: instants(numbers), ["BIGINT"], "TIMESTAMPTZ", **_BULK)
    for number, times in enumerate(((), ("at",), ("at", "known_at")), start=1):
        kinds = ["TIMESTAMPTZ" for _ in times] + ["VARCHAR" for _ in last]
        plain, typed = _by_place(ask, "keys", *times, *last), _by_place(ask, "keys", "types", *times, *last)
        key = "VARCHAR" if definition.kind.keyed else "BIGINT"
        make(f"{form}{number}:{name}", plain, [key, *kinds], answer, **_BULK)
        make(f"{form}{number}_typed:{name}", typed, ["VARCHAR", "VARCHAR", *kinds], answer, **_BULK)
    connection.execute(_macro(definition, form))


def _by_place(act: Callable[..., Any], *names: str) -> Callable[..., Any]:
    """A function of named parameters, by their places."""

    def placed(*columns: Any) -> Any:
        return act(**dict(zip(names, columns, strict=True)))

    parameters = [Parameter(name, Parameter.POSITIONAL_ONLY) for name in names]
    placed.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    return placed


def _macro(definition: MapDefinition, form: str) -> str:
    name, keyed = definition.name, definition.kind.keyed
    if keyed:
        plain = f"{_any_of('k', ('VARCHAR', 'BOOLEAN', 'DATE', *_INTEGERS))} or typeof(k) ^@ 'DECIMAL(' or {_ENUM}"
        others, cast = ("FLOAT", "DOUBLE", "BLOB"), "k::VARCHAR"
    else:
        plain = _any_of("k", _INTEGERS)
        others, cast = ("FLOAT", "DOUBLE", "VARCHAR"), "try_cast(k as BIGINT)"
    typed = _any_of("k", others) + ("" if keyed else f" or typeof(k) ^@ 'DECIMAL(' or {_ENUM}")
    text = "k::VARCHAR"
    if definition.tagged:
        typed, text = f"{typed} or {_SETS}", f"case when {_SETS} then to_json(k)::VARCHAR else k::VARCHAR end"

    last, window = (', "window"', ', "window"::VARCHAR') if form == WITHIN else ("", "")

    def of_key(number: int, at: str) -> str:
        return (
            f'case when {plain} then "{form}{number}:{name}"({cast}{at}{window}) '
            f'when {typed} then "{form}{number}_typed:{name}"({text}, typeof(k){at}{window}) '
            f"else \"{form}_refused:{name}\"(k::VARCHAR, 'key', typeof(k)) end"
        )

    # Text that is no time is an error; only the cast of what is text may fail.
    def moment(time: str) -> str:
        text = f"{time}::VARCHAR::TIMESTAMPTZ else try_cast({time} as TIMESTAMPTZ)"
        number = f'"{form}_instants:{name}"(try_cast({time} as BIGINT))'
        return f", case when {_any_of(time, _INTEGERS)} then {number} when typeof({time}) = 'VARCHAR' then {text} end"

    def checked(time: str, otherwise: str) -> str:
        refused = f"\"{form}_refused:{name}\"({time}::VARCHAR, 'time', typeof({time}))"
        return f"case when {_any_of(time, (*_TIMES, *_INTEGERS))} then {otherwise} else {refused} end"

    at, known_at = moment("t"), moment("s")
    return (
        f'create macro "{form}:{name}"(k{last}) as {of_key(1, "")}, '
        f"(k, t{last}) as {checked('t', of_key(2, at))}, "
        f"(k, t, s{last}) as {checked('t', checked('s', of_key(3, at + known_at)))}"
    )


_ENUM = "typeof(k) ^@ 'ENUM('"
# JSON does not tell how many digits a number had, nor what is nested.
_SETS = (
    "(typeof(k) ^@ 'STRUCT(' or typeof(k) ^@ 'MAP(') and not regexp_matches(typeof(k), "
    r"'.(STRUCT|MAP|UNION|FLOAT|DOUBLE|DECIMAL|TIME|INTERVAL|BLOB|BIT)|\[')"
)
_PAIRS = pa.list_(pa.struct([("name", pa.string()), ("value", pa.string())]))


def _any_of(argument: str, types: tuple[str, ...]) -> str:
    listed = ", ".join(f"'{kind}'" for kind in types)
    return f"typeof({argument}) in ({listed})"


def instants_of_numbers(numbers: Any) -> pa.Array:
    """Whole numbers, which are UTC milliseconds, as instants.

    >>> instants_of_numbers(pa.array([1_360_346_400_000, None]))[0].as_py().isoformat()
    '2013-02-08T18:00:00+00:00'

    Raises: as `parse_instant`, of the first that could be seconds, or is outside the years.
    """
    read = read_times(numbers, "us")
    unclear = read.vague | read.invalid.to_numpy(zero_copy_only=False)
    if unclear.any():
        parse_instant(numbers[int(unclear.argmax())].as_py())
    return read.values.cast(pa.timestamp("us", "UTC"))


def typed_keys(texts: Any, types: Any) -> pa.Array:
    """Keys that DuckDB wrote as text, as columns of the type they had.

    >>> typed_keys(pa.array(["5.0", None]), pa.array(["DOUBLE", "DOUBLE"])).to_pylist()
    [5.0, None]
    """
    texts = texts.combine_chunks() if isinstance(texts, pa.ChunkedArray) else texts
    kind = str(types[0]) if len(types) else ""
    if kind in _FLOATS:
        return pc.cast(texts, _FLOATS[kind])
    if kind.startswith("DECIMAL("):
        precision, scale = kind.removeprefix("DECIMAL(").removesuffix(")").split(",")
        return pc.cast(texts, pa.decimal128(int(precision), int(scale)))
    if kind == "BLOB":
        return pa.array([None if text is None else _blob(text) for text in texts.to_pylist()], pa.binary())
    if kind.startswith(("STRUCT(", "MAP(")):
        return pa.array([None if text is None else _pairs(text) for text in texts.to_pylist()], _PAIRS)
    return texts


def _pairs(text: str) -> list[tuple[str, str | None]]:
    """The names and values of a set of tags in JSON."""
    tags = parse_object(text)
    return [(name, str(value).lower() if isinstance(value, bool | int) else value) for name, value in tags.items()]


def _blob(text: str) -> bytes:
    """The bytes that DuckDB writes as text: printable ones as they are, the others as `\\xHH`."""
    return _ESCAPED.sub(lambda match: chr(int(match[1], 16)), text).encode("latin-1")


def check_plan(connection: duckdb.DuckDBPyConnection, text: str, definitions: Callable[[str], MapDefinition]) -> None:
    """Plan a query, and refuse the types that its lookups cannot take: before any row is read.

    Raises: `Invalid`, kinds `key_type` and `time_type`; what DuckDB raises over the query.
    """
    for _, plan in connection.sql(f"explain (format json) {text}").fetchall():
        for line in _texts(parse_list(plan)):
            match = _REFUSED.search(line)
            if match is not None and _UNDECIDED not in line:
                raise _refusal(definitions(match[1]), match[2], match[3].replace("''", "'"))


def _texts(plan: Any) -> Iterator[str]:
    if isinstance(plan, str):
        yield plan
    elif isinstance(plan, dict | list):
        for part in plan.values() if isinstance(plan, dict) else plan:
            yield from _texts(part)


def _refusal(definition: MapDefinition, what: str, kind: str) -> Invalid:
    if what == "key":
        return type_of_keys_refused(definition, kind, map=definition.name, argument="key")
    return Invalid(
        "a time is a timestamp, text or UTC milliseconds", kind="time_type", map=definition.name, argument="time",
        type=kind, hint="cast it to timestamptz first",
    )  # fmt: skip
