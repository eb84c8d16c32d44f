"""Errors that come out of a Spark job, as ours."""

from __future__ import annotations

import re

from millpond import errors
from millpond.errors import Invalid, MillpondError, Unavailable

__all__ = ("error_behind", "is_of_spark")

_REJECTED = ("AnalysisException", "ParseException", "IllegalArgumentException")


def is_of_spark(error: BaseException) -> bool:
    """True for an error of Spark or of its bridge to Java, also one of Python that was raised in their code.

    When the JVM dies, PySpark's own clean-up may raise an `UnboundLocalError`.
    """
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    raised_in = "" if trace is None else str(trace.tb_frame.f_globals.get("__name__", ""))
    return any(module.startswith(("pyspark.", "py4j.")) for module in (type(error).__module__, raised_in))


def error_behind(error: BaseException) -> MillpondError:
    """The error behind Spark's: our own if a task raised one, else a rejected query, else a failed job."""
    text = str(error)
    ours = re.search(r"millpond\.errors\.(\w+): (.+)", text)
    if ours is not None and hasattr(errors, ours[1]):
        cls: type[MillpondError] = getattr(errors, ours[1])
        return cls(ours[2], kind="in_a_task")
    first = next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__)
    if type(error).__name__ in _REJECTED:
        return Invalid("Spark does not understand the question", kind="spark_refused", reason=first)
    return Unavailable(
        "Spark gave up", kind="spark_failed", reason=first, hint="MILLPOND_TRACEBACK=1 shows all that it says"
    )
