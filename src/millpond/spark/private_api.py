"""All that Millpond uses of Spark beyond its public API, in one place: what to look at when a new Spark comes out.

Of `SparkContext` and `java_gateway`: `_gateway`, `ensure_callback_server_started`
    Spark calls a Python object of ours back.
Of `SparkSession._jsparkSession`: `sessionState().functionRegistry().createOrReplaceTempFunction`
    `get_state` is entered as a *builder*: its type depends on a literal among its arguments, and the public
    `udf.register` takes one type for all.
Of what `arrow_udf` makes: `_unwrapped._judf.builder(…)`
    The expression of a Python function over expressions that Spark has resolved already.
Of `_gateway`: `python_parameters` (or `callback_server_parameters`) and its `propagate_java_exceptions`; of
`SparkSession._jvm`: `java.lang.IllegalArgumentException`
    An error of ours while a query is planned, in its own words, not below two stack traces.
Of `SparkContext._jsc`: `sc().statusStore().activeStages()`
    The stages that run, with their tasks and the rows that these have read.
Of `SparkSession._jvm`: `sql.classic.SparkSession` and its `getActiveSession`, `setActiveSession`, `clearActiveSession`
    A data source is registered in the *active* session, whichever that is.

All of these live in the driver's own Java process. A Spark Connect client has none (Databricks serverless is one): it
does without them where Spark's public API is enough, and what needs them says so in one sentence: see `need_classic`.
"""

# ruff: noqa: SLF001 - that is what this module is for
from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import SparkSession

from millpond.errors import Invalid

__all__ = (
    "StageTasks",
    "active",
    "active_stage",
    "enter_function",
    "expression_of",
    "is_connect",
    "need_classic",
    "planning_error",
    "refuse_function",
)


@dataclass(frozen=True, slots=True)
class StageTasks:
    """A stage of Spark that runs: its id, its tasks, those that have ended, and the rows that these have read."""

    id: int
    tasks: int
    ended: int
    rows: int


def active_stage(session: SparkSession) -> StageTasks | None:
    """The newest stage that runs in a classic session; None when none does, or over Spark Connect."""
    if is_connect(session):
        return None
    listed = session.sparkContext._jsc.sc().statusStore().activeStages()
    stages = [listed.apply(number) for number in range(listed.size())]
    newest = max(stages, key=lambda stage: int(stage.stageId()), default=None)
    if newest is None:
        return None
    return StageTasks(newest.stageId(), newest.numTasks(), newest.numCompleteTasks(), newest.inputRecords())


def is_connect(session: object) -> bool:
    """True for a session of Spark Connect, which has no Java in this process."""
    # By the name of its module: to import that one takes gRPC, which who has no such session need not have.
    return any(cls.__module__.startswith("pyspark.sql.connect.") for cls in type(session).__mro__)


def need_classic(session: object, feature: str, instead: str) -> None:
    """Insist on a session that runs in this process and its own Java.

    Raises: `Invalid`, kind `spark_connect`, for one of Spark Connect.
    """
    if is_connect(session):
        raise _no_connect(feature, instead)


def refuse_function(session: SparkSession, name: str, feature: str, instead: str) -> None:
    """Enter a function of a name that says why it does not work over Spark Connect."""

    def refuse(*_: object) -> str:
        raise _no_connect(feature, instead)

    session.udf.register(name, refuse, "string")


def _no_connect(feature: str, instead: str) -> Invalid:
    return Invalid(f"{feature} does not work over Spark Connect", kind="spark_connect", hint=instead)


def enter_function(session: SparkSession, name: str, builder: object) -> None:
    """Enter a function in a session, replacing one of that name; Spark calls `builder.apply(expressions)`."""
    gateway: Any = session.sparkContext._gateway
    ensure_callback_server_started(gateway)  # type: ignore[no-untyped-call]
    parameters = getattr(gateway, "python_parameters", None) or gateway.callback_server_parameters
    parameters.propagate_java_exceptions = True
    registry = session._jsparkSession.sessionState().functionRegistry()
    registry.createOrReplaceTempFunction(name, builder, "python_udf")


def expression_of(function: Any, arguments: Any) -> Any:
    """The expression of a Python function of columns over expressions (a Scala sequence)."""
    return function._unwrapped._judf.builder(arguments)


def planning_error(session: SparkSession, message: str) -> Py4JJavaError:
    """The error that makes a query fail while it is planned, with this sentence and no other.

    The bridge hands a Java exception on as it is (`enter_function` asks it to), and PySpark turns it into its own
    `IllegalArgumentException`. Exceptions of Python's would reach the user within two stack traces. An
    `AnalysisException` is checked, which Java would wrap, because Scala's functions declare none.
    """
    jvm = session._jvm
    assert jvm is not None, "the session is running"
    return Py4JJavaError(message, jvm.java.lang.IllegalArgumentException(message))


@contextmanager
def active(session: SparkSession) -> Iterator[None]:
    """Make a session the active one: Spark asks that one, not the one that registers, whether a name is free."""
    jvm = session._jvm
    assert jvm is not None, "the session is running"
    sessions = jvm.org.apache.spark.sql.classic.SparkSession
    before = sessions.getActiveSession()
    sessions.setActiveSession(session._jsparkSession)
    try:
        yield
    finally:
        if before.isDefined():
            sessions.setActiveSession(before.get())
        else:
            sessions.clearActiveSession()
