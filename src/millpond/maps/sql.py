"""SQL over maps: DuckDB, in which every map is a table and `get_state(map, key, at)` looks keys up.

    select kind, count(*) from events where queue = 'etl' group by kind
    select key, count(*), avg(temp) from weather where key in ('JFK', 'LGA') group by key
    select f.*, get_state('weather', origin, time_hour).temp from flights f
    select q.*, unnest(get_state('sales', shop, time, window := '7 days')) from questions q
    select * from at_resolution('sales', '1 day') where key = 'JFK'
    select key, old, new from map_diff('weather', 'main', 'fix')

* A map's table is read as a stream by the map's own `scan`, wherever it lies: DuckDB hands down the columns and
  conditions it can, and they become reads of just the keys and times they name.
* What else the pond has as a table, such as its events (`millpond.tables`), is read the same way. A map of that name
  has it; the table is always there in the schema `millpond`: `millpond.events`.
* `get_state` is a lookup in bulk, some thousand rows at a time, in the snapshot as it was when the query began. Its
  answer has the map's own type; the map is named by a literal, so that the type is known before the query runs.
  `known_at` asks a layered map as it was known at that time; so may the query as a whole. `window` combines the
  buckets of an aggregate in so long a time before that of the time.
* `at_resolution`, of literals, is the table of an aggregate with wider buckets; `map_diff`, likewise, that of the keys
  of a map that differ between two refs.
* A query reads. It gets a database of its own, in memory, locked: no files, no network, no extensions, no settings.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads

from millpond.error_values import shown
from millpond.errors import Invalid, MillpondError, Unavailable
from millpond.maps.inputs.key_columns import is_utf8
from millpond.maps.inputs.spans import coarser
from millpond.maps.model.catalogue import near_names, no_such_map
from millpond.maps.model.columns import INSTANT, MOMENT, askable_schema
from millpond.maps.model.store_limits import between_unsupported
from millpond.maps.model.table_query import LOCKED, connected
from millpond.maps.snapshots.snapshot import answer_type
from millpond.maps.sql_keys import WITHIN, add_macro, check_plan, instants_of_numbers
from millpond.times.instants import clear_instant, parse_instant
from millpond.tracing import span

if TYPE_CHECKING:
    from millpond.maps.model.definition import MapDefinition
    from millpond.maps.predicates.predicate import Where

__all__ = ("Bounds", "Lookups", "Now", "QueryableMap", "QueryablePond", "QueryableTable", "add_stream", "query")

# Whatever may hide a name (strings, quoted names, comments), calls of get_state with the map they name, tables at a
# resolution, and arguments named window, a word that DuckDB takes only in quotes. A dollar within a name begins no
# string: each would be looked for to the end of the query.
_HIDING = r"""[eE]'(?:[^'\\]|\\.|'')*' | '(?:[^']|'')*' | "(?:[^"]|"")*" | --[^\n]* | /\*.*?\*/
      | (?<![\w$\u0080-\U0010ffff])(\$\w*\$).*?\1
      | (?P<named>\bwindow(?=\s*(?::=|=>)))"""
_TOKEN = re.compile(
    _HIDING
    + r"""
      | (?P<call>\bget_state\s*\(\s*(?:'(?P<map>(?:[^']|'')*)'\s*(?:,\s*|(?=\))))?)
      | (?P<wide>\bat_resolution\s*\(\s*'(?P<of>(?:[^']|'')*)'\s*,\s*'(?P<width>(?:[^']|'')*)'\s*\))
      | (?P<differ>\bmap_diff\s*\(
          (?:\s*(?P<sides>'(?:[^']|'')*'(?:\s*,\s*'(?:[^']|'')*'){1,2})
          (?:\s*,\s*three_dots\s*(?::=|=>)\s*(?P<dots>true|false))?\s*\))?)""",
    re.VERBOSE | re.DOTALL | re.IGNORECASE,
)
_ARGUMENT = re.compile(_HIDING + r" | (?P<bracket>[()])", re.VERBOSE | re.DOTALL | re.IGNORECASE)
_LITERAL = re.compile(r"'((?:[^']|'')*)'")
_LISTS = re.compile(r"\b(show|information_schema|(duckdb|pg|sqlite|pragma)_\w+)\b", re.IGNORECASE)
"""Words of queries that may tell of tables which they do not name."""
_READS = frozenset(("SELECT", "EXPLAIN", "MULTI"))  # PIVOT is a statement of several


class Lookups(Protocol):
    """A lookup of many keys at their times, as `Snapshot.lookup` does it."""

    def lookup(self, keys: Any, at: Any = None, *, window: str | None = None) -> pa.Array: ...


class QueryableMap(Protocol):
    """A map as SQL needs it. Its snapshot is taken once a query, at the first key."""

    @property
    def name(self) -> str: ...
    @property
    def definition(self) -> MapDefinition: ...
    def scan(
        self, where: Where = None, columns: Sequence[str] | None = None, *, known_at: object = None,
        resolution: str | None = None,
    ) -> pa.RecordBatchReader: ...  # fmt: skip
    def snapshot(self) -> Lookups: ...
    def lookup(
        self, keys: Any, at: Any = None, *, known_at: Any = None, window: str | None = None
    ) -> pa.Array: ...  # fmt: skip


class QueryableTable(Protocol):
    """A table that is no map. Its `scan` takes a condition of pyarrow's, and yields no other rows."""

    @property
    def name(self) -> str: ...
    @property
    def schema(self) -> pa.Schema: ...
    def scan(self, where: pc.Expression | None, columns: Sequence[str] | None) -> pa.RecordBatchReader: ...


