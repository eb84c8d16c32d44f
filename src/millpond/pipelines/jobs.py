"""The Spark jobs of pipelines, which run in the driver's process: `load`, `check`, `enrich`.

A job takes a session and its arguments as JSON holds them, and gives a result of the same kind.

Invariants:
* a job that is run again with the same key does the same, and what it did before stays done once: of its attempts one
  load is entered, see `tickets`, and rows are written once to the folder of the key;
* a load that fails leaves no map behind that it made;
* a job leaves nothing in the session: its views are in a session of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.types import NumericType, StructType

from millpond import spark
from millpond.client.location import parse_location
from millpond.clock import SystemClock
from millpond.errors import Invalid, NotFound
from millpond.json_forms import plain
from millpond.pipelines.branches import branch_to_load
from millpond.pipelines.programs import call_function
from millpond.pipelines.queries import bound, is_table, row_text
from millpond.pipelines.requests import (
    KeyRule,
    Rows,
    Rules,
    parse_questions,
    parse_rows,
    parse_rules,
    parse_target,
)
from millpond.pipelines.rules import ColumnMeasure, Measures, judge
from millpond.pipelines.sessions import own_session
from millpond.pipelines.targets import map_for_load
from millpond.pipelines.tickets import earlier_load, refuse_void, ticket_of
from millpond.spark.failures import is_of_spark
from millpond.stores.files import remove_tree

__all__ = ("JOBS", "Job", "frame_of")

Job = Callable[[SparkSession, Mapping[str, Any]], dict[str, Any]]


def _load(session: SparkSession, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Load the rows of a query into a map, once under the key."""
    rows, target = parse_rows(arguments["rows"]), parse_target(arguments["options"])
    key, name, attempt = str(arguments["key"]), str(arguments["map"]), int(arguments["attempt"])
    with parse_location(arguments["pond"]).open_existing() as pond:
        entered = earlier_load(pond, key, attempt)
        if entered is not None:
            return entered
        frame = frame_of(session, rows)
        if target.branch:
            branch_to_load(pond, target.branch, name)
        with map_for_load(pond, name, target, target.branch):
            result = spark.load(
                frame, pond, name, load_id=ticket_of(key, attempt), max_rejects=target.max_rejects, source=key,
                synchronise=True, branch=target.branch or None,
            )  # fmt: skip
            refuse_void(pond, ticket_of(key, attempt), result)
    on = {"branch": target.branch, "commit": result.commit} if target.branch else {}
    return {"load": result.load, "rows": result.rows, "rejected": result.rejected, "position": result.position, **on}


