"""`get_state(map, key, at)` in Spark SQL: typed as the map is, one function for all maps of the session's pond.

The type of the answer depends on the map, which SQL names by a text literal. So the function is entered in the
session's registry as a *builder*: Spark calls it back while it resolves a query, it looks the map up, and answers with
a Python function of the right type for the other arguments. Several in one query share one pass through Python.
"""

# ruff: noqa: SLF001 - PySpark gives builders no door of their own: the session's registry is reached through what it
# keeps to itself.
from __future__ import annotations

from typing import Any, ClassVar

import pyarrow as pa
from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import SparkSession

from millpond.errors import Invalid, MillpondError
from millpond.spark.answers import Question, by_column, question_to
from millpond.spark.ponds import opened, place_of

__all__ = ("NAME", "register_get_state")

NAME = "get_state"


def register_get_state(session: SparkSession) -> None:
    """Enter `get_state` in the session's functions; doing so again replaces it."""
    ensure_callback_server_started(session.sparkContext._gateway)  # type: ignore[no-untyped-call]
    registry = session._jsparkSession.sessionState().functionRegistry()
    registry.createOrReplaceTempFunction(NAME, _Builder(session), "python_udf")


class _Builder:
    """From the expressions of a call to the expression that computes it. Spark calls `apply`."""

    def __init__(self, session: SparkSession) -> None:
        self.session = session

    def apply(self, children: Any) -> Any:
        """The expression for `get_state(children)`."""
        # What is raised in here reaches the user buried in two stack traces; what Spark raises when it comes to the
        # expression is told in its own words.
        try:
            question = self._question(children)
        except MillpondError as error:
            return self._raise(str(error))
        return by_column(_ask(question), question.spark)._unwrapped._judf.builder(children.tail().toSeq())

    def _question(self, children: Any) -> Question:
        names = children.size()
        if names not in (2, 3):
            raise Invalid(f"{NAME} takes a map, a key and a time", kind="function_arguments", given=names)
        named = children.apply(0)
        if named.getClass().getSimpleName() != "Literal" or named.value() is None:
            raise Invalid(f"{NAME} takes the map's name as a text literal", kind="function_arguments", given=named)
        place = place_of(None, self.session)
        with opened(None, place) as pond:
            return question_to(pond, place, named.value().toString())

    def _raise(self, message: str) -> Any:
        catalyst = self.session._jvm.org.apache.spark.sql.catalyst.expressions  # type: ignore[union-attr]
        literal = getattr(getattr(catalyst, "Literal$"), "MODULE$").apply(message)
        return catalyst.RaiseError(literal)

    def toString(self) -> str:  # noqa: N802 - Java's name
        """What Java prints."""
        return NAME

    class Java:
        """Tells the bridge to Java what this object is over there."""

        implements: ClassVar = ["scala.Function1"]


def _ask(question: Question) -> Any:
    def ask(*columns: pa.Array) -> pa.Array:
        return question.ask(columns[0], columns[1] if len(columns) > 1 else None)

    ask.__name__ = NAME  # what a plan, and a column without a name, call it
    return ask
