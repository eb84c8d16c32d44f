"""Tables by query: the aggregate that a query over raw rows defines, and what each raw row brings to it.

    select origin as key, date_trunc('hour', departed) as time, count(*) as flights, avg(delay) as delay
    from events where not cancelled group by 1, 2

    fields      flights long count, delay_sum double sum, delay_count long count, delay average of delay_sum/delay_count
    resolution  1 hour
    of a row    origin, departed, true, delay, delay is not null; left out where it is cancelled

A query is read as DuckDB reads it. All in it but the aggregates is about one row, so rows are evaluated as they come,
in any process, and what they bring is combined as events are: by the rules of the fields.

| in the query | the rule |
|---|---|
| `count(*)`, `count(x)` | `count` |
| `sum(x)`, `min(x)`, `max(x)` | the same |
| `count_if(c)` | a `sum` of ones and zeros: null, as there, where no row tells |
| `avg(x)` | a `sum` and a `count`, of which the average is computed |
| `arg_max(x, t)`, `arg_min(x, t)` | `latest`, `first`; `t` is the time |
| `approx_count_distinct(x)`, `approx_quantile(x, 0.5)` | `distinct`, `quantiles` |

A cast tells the type of a field, around an aggregate or what it is of: `sum(seats::bigint)`. Without one it is
`double`, of `latest` and `first` `string`.

Invariants:
* what is not a rule is refused by its name when the map is made, never when rows are loaded;
* a row brings the same whoever evaluates it, and when: functions that do not are refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NoReturn

from millpond.errors import Invalid
from millpond.json_forms import parse_object, to_json

if TYPE_CHECKING:
    import duckdb

__all__ = ("LOCKED", "ROW", "Measure", "TableQuery", "connected", "table_query")

LOCKED: dict[str, str | bool | int | float | list[str]] = {
    "enable_external_access": "false", "autoload_known_extensions": "false", "autoinstall_known_extensions": "false",
    "python_enable_replacements": "false",
}  # fmt: skip
"""The settings of a DuckDB that reads what it is given: no files, no network, no extensions."""

ROW = "row of raw"
"""A column that no raw row has."""

Node = dict[str, Any]

_RULES = {
    "sum": "sum", "min": "min", "max": "max", "arg_max": "latest", "max_by": "latest", "argmax": "latest",
    "arg_min": "first", "min_by": "first", "argmin": "first",
}  # fmt: skip
_SCALARS = {
    "bigint": "long", "integer": "long", "int": "long", "smallint": "long", "tinyint": "long", "hugeint": "long",
    "long": "long", "double": "double", "float": "double", "real": "double", "decimal": "double", "numeric": "double",
    "timestamp": "timestamp", "timestamptz": "timestamp", "timestamp with time zone": "timestamp",
    "varchar": "string", "text": "string", "string": "string", "boolean": "boolean", "bool": "boolean",
    "blob": "binary",
}  # fmt: skip
_UNITS = {
    **{unit: f"1 {unit}" for unit in ("second", "minute", "hour", "day", "week", "month", "year")},
    "quarter": "3 months",
}  # fmt: skip
_AGGREGATES = (
    "count, count_if, sum, min, max, avg, arg_min, arg_max, approx_count_distinct, approx_quantile; what follows from "
    "these is a question to the map, in SQL"
)
_EXAMPLE = "select origin as key, date_trunc('hour', departed) as time, count(*) as flights from events group by 1, 2"
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class Measure:
    """A field's part of a row: the value of an expression, where a condition holds; `there`: 1 where it is one."""

    name: str
    expression: str
    condition: str | None = None
    there: bool = False

    @property
    def sql(self) -> str:
        """The expression in SQL."""
        value = f"(({self.expression}) is not null)::bigint" if self.there else self.expression
        if self.condition is None:
            return value
        return f"case when {self.condition} then {value} {'else 0 ' if self.there else ''}end"


@dataclass(frozen=True, slots=True)
class TableQuery:
    """A query that is understood: the fields in words, the width that it truncates times to, and what a row brings.

    `resolution` None: times are as they are. `time` None: the rows have none. `columns` are those of a row that the
    query names. `single` has the name of the one quantile that is asked of a sketch.
    """

    fields: str
    resolution: str | None
    key: str
    time: str | None
    where: str | None
    measures: tuple[Measure, ...]
    columns: tuple[str, ...]
    single: Mapping[str, str]

    @property
    def rows(self) -> str:
        """The query for what each row of a table `raw` brings; `ROW` is its number there."""
        parts = [f'"{ROW}"', self.key, self.time or "to_timestamp(0)", *(measure.sql for measure in self.measures)]
        names = [ROW, "key", "time", *(measure.name for measure in self.measures)]
        listed = ", ".join(f'{part} as "{name}"' for part, name in zip(parts, names, strict=True))
        return f"select {listed} from raw where {self.where or 'true'}"


