"""`get_state(map, key, at, known_at)` in Spark SQL: typed as the map is, one function for all maps of the pond.

The type of the answer depends on the map, which SQL names by a text literal. So the function is entered in the
session's registry as a *builder*: Spark calls it back while it resolves a query, it looks the map up, and answers with
a Python function of the right type for the other arguments. Several in one query share one pass through Python.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.types import DataType, _parse_datatype_json_string

from millpond.errors import Invalid, MillpondError
from millpond.spark.locations import location_of, opened
from millpond.spark.planned_past import past_of
from millpond.spark.private_api import (
    enter_function,
    expression_of,
    is_connect,
    planning_error,
    refuse_function,
)
from millpond.spark.question_types import check_key, check_time
from millpond.spark.udf import Question, by_column, question_to

__all__ = ("NAME", "register_get_state")

NAME = "get_state"


def register_get_state(session: SparkSession) -> None:
    """Enter `get_state` in the session's functions; doing so again replaces it.

    Spark Connect tells no function the types of its arguments, so there it is one that says what to use instead.
    """
    if is_connect(session):
        refuse_function(session, NAME, f"{NAME} in SQL", "use mp.enrich(frame, map=…, key=…, at=…)")
        return
    enter_function(session, NAME, _Builder(session))


class _Builder:
    """From the expressions of a call to the expression that computes it. Spark calls `apply`."""

    def __init__(self, session: SparkSession) -> None:
        self.session = session

    def apply(self, children: Any) -> Any:
        try:
            question = self._question(children)
        except MillpondError as error:
            raise planning_error(self.session, str(error)) from error
        return expression_of(by_column(_ask(question), question.spark), children.tail().toSeq())

    def _question(self, children: Any) -> Question:
        names = children.size()
        if names not in (2, 3, 4):
            raise Invalid(
                f"{NAME} takes a map, a key and a time, and when it was known", kind="function_arguments", given=names
            )  # fmt: skip
        named = children.apply(0)
        if named.getClass().getSimpleName() != "Literal" or named.value() is None:
            raise Invalid(f"{NAME} takes the map's name as a text literal", kind="function_arguments", given=named)
        location = location_of(None, self.session)
        with opened(None, location) as pond:
            name = named.value().toString()
            definition = pond.map(name).definition
            # Types are checked before the map is frozen: a wrong query costs nothing.
            check_key(definition, _type_of(children.apply(1)), children.apply(1).sql())
            for number in range(2, names):
                check_time(definition, _type_of(children.apply(number)), children.apply(number).sql())
            question = question_to(pond, location, name)
            return replace(
                question, key=children.apply(1).sql(), time=children.apply(2).sql() if names > 2 else None,
                past=past_of(pond, location, name, question.shelf) if names > 3 else None,
            )  # fmt: skip

    def toString(self) -> str:  # noqa: N802 - Java's name
        return NAME

    class Java:
        """Tells the bridge to Java what this object is over there."""

        implements: ClassVar = ["scala.Function1"]


def _type_of(expression: Any) -> DataType:
    return _parse_datatype_json_string(expression.dataType().json())


def _ask(question: Question) -> Any:
    def ask(*columns: pa.Array) -> pa.Array:
        at, known_at = (*columns[1:], None, None)[:2]
        return question.ask(columns[0], at, known_at=known_at)

    ask.__name__ = NAME  # what a plan, and a column without a name, call it
    return ask