Differing: TypeAlias = Callable[[str, str, Sequence[str], bool], QueryableTable]
"""The table of what differs, by its name, the map, one ref or two, and if it counts from where both parted."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """The bounds of a query: the rows of its answer, of which no more are made; the memory and threads of DuckDB."""

    rows_max: int
    memory_bytes_max: int
    threads: int

    @property
    def settings(self) -> dict[str, str]:
        """Settings of a DuckDB that keeps to them: it writes nothing to the disk either."""
        memory = f"{self.memory_bytes_max}B"
        return {"memory_limit": memory, "threads": str(self.threads), "temp_directory": ""}


class Now(Protocol):
    """All that a query wants of a clock."""

    def now_ms(self) -> int: ...


class QueryablePond(Protocol):
    """A pond as SQL needs it."""

    @property
    def clock(self) -> Now: ...
    def maps(self) -> Sequence[QueryableMap]: ...


@dataclass(frozen=True, slots=True)
class _MapThen:
    """A layered map as it was known at a moment."""

    now: QueryableMap
    known_at: object

    @property
    def name(self) -> str:
        return self.now.name

    @property
    def definition(self) -> MapDefinition:
        return self.now.definition

    def scan(
        self, where: Where = None, columns: Sequence[str] | None = None, *, known_at: object = None,
        resolution: str | None = None,
    ) -> pa.RecordBatchReader:  # fmt: skip
        moment = self.known_at if known_at is None else known_at
        return self.now.scan(where, columns, known_at=moment, resolution=resolution)

    def snapshot(self) -> Lookups:
        return self

    def lookup(self, keys: Any, at: Any = None, *, known_at: Any = None, window: str | None = None) -> pa.Array:
        return self.now.lookup(keys, at, known_at=self.known_at if known_at is None else known_at, window=window)


def query(
    pond: QueryablePond, text: str, tables: Sequence[QueryableTable] = (), bounds: Bounds | None = None, *,
    known_at: object = None, differing: Differing | None = None,
) -> pa.Table:  # fmt: skip
    """The answer to a query over the maps of a pond, and its other tables; of maps as they were `known_at` a time.
    `differing` gives the tables of differences.

    Raises:
        Invalid: the query is not understood, asks for what is not there, or would do more than read.
        Unavailable: it needs more memory than there is.
    """
    if not is_utf8(text):
        raise Invalid("the query is no text", kind="sql", query=shown(text))
    maps = {pond_map.name: pond_map for pond_map in pond.maps()}
    if known_at is not None:
        moment = clear_instant(parse_instant(known_at))
        maps = {name: _MapThen(pond_map, moment) for name, pond_map in maps.items()}
    with span("sql"), connected(LOCKED | ({} if bounds is None else bounds.settings)) as connection:
        connection.execute("set timezone = 'UTC'")
        run = _Run(maps, clear_instant(pond.clock.now_ms()), differing)
        try:
            text = run.with_lookups(connection, text)
            kind = _check_statement(connection, text)
            run.add_tables(connection, text, tables)
            connection.execute("set lock_configuration = true")
            if kind == "SELECT" and run.looks_up:
                check_plan(connection, text, run.definition)
            relation = connection.sql(text)
            if bounds is not None:
                relation = relation.limit(bounds.rows_max)
            table = relation.to_arrow_table()
            return table.rename_columns([_as_written(name) for name in table.column_names])
        except duckdb.Error as error:
            # What went wrong within a scan or a lookup is raised as it was, not as DuckDB words it.
            raise (
                run.failures[0] if run.failures else _as_ours(error, [*maps, *(own.name for own in tables)])
            ) from error


def add_stream(connection: duckdb.DuckDBPyConnection, name: str, pond_map: QueryableMap) -> list[BaseException]:
    """Make a map a table of a connection, read as a stream for each place that names it; a list of what will fail."""
    run = _Run({}, 0)
    connection.register(name, _Table(run, askable_schema(pond_map.definition), pond_map.scan))
    return run.failures


def _check_statement(connection: duckdb.DuckDBPyConnection, text: str) -> str:
    statements = connection.extract_statements(text)
    if len(statements) != 1:
        raise Invalid("one query at a time", kind="sql", statements=len(statements))
    kind = statements[0].type.name
    if kind not in _READS:
        raise Invalid(
            "a query only reads", kind="sql_not_a_query", statement=kind.lower().replace("_", " "),
            hint="start with select or from; maps are changed by loading into them",
        )  # fmt: skip
    return kind


def _as_ours(error: duckdb.Error, tables: Sequence[str]) -> MillpondError:
    said = str(error).partition("\n\nLINE")[0].partition("\nPossible solutions")[0]
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    reason = _as_written(" ".join(lines[:3])) or type(error).__name__
    if isinstance(error, duckdb.OutOfMemoryException):
        return Unavailable("the query needs more memory than there is", kind="sql_memory", reason=reason)
    if isinstance(error, duckdb.PermissionException | duckdb.IOException):
        return Invalid(
            "a query reads maps, nothing else", kind="sql_not_a_map", reason=reason, hint="load the file into a map"
        )
    unknown = re.search(r"Table with name (\S+)", reason)
    hint = f"there is: {', '.join(near_names(unknown[1].lower(), tables))}" if unknown else None
    return Invalid("the query is not understood", kind="sql", reason=reason, hint=hint)


@dataclass(slots=True)
class _Run:
    """One query under way: the maps it may ask, the instant that is now, and what failed while rows were read."""

    maps: Mapping[str, QueryableMap]
    now: int | str
    differing: Differing | None = None
    failures: list[BaseException] = field(default_factory=list)
    looks_up: bool = False

    # -- tables ---------------------------------------------------------------------------------------

    def add_tables(self, connection: duckdb.DuckDBPyConnection, text: str, tables: Sequence[QueryableTable]) -> None:
        """Make the maps of a query tables, and the others in their own schema; there too where no map has the name."""
        for pond_map in self._named(connection, text, [table.name for table in tables]):
            connection.register(pond_map.name, _Table(self, askable_schema(pond_map.definition), pond_map.scan))
        connection.execute("create schema millpond")
        for table in tables:
            connection.register(f"the {table.name}", _Table(self, table.schema, table.scan))  # no map is named so
            for place in ("millpond", *(() if table.name in self.maps else ("main",))):
                connection.execute(f'create view {place}.{table.name} as from "the {table.name}"')

    def _named(
        self, connection: duckdb.DuckDBPyConnection, text: str, others: Sequence[str]
    ) -> Iterable[QueryableMap]:  # fmt: skip
        """The maps that a query names, as a table each takes a millisecond; all where it may be about others."""
        try:
            names = {name.lower() for name in connection.get_table_names(text)}
        except duckdb.Error:
            return self.maps.values()
        all_there = names <= {*self.maps, *others}  # where it is not, DuckDB knows a name that is like it
        if not all_there or _LISTS.search(text):
            return self.maps.values()
        return [self.maps[name] for name in sorted(names & self.maps.keys())]

    def noting(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The same batches; what they raise is noted."""
        try:
            yield from batches
        except Exception as error:
            self.failures.append(error)
            raise

    # -- lookups --------------------------------------------------------------------------------------

    def with_lookups(self, connection: duckdb.DuckDBPyConnection, text: str) -> str:
        """The query with every `get_state('map', …)` as a function of that map, which is made."""
        names: set[str] = set()

        def retargeted(token: re.Match[str]) -> str:
            if token["wide"] is not None:
                return self._add_wide(connection, self._map_named(token["of"]), token["width"].replace("''", "'"))
            if token["differ"] is not None:
                return self._add_differences(connection, token)
            if token["named"] is not None:
                return f'"{token[0]}"'
            if token["call"] is None:
                return token[0]
            if token["map"] is None:
                raise Invalid(
                    "get_state must name its map", kind="sql_get_state",
                    hint="write it in quotes: get_state('weather', key, time); without a time: now",
                )  # fmt: skip
            pond_map = self._map_named(token["map"])
            form = WITHIN if _has_window(token) else "get_state"
            name = f"{form}:{pond_map.name}"
            if name not in names:
                names.add(name)
                self._add_lookup(connection, pond_map, form)
                self.looks_up = True
            return f'"{name}"('

        return _TOKEN.sub(retargeted, text)

    def _map_named(self, literal: str) -> QueryableMap:
        name = literal.replace("''", "'").lower()
        if name not in self.maps:
            raise no_such_map(name, list(self.maps))
        return self.maps[name]

    def _add_wide(self, connection: Any, pond_map: QueryableMap, resolution: str) -> str:
        """Make the table of a map with wider buckets; its name in the query."""
        width = coarser(pond_map.definition, resolution).resolution
        name = f"{pond_map.name} at {width}"  # no map is named so
        scan = partial(pond_map.scan, resolution=width)
        connection.register(name, _Table(self, askable_schema(pond_map.definition), scan))
        return f'"{name}"'

    def _add_differences(self, connection: Any, token: re.Match[str]) -> str:
        """Make the table of a call of `map_diff`; its name in the query."""
        if self.differing is None or token["sides"] is None:
            raise Invalid(
                "map_diff names a map and its refs", kind="sql_map_diff",
                hint="write them in quotes: map_diff('weather', 'main', 'fix'); a branch alone: what is staged on it",
            )  # fmt: skip
        name, dots = token[0], (token["dots"] or "").lower() == "true"  # no map is named so
        map_name, *sides = (literal.replace("''", "'") for literal in _LITERAL.findall(token["sides"]))
        table = self.differing(name, map_name, sides, dots)
        connection.register(name, _Table(self, table.schema, table.scan))
        quoted = name.replace('"', '""')
        return f'"{quoted}"'

    def _add_lookup(self, connection: Any, pond_map: QueryableMap, form: str) -> None:
        """Make `get_state:<map>`, of a key, a time, the time at which it was known, and in that form a window."""
        definition = pond_map.definition
        if form == WITHIN and definition.aggregation is None:
            raise between_unsupported(definition)
        answer, lookup = _duckdb_type(answer_type(definition)), self._noted(self._lookup(pond_map))
        add_macro(connection, definition, answer, lookup, self._noted(instants_of_numbers), form)

    def _noted(self, act: Callable[..., Any]) -> Callable[..., Any]:
        """The same function; what it raises is noted."""

        def noted(*values: Any) -> Any:
            try:
                return act(*values)
            except Exception as error:
                self.failures.append(error)
                raise

        return noted

    def _lookup(self, pond_map: QueryableMap) -> Callable[..., Any]:
        lookups: list[Lookups] = []
        timed = pond_map.definition.kind.timed

        def lookup(keys: Any, at: Any, known_at: Any, windows: Any) -> Any:
            window = None if windows is None else _one_window(pond_map.name, windows)
            at = (self.now if at is None else at) if timed else None
            if known_at is not None:
                return pond_map.lookup(keys, at, known_at=known_at, window=window)
            if not lookups:
                lookups.append(pond_map.snapshot())
            return lookups[0].lookup(keys, at, window=window)

        return lookup

    def definition(self, name: str) -> MapDefinition:
        return self.maps[name].definition