def _check(session: SparkSession, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Hold rows, or those of a map, against rules; the findings, and `passed` when all hold."""
    rules, name, location = parse_rules(arguments["rules"]), str(arguments["map"]), str(arguments["pond"])
    session = own_session(session)
    spark.register(session, location)
    if arguments["rows"]:
        frame = frame_of(session, parse_rows(arguments["rows"]))
        compares = rules.drift is not None and _is_there(location, name)
        there = _measure(_rows_of_map(session, name), rules) if compares else None
    elif rules.drift is not None or rules.keys is not None:
        raise Invalid("drift and keys compare rows with a map", kind="pipeline_input", map=name,
                      hint="give the check the rows")  # fmt: skip
    else:
        frame, there = _rows_of_map(session, name), None
    measures = _measure(frame, rules, None if rules.keys is None else _answered(frame, rules.keys, location, name))
    findings = judge(rules, measures, there)
    return {
        "passed": all(finding.passed for finding in findings), "rows": measures.rows, "findings": plain(findings)
    }  # fmt: skip


def _enrich(session: SparkSession, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Write the rows of a query with what maps know about each, as Parquet in the folder `out/key`."""
    questions, key, attempt = parse_questions(arguments["lookups"]), str(arguments["key"]), int(arguments["attempt"])
    out = Path(arguments["out"]).absolute()
    whole, staging = out / key, out / f".{key}-{attempt}"
    out.mkdir(parents=True, exist_ok=True)
    lookups = [
        spark.Lookup(
            question.map,
            key=f"`{question.key}`",
            at=f"`{question.at}`" if question.at else None,
            into=question.into or None,
        )
        for question in questions
    ]
    frame = frame_of(session, parse_rows(arguments["rows"]))
    enriched = spark.enrich(frame, lookups, pond=arguments["pond"], ref=arguments.get("ref"))
    observed = Observation()
    matches = [sql.count(sql.col(f"`{lookup.name}`")).alias(lookup.name) for lookup in lookups]
    counted = enriched.observe(observed, sql.count(sql.lit(1)).alias("rows"), *matches)
    counted.sparkSession.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    counted.write.mode("overwrite").option("compression", "zstd").parquet(f"file://{staging}")
    _publish(staging, whole)
    counts = dict(observed.get)
    rows = counts.pop("rows")
    return {"path": str(whole), "rows": rows, "found": counts}


def _query(session: SparkSession, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The rows of a query as Parquet in the folder `out/key`; with `first_rows`, so many of them instead."""
    inputs: dict[str, Any] = arguments["inputs"]
    session = own_session(session)
    spark.register(session, arguments["pond"])
    for name, value in inputs.items():
        if is_table(value):
            _table(session, value).createOrReplaceTempView(name)
    for value in arguments.get("maps", ()):
        _table(session, value).createOrReplaceTempView(value["map"])
    parameters = {name: value for name, value in inputs.items() if not is_table(value)}
    frame = session.sql(bound(arguments["query"], inputs, ":{}".format), args=parameters)
    if arguments["first_rows"]:
        return {"first": [row_text(row.asDict(recursive=True)) for row in frame.take(arguments["first_rows"])]}
    whole = Path(arguments["out"]).absolute() / arguments["key"]
    staging = whole.with_name(f".{whole.name}-{arguments['attempt']}")
    whole.parent.mkdir(parents=True, exist_ok=True)
    observed = Observation()
    counted = frame.observe(observed, sql.count(sql.lit(1)).alias("rows"))
    counted.write.mode("overwrite").option("compression", "zstd").parquet(f"file://{staging}")
    _publish(staging, whole)
    return {"path": str(whole), "rows": observed.get["rows"]}


def _table(session: SparkSession, value: Mapping[str, Any]) -> DataFrame:
    if "path" in value:
        return session.read.parquet(_url(value["path"]))
    at = {"ref": value["ref"]} if "ref" in value else {}
    return session.read.format("millpond").options(map=value["map"], **at).load()


def _function(session: SparkSession, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The result of a function of a program, which is called with a session of its own."""
    session = own_session(session)
    spark.register(session, arguments["pond"])
    return call_function(
        arguments["program"], arguments["pipeline"], arguments["step"], arguments["arguments"], session=session,
        passes=is_of_spark,
    )  # fmt: skip


JOBS: dict[str, Job] = {
    "load": _load, "check": _check, "enrich": _enrich, "query": _query, "function": _function,
}  # fmt: skip


def frame_of(session: SparkSession, rows: Rows) -> DataFrame:
    """The rows of a query, whose views nobody else sees."""
    session = own_session(session)
    for name, view in rows.views.items():
        if view.sql:
            frame = session.sql(view.sql)
        else:
            reader = session.read.format(view.format).options(**view.options)
            frame = (reader.schema(view.schema) if view.schema else reader).load([_url(path) for path in view.files])
        frame.createOrReplaceTempView(name)
    return session.sql(rows.sql)


def _url(path: str) -> str:
    """A path of this machine, whatever file system Spark takes for its own."""
    return path if "://" in path else f"file://{Path(path).absolute()}"


def _publish(staging: Path, whole: Path) -> None:
    """Give the rows their name, unless an earlier attempt did: a rename onto a folder with files fails."""
    try:
        staging.rename(whole)
    except OSError:
        if not whole.is_dir():
            raise
    for folder in whole.parent.glob(f".{whole.name}-*"):
        remove_tree(folder)


def _is_there(location: str, name: str) -> bool:
    with parse_location(location).open_existing() as pond, suppress(NotFound):
        return pond.map(name) is not None
    return False


# -- measures -----------------------------------------------------------------------------------------


def _rows_of_map(session: SparkSession, name: str) -> DataFrame:
    """The rows of a map, with the fields of a struct as columns."""
    frame = session.read.format("millpond").option("map", name).load()
    columns: list[Any] = []
    for column in frame.schema.fields:
        if isinstance(column.dataType, StructType):
            columns += [sql.col(f"`{column.name}`.`{inner}`").alias(inner) for inner in column.dataType.names]
        else:
            columns.append(sql.col(f"`{column.name}`"))
    return frame.select(*columns)


def _answered(frame: DataFrame, keys: KeyRule, location: str, name: str) -> int:
    """The rows whose key the map answers."""
    _known_columns(frame, [keys.column, *([keys.at] if keys.at else [])])
    answer = f"answer_{SystemClock().random_id()}"
    lookup = spark.Lookup(name, key=f"`{keys.column}`", at=f"`{keys.at}`" if keys.at else None, into=answer)
    return spark.enrich(frame, lookup, pond=location).where(sql.col(answer).isNotNull()).count()


def _measure(frame: DataFrame, rules: Rules, matched_rows: int | None = None) -> Measures:
    """The measures that rules need, in one pass."""
    numbers = [column.name for column in frame.schema.fields if isinstance(column.dataType, NumericType)]
    bounded = [name for name, rule in rules.columns.items() if rule.min is not None or rule.max is not None]
    _known_columns(frame, list(rules.columns))
    if texts := [name for name in bounded if name not in numbers]:
        raise Invalid("a column without numbers has no min and max", kind="pipeline_column", column=texts[0],
                      hint=f"columns of numbers: {', '.join(numbers) or 'none'}")  # fmt: skip
    drifts = rules.drift is not None and rules.drift.mean_change_max is not None
    column_names = list(dict.fromkeys([*rules.columns, *(numbers if drifts else [])]))
    measured = [("nulls", column_names), ("min", bounded), ("max", bounded), ("mean", numbers if drifts else [])]
    aggregates: dict[str, Callable[[Column], Column]] = {
        "nulls": lambda column: sql.count_if(column.isNull()), "min": sql.min, "max": sql.max, "mean": sql.mean,
    }  # fmt: skip
    parts = [
        aggregates[measure](sql.col(f"`{name}`")).cast("double").alias(f"{measure} {name}")
        for measure, names in measured for name in names
    ]  # fmt: skip
    row = frame.agg(sql.count(sql.lit(1)).alias("rows"), *parts).collect()[0].asDict()
    columns = {
        name: ColumnMeasure(
            nulls=int(row[f"nulls {name}"]), min=row.get(f"min {name}"), max=row.get(f"max {name}"),
            mean=row.get(f"mean {name}"),
        )
        for name in column_names
    }  # fmt: skip
    return Measures(rows=row["rows"], columns=columns, keys_matched=matched_rows)


def _known_columns(frame: DataFrame, names: list[str]) -> None:
    for name in names:
        if name not in frame.columns:
            raise Invalid("the rows have no such column", kind="pipeline_column", column=name,
                          hint=f"there are: {', '.join(frame.columns)}")  # fmt: skip
