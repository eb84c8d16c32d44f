"""Exit codes of commands, and the one sentence each failure prints.

| code | when |
|---|---|
| 0 | it worked |
| 1 | it asked and there was no answer: `get` of a key without a value, `verify` that found something wrong |
| 2 | the command line itself is wrong |
| 3 … 13 | by class of error, see `millpond.errors` |
| 130 | interrupted; a load that was interrupted left nothing behind |
"""

from __future__ import annotations

import os
import sys
from typing import Any, NoReturn

from millpond import errors
from millpond.cli.terminal.hints import hint_of
from millpond.errors import Internal, MillpondError, NotFound, Unavailable
from millpond.extras import EXTRAS, extra_missing
from millpond.tracing import flush_spans

__all__ = (
    "EXITS",
    "EXIT_INTERRUPTED",
    "EXIT_NO_ANSWER",
    "EXIT_USAGE",
    "as_object",
    "exit_code",
    "leave",
    "sentence",
    "classify_error",
)

EXIT_NO_ANSWER = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130

EXITS: dict[type[MillpondError], int] = {
    cls: cls.exit_code for cls in (getattr(errors, name) for name in errors.__all__) if cls is not MillpondError
}


def leave(code: int) -> NoReturn:
    """End the process at once: no thread that still works holds it up, but for run events and spans a short while."""
    from millpond.lineage import wait_sent  # most commands do without it

    wait_sent()
    flush_spans()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def exit_code(error: MillpondError) -> int:
    """The exit code of the error's class."""
    return error.exit_code


def classify_error(error: BaseException) -> MillpondError:
    """The error as one of ours: errors of the system are classed by what the caller can do about them.

    What is not recognised is our own mistake.
    """
    if isinstance(error, MillpondError):
        return error
    if isinstance(error, ModuleNotFoundError):
        return _missing_module(error)
    if isinstance(error, FileNotFoundError):
        return NotFound("file does not exist", kind="file_not_found", path=error.filename)
    if isinstance(error, PermissionError):
        return Unavailable("file may not be opened", kind="permission", path=error.filename)
    if type(error).__module__.startswith(("pyspark.", "py4j.")):
        from millpond.spark.failures import error_behind

        return error_behind(error)
    if isinstance(error, OSError):
        return Unavailable(f"the system refused: {error.strerror or error}", kind="system", path=error.filename)
    return Internal(
        f"unexpected {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}".rstrip(": "),
        kind="unexpected", hint="this is our mistake: run it again with MILLPOND_TRACEBACK=1 and report what it prints",
    )  # fmt: skip


def _missing_module(error: ModuleNotFoundError) -> MillpondError:
    root = (error.name or "").partition(".")[0]
    if root in EXTRAS:
        return extra_missing(root)
    return Internal("a module is missing", kind="module_missing", module=error.name)


def sentence(error: MillpondError) -> str:
    """One sentence about an error: the event, the values involved, and the way out."""
    values = ", ".join(f"{name}={value}" for name, value in error.values.items())
    message = error.message + (f" ({values})" if values else "")
    hint = hint_of(error)
    return f"{message}; {hint}" if hint else message


def as_object(error: MillpondError) -> dict[str, Any]:
    """The error for `--json`."""
    return {
        "error": {
            "kind": error.kind,
            "class": type(error).__name__,
            "message": error.message,
            "hint": hint_of(error),
            "values": {name: _plain(value) for name, value in error.values.items()},
            "exit_code": exit_code(error),
        }
        | ({"paths": list(paths)} if (paths := getattr(error, "paths", ())) else {})
    }


def _plain(value: object) -> object:
    return value if isinstance(value, str | int | float | bool | type(None)) else str(value)