def _refused(message: str, hint: str, **values: Any) -> Invalid:
    return Invalid(message, kind="table_query", hint=hint, **values)


@contextmanager
def connected(settings: Mapping[str, Any]) -> Iterator[duckdb.DuckDBPyConnection]:
    """A DuckDB that spills into a folder of its own, which goes with it: by itself it would into the working folder.

    One whose settings name a `temp_directory` spills there, or, where that is empty, nowhere.
    """
    import duckdb

    own = {"allow_persistent_secrets": "false", **settings}
    with ExitStack() as stack:
        if "temp_directory" not in own:
            own["temp_directory"] = stack.enter_context(TemporaryDirectory(prefix="millpond-sql-"))
        yield stack.enter_context(duckdb.connect(config=own))


@lru_cache(maxsize=64)
def table_query(text: str) -> TableQuery:
    """The query of a table, understood.

    Raises: `Invalid`, kind `table_query`, naming what is no rule, or is about several rows.
    """
    import duckdb  # a process that makes no table does without it

    with duckdb.connect(config=LOCKED) as connection:
        return _Parser(connection, text).parsed()


class _Parser:
    """Reads one query by a connection, which knows the syntax and the functions."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, text: str) -> None:
        self.connection, self.text = connection, text
        [(template,)] = connection.execute("select json_serialize_sql('select 1')").fetchall()
        self._template = parse_object(template)
        self.columns: dict[str, None] = {}
        self.node: Node = {}
        self.tables: tuple[str, ...] = ()
        self.dated: str | None = None
        self.fields: list[str] = []
        self.measures: list[Measure] = []
        self.single: dict[str, str] = {}

    def parsed(self) -> TableQuery:
        self.node = self._select()
        items = {self._alias(item): item for item in self.node["select_list"]}
        if "key" not in items or len(items) < len(self.node["select_list"]):
            raise _refused(
                "a table has a key, and columns that differ in their names", f"write such as {_EXAMPLE}",
                columns=", ".join(items),
            )  # fmt: skip
        key, time = items.pop("key"), items.pop("time", None)
        self._check_groups([item for item in (key, time) if item is not None])
        resolution, instant = ("none", None) if time is None else self._truncated(time)
        for name, item in items.items():
            self._field(name, item, instant)
        if not self.fields:
            raise _refused("a table has an aggregate at least", f"write such as {_EXAMPLE}", columns="key, time")
        return TableQuery(
            ", ".join(self.fields), resolution, self._row(key), instant or self.dated,
            None if self.node["where_clause"] is None else self._row(self.node["where_clause"]),
            tuple(self.measures), tuple(self.columns), self.single,
        )  # fmt: skip

    def _select(self) -> Node:
        """The one SELECT of the query, of one table."""
        [(read,)] = self.connection.execute("select json_serialize_sql($1::varchar)", [self.text]).fetchall()
        answer = parse_object(read)
        if answer.get("error"):
            raise _refused("the query is not understood", f"write such as {_EXAMPLE}",
                           reason=str(answer.get("error_message")))  # fmt: skip
        statements = answer["statements"]
        node: Node = statements[0]["node"] if len(statements) == 1 else {"type": "SEVERAL"}
        odd = [name for name in ("having", "qualify", "sample") if node.get(name)]
        odd += [str(part["type"]).removesuffix("_MODIFIER").lower() for part in node.get("modifiers", ())]
        odd += ["with"] if node.get("cte_map", {}).get("map") else []
        if node["type"] != "SELECT_NODE" or node["from_table"]["type"] != "BASE_TABLE" or odd:
            raise _refused("a table is one SELECT of one table, by groups", f"write such as {_EXAMPLE}",
                           found=", ".join(odd) or "another form of query")  # fmt: skip
        table = node["from_table"]
        self.tables = tuple(str(name).lower() for name in (table["table_name"], table["alias"]) if name)
        return node

    def _alias(self, item: Node) -> str:
        name = item["alias"] or (item["column_names"][-1] if item["class"] == "COLUMN_REF" else "")
        if not _PLAIN.fullmatch(name):
            raise _refused("a column of a table has a name", "write AS and a plain name behind it",
                           column=self._text(item))  # fmt: skip
        return str(name).lower() if str(name).lower() in ("key", "time") else str(name)

    def _check_groups(self, keys: list[Node]) -> None:
        """See that rows are grouped by the key, and the time."""
        if self.node["aggregate_handling"] == "FORCE_AGGREGATES":
            return
        names = [self._alias(item) for item in self.node["select_list"]]
        listed = [self._text(item) for item in self.node["select_list"]]
        groups = []
        for group in self.node["group_expressions"]:
            text = self._text(group)
            if text.isdigit() and 0 < int(text) <= len(listed):
                text = listed[int(text) - 1]
            elif text.strip('"') in names:
                text = listed[names.index(text.strip('"'))]
            groups.append(text)
        if len(self.node["group_sets"]) > 1 or {*groups} != {self._text(item) for item in keys}:
            raise _refused(
                "a table is grouped by its key, and its time", "write group by with both, and nothing else; several "
                "columns become one key by concat_ws, or tags", groups=", ".join(groups),
            )  # fmt: skip

    def _truncated(self, time: Node) -> tuple[str | None, str]:
        """The width that a time is truncated to, and what is; the time itself where it is not."""
        if time["class"] == "FUNCTION" and time["function_name"] in ("date_trunc", "datetrunc"):
            unit, instant = _arguments(time)
            word = self._text(unit).strip("'").lower().removesuffix("s")
            if word not in _UNITS:
                raise _refused("times are not truncated to this", f"one of: {', '.join(_UNITS)}", unit=word)
            return _UNITS[word], self._row(instant)
        return None, self._row(time)

    def _field(self, name: str, item: Node, instant: str | None) -> None:
        """Note the field of an aggregate, and what a row brings to it."""
        scalar, call = self._cast(item)
        function = call.get("function_name", "") if call["class"] == "FUNCTION" else ""
        if not self._is_aggregate(function) or call.get("is_operator"):
            raise _refused("a column of a table is an aggregate, the key, or the time", f"known are {_AGGREGATES}",
                           column=name, expression=self._text(item))  # fmt: skip
        if call["distinct"] or call["order_bys"]["orders"]:
            hint = "write approx_count_distinct(x)" if function == "count" else "leave DISTINCT and ORDER BY out"
            raise _refused("an aggregate has no rule", hint, column=name, expression=self._text(call))
        of = _arguments(call)
        condition = None if call["filter"] is None else self._row(call["filter"])
        if function in ("count_star", "count"):
            self.fields.append(f"{name} long count")
            self.measures.append(Measure(name, self._row(of[0]) if of else "true", condition, there=True))
            return
        if function in ("count_if", "countif"):
            self.fields.append(f"{name} long sum")
            self.measures.append(Measure(name, f"({self._row(of[0])})::bigint", condition))
            return
        if not of or (function not in _RULES and function not in ("avg", "mean", *_SKETCHED)):
            self._no_rule(name, function)
        value, sketched = self._row(of[0]), function in _SKETCHED
        scalar = scalar or (None if sketched else self._cast(of[0])[0])
        if function in ("avg", "mean"):
            total, count = f"{name}_sum", f"{name}_count"
            self.fields += [
                f"{total} {scalar or 'double'} sum",
                f"{count} long count",
                f"{name} average of {total}/{count}",
            ]
            self.measures.append(Measure(total, value, condition))
            self.measures.append(Measure(count, value, condition, there=True))
            return
        if function == "approx_count_distinct":
            self.fields.append(f"{name} distinct")
            value = f"({value})::varchar"
        elif function == "approx_quantile":
            fractions = self._fractions(of)
            self.fields.append(f"{name} quantiles({', '.join(fractions)})")
            if len(fractions) == 1:
                self.single[f"{name}_sketch"] = name
        else:
            rule = _RULES[function]
            dated = rule in ("latest", "first")
            if dated != (len(of) == 2):
                self._no_rule(name, f"{function} of {len(of)}")
            if dated:
                self._check_dated(name, self._row(of[1]), instant)
            self.fields.append(f"{name} {scalar or ('string' if dated else 'double')} {rule}")
        self.measures.append(Measure(name, value, condition))

    def _no_rule(self, name: str, function: str) -> NoReturn:
        raise _refused("an aggregate has no rule by which parts of it combine", f"known are {_AGGREGATES}", column=name,
                       aggregate=function)  # fmt: skip

    def _check_dated(self, name: str, by: str, instant: str | None) -> None:
        """See that `arg_max` and `arg_min` are by the time of the row."""
        self.dated = self.dated or instant or by
        if by != self.dated:
            raise _refused("arg_max and arg_min are by the time of a row", f"write {self.dated}", column=name, by=by)

    def _fractions(self, of: list[Node]) -> list[str]:
        """The fractions of a quantile: a number, or a list of them."""
        text = self._text(of[1]) if len(of) > 1 else ""
        return [part.strip().removeprefix("CAST(").split(" AS ")[0] for part in
                re.sub(r"^(list_value\(|main\.list_value\(|\[)|(\)|\])$", "", text).split(",")]  # fmt: skip

    def _cast(self, item: Node) -> tuple[str | None, Node]:
        """The type that a cast names, and what is cast; without one, None and the item."""
        if item["class"] != "CAST":
            return None, item
        word = self._text(item).rsplit(" AS ", 1)[-1].rstrip(")").lower().split("(")[0].strip()
        if word not in _SCALARS:
            raise _refused("no field has this type", f"one of: {', '.join(_SCALARS)}", type=word)
        return _SCALARS[word], item["child"]

    def _is_aggregate(self, function: str) -> bool:
        return bool(self._stabilities(function, "aggregate"))

    def _stabilities(self, function: str, kind: str) -> list[str | None]:
        rows = self.connection.execute(
            "select distinct stability from duckdb_functions() where function_name = $1 and function_type = $2",
            [function.lower(), kind],
        ).fetchall()  # fmt: skip
        return [stability for (stability,) in rows]

    def _row(self, expression: Node) -> str:
        """An expression about one row, in SQL.

        Raises: `Invalid` for one that is about several, or not always the same.
        """
        for part in _parts(expression):
            kind = part.get("class")
            if kind in ("SUBQUERY", "WINDOW", "STAR", "PARAMETER", "LAMBDA"):
                raise _refused("an expression is about one row, and its columns", "leave it out",
                               expression=self._text(expression), found=kind.lower())  # fmt: skip
            if kind == "COLUMN_REF":
                names = part["column_names"]
                if len(names) > 1 and str(names[0]).lower() in self.tables:
                    names = part["column_names"] = names[1:]
                self.columns.setdefault(names[0])
            if kind == "FUNCTION" and (function := str(part["function_name"])):
                self._check_function(function, expression)
        return self._text(expression)

    def _check_function(self, function: str, expression: Node) -> None:
        stabilities = self._stabilities(function, "scalar")
        if self._is_aggregate(function) and not stabilities:
            raise _refused("an aggregate stands within another expression", "give it a column of its own",
                           aggregate=function, expression=self._text(expression))  # fmt: skip
        if not stabilities and not self._stabilities(function, "macro"):
            raise _refused("there is no such function", "functions are those of DuckDB", function=function,
                           expression=self._text(expression))  # fmt: skip
        if any(stability not in (None, "CONSISTENT") for stability in stabilities):
            raise _refused("a function does not always say the same of a row", "leave it out, or load its value as a "
                           "column", function=function, expression=self._text(expression))  # fmt: skip

    def _text(self, expression: Node) -> str:
        """An expression in SQL, without its name."""
        self._template["statements"][0]["node"]["select_list"] = [{**expression, "alias": ""}]
        written = self.connection.execute(
            "select json_deserialize_sql($1::json)", [to_json(self._template).decode()]
        ).fetchall()  # fmt: skip
        return str(written[0][0]).removeprefix("SELECT ")


_SKETCHED = ("approx_count_distinct", "approx_quantile")


def _arguments(call: Node) -> list[Node]:
    """The arguments of a function; the form depends on the version of DuckDB."""
    if "arguments" in call:
        return [argument["expression"] for argument in call["arguments"]]
    return list(call["children"])


def _parts(node: Any) -> Iterator[Node]:
    """All parts of an expression, itself first."""
    if isinstance(node, dict):
        yield node
        for inner in node.values():
            yield from _parts(inner)
    elif isinstance(node, list):
        for inner in node:
            yield from _parts(inner)
