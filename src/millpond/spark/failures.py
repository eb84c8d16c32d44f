"""Errors that come out of a Spark job, as ours."""

from __future__ import annotations

import re

from millpond import errors
from millpond.errors import Invalid, MillpondError, Unavailable

__all__ = ("error_behind", "is_mistake", "is_of_spark", "line_that_matters")

_REJECTED = ("AnalysisException", "ParseException", "IllegalArgumentException")
_LASTING_STATES = ("07", "0A", "21", "22", "23", "2B", "38", "39", "42", "46", "54", "HV", "P0")
"""Classes of SQLSTATE of errors that lie in a query or its rows. Others are of connections, resources or Spark."""
_LASTING = re.compile(
    "ClassNotFoundException|UnsupportedFileSystemException|ParentNotDirectoryException|AccessControlException"
    "|FileAlreadyExistsException|Mkdirs failed|Permission denied|Read-only file system|is not a Parquet file"
    "|Malformed ORC file|Not an Avro data file"
)
_PASSING = re.compile(
    "ExecutorLostFailure|FetchFailed|ConnectException|SocketException|SocketTimeoutException|UnknownHostException"
    "|ConnectionError|ConnectionResetError|ConnectionRefusedError|BrokenPipeError|TimeoutError|OutOfMemoryError"
    "|SparkContext was shut down|No space left on device"
)


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
    """The error behind Spark's: our own if a task raised one, a mistake that comes again, or a failed job.

    `Unavailable` is what another attempt may mend: lost executors, lost connections, a JVM that is gone.
    """
    text = str(error)
    ours = re.search(r"millpond\.errors\.(\w+): (.+)", text)
    if ours is not None and hasattr(errors, ours[1]):
        cls: type[MillpondError] = getattr(errors, ours[1])
        return cls(ours[2], kind="in_a_task")
    reason = line_that_matters(text) or type(error).__name__
    if type(error).__name__ in _REJECTED:
        return Invalid("Spark does not understand the question", kind="spark_refused", reason=reason)
    if is_mistake(text):
        return Invalid("Spark cannot do this", kind="spark_mistake", reason=reason,
                       hint="mend the query, the rows or the place that it names, and start it again")  # fmt: skip
    return Unavailable(
        "Spark gave up", kind="spark_failed", reason=reason, hint="MILLPOND_TRACEBACK=1 shows all that it says"
    )


def is_mistake(text: str) -> bool:
    """True for an error of Spark that comes again however often it is tried.

    >>> is_mistake("[USER_RAISED_EXCEPTION] the day is wrong SQLSTATE: P0001")
    True
    >>> is_mistake("java.net.ConnectException: Connection refused")
    False
    """
    if _PASSING.search(text):
        return False
    state = re.search(r"SQLSTATE: (\w\w)", text)
    of_python = "exception was thrown from the Python worker" in text
    return of_python or bool(_LASTING.search(text)) or (state is not None and state[1] in _LASTING_STATES)


def line_that_matters(text: str) -> str:
    """The line of an error of Spark that says why, without the words of its bridge and its scheduler.

    >>> line_that_matters("An error occurred while calling o82.load.\\n: java.io.IOException: no place\\n\\tat a.B")
    'no place'
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if "Traceback (most recent call last):" in lines:
        return _of_python(lines)
    lines = [line for line in lines if not line.startswith("An error occurred while calling")]
    first = lines[0] if lines else ""
    # Of a job: "Job aborted due to stage failure: Task 0 … (TID 3) (10.0.0.1 executor 2): java.io.IOException: …".
    first = re.sub(r"^.*Lost task [^:]*?\(TID \d+\) \([^)]*\): ", "", first)
    return re.sub(r"^(: )?((\w+\.)+[\w$]*(Exception|Error): )*", "", first)


def _of_python(lines: list[str]) -> str:
    """The last line of a traceback of Python, and the line of the file in which it was raised."""
    begin = lines.index("Traceback (most recent call last):")
    own = [line for line in lines[begin:] if not line.startswith(("at ", "Caused by", "Driver stacktrace"))]
    last = next((line for line in reversed(own) if re.match(r"[\w.]+(Error|Exception|Warning|Exit)\b", line)), own[-1])
    frames = re.findall(r'File "([^"]+)", line (\d+)', "\n".join(own[: own.index(last)]))
    return f"{last} ({frames[-1][0]}, line {frames[-1][1]})" if frames else last