def _has_window(call: re.Match[str]) -> bool:
    """True when an argument of a call is named window."""
    depth = 1
    for part in _ARGUMENT.finditer(call.string, call.end()):
        depth += {"(": 1, ")": -1}.get(part["bracket"] or "", 0)
        if depth == 0 or (depth == 1 and part["named"] is not None):
            return depth == 1
    return False


def _one_window(name: str, windows: Any) -> str:
    """The window that all lookups have."""
    window, *others = pc.unique(windows).to_pylist()
    if others or window is None:
        raise Invalid("a lookup has one window", kind="window", map=name, window=shown([window, *others]),
                      hint="write it as text: window := '7 days'")  # fmt: skip
    return str(window)


def _as_written(text: str) -> str:
    """Text of DuckDB's in which `get_state` reads as it did in the query."""
    return re.sub(r'"get_state(?:_within)?:(\w+)"\(', r"get_state('\1', ", text)


def _duckdb_type(kind: pa.DataType) -> str:
    if pa.types.is_struct(kind):
        fields = (f'"{field.name}" {_duckdb_type(field.type)}' for field in kind)
        return f"STRUCT({', '.join(fields)})"
    return {
        pa.string(): "VARCHAR", pa.int64(): "BIGINT", pa.float64(): "DOUBLE", pa.bool_(): "BOOLEAN",
        INSTANT: "TIMESTAMPTZ", MOMENT: "TIMESTAMPTZ", pa.binary(): "BLOB",
    }[kind]  # fmt: skip


class _Table(pads.Dataset):  # type: ignore[misc]  # pyarrow has no types
    """A table as the dataset that DuckDB reads: it asks for a scanner, once for each place the table is named."""

    def __init__(self, run: _Run, schema: pa.Schema, scan: Callable[[Any, Any], pa.RecordBatchReader]) -> None:
        self._run, self._schema, self._scan = run, schema, scan

    @property
    def schema(self) -> pa.Schema:
        return self._schema

    def scanner(self, columns: list[str] | None = None, filter: pc.Expression | None = None, **_: object) -> _Scan:
        try:
            reader = self._scan(filter, self._schema.names if columns is None else columns)
        except Exception as error:
            self._run.failures.append(error)  # as it was: DuckDB would call it a wrong query
            raise
        batches = self._run.noting(iter(reader))
        return _Scan(pa.RecordBatchReader.from_batches(reader.schema, batches))


@dataclass(frozen=True, slots=True)
class _Scan:
    """All that DuckDB wants of a scanner. Arrow's own reads ahead in threads that outlive a query which has enough."""

    reader: pa.RecordBatchReader

    def to_reader(self) -> pa.RecordBatchReader:
        return self.reader
