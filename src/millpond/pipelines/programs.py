"""Programs: files of pipelines, as text that travels with a run, and the pipelines in them.

Invariant: a run ends with the text with which it began, whatever the file says since.
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import sys
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any, TypedDict

from millpond.errors import Internal, Invalid, MillpondError, Unavailable
from millpond.json_forms import FormError, parse_list, plain, stable_json
from millpond.pipelines.attempt_threads import AttemptOver
from millpond.pipelines.declare import Declared
from millpond.pipelines.values import readable
from millpond.pipelines.watched import WATCHES, watched_code

__all__ = ("Program", "call_function", "pipelines_of", "read_program")

PROGRAM_BYTES_MAX = 1_000_000
RESULT_BYTES_MAX = 1_000_000
"""Bytes of the result of a function; the outputs of a run's steps have about as many together."""


class Program(TypedDict):
    """The text of a file of pipelines."""

    file: str
    source: str


def read_program(path: str | Path) -> Program:
    """The text of a file.

    Raises: `Invalid` when it cannot be read, or is too long.
    """
    try:
        source = Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise Invalid("the file of the pipeline cannot be read", kind="pipeline_program", file=path,
                      reason=error) from None  # fmt: skip
    if len(source) > PROGRAM_BYTES_MAX:
        raise Invalid("the file of the pipeline is too long", kind="pipeline_program", file=path,
                      bytes=len(source), limit=PROGRAM_BYTES_MAX)  # fmt: skip
    return Program(file=str(Path(path).absolute()), source=source)


def pipelines_of(program: Program) -> dict[str, Declared]:
    """The pipelines of a program, by name.

    Raises: `Invalid` with the line that failed, when it does not import; as `pipeline`.
    """
    return _pipelines(program["file"], program["source"])


def call_function(
    program: Program, pipeline: str, step: str, arguments: Sequence[Any], *, session: Any = None,
    passes: Callable[[BaseException], bool] = lambda _: False,
) -> dict[str, Any]:  # fmt: skip
    """The output of a step that calls a function, after its session: its result as JSON. Errors that are to pass stay
    as they are.

    Raises: `Internal` with the line that failed; `Unavailable` for connections; as the function, if it is ours.
    """
    declared = pipelines_of(program)[pipeline]
    function, inputs = declared.functions[step], declared.plan.typed(step, arguments)
    try:
        result = function(*inputs) if session is None else function(session, *inputs)
        result = asyncio.run(result) if inspect.iscoroutine(result) else result
    except (MillpondError, AttemptOver):
        raise
    except (ConnectionError, TimeoutError) as error:
        raise Unavailable("a function could not reach what it needs", kind="pipeline_function",
                          function=step, reason=error) from error  # fmt: skip
    except BaseException as error:  # sys.exit, too, ends the function, and no worker
        if passes(error):
            raise
        lines = _lines(error)
        file, line = next((own for own in lines if own[0] == program["file"]), lines[0])
        reason = f"{type(error).__name__}: {error}"
        raise Internal("a function of the pipeline failed", kind="pipeline_function", function=step, reason=reason,
                       line=f"{Path(file).name}:{line}") from error  # fmt: skip
    try:
        output = plain(result)
        size = len(text := stable_json([output], compact=True))
        parse_list(text)  # it has no NaN
    except (TypeError, ValueError, OverflowError, FormError) as error:
        raise Invalid("the result of a function is no JSON", kind="pipeline_function", function=step,
                      type=type(result).__name__, reason=error,
                      hint="give finite numbers, text, lists, dictionaries; of rows a file") from None  # fmt: skip
    if size > RESULT_BYTES_MAX:
        raise Invalid("the result of a function is too large", kind="pipeline_function", function=step, bytes=size,
                      limit=RESULT_BYTES_MAX, hint="write it to a file, and give the path")  # fmt: skip
    return output if isinstance(output, dict) else {"value": output}


@lru_cache(maxsize=100)
def _pipelines(file: str, source: str) -> dict[str, Declared]:
    name = f"millpond_program_{hashlib.sha256(source.encode()).hexdigest()[:16]}"
    module = ModuleType(name)
    module.__file__ = file
    sys.modules[name] = module  # functions of it may be pickled, and find their types
    try:
        module.__dict__.update(WATCHES)
        exec(watched_code(source, file), module.__dict__)
    except MillpondError as error:
        if line := _line_of(error, file):
            error.values.setdefault("line", line)
        raise
    except (Exception, SystemExit) as error:
        raise Invalid("the file of the pipeline does not import", kind="pipeline_program", file=file,
                      line=_line_of(error, file),
                      reason=readable(f"{type(error).__name__}: {error}")) from None  # fmt: skip
    pipelines: dict[str, Declared] = {}
    for own in vars(module).values():
        if isinstance(own, Declared) and pipelines.setdefault(own.plan.name, own) is not own:
            raise Invalid("two pipelines of a file have one name", kind="pipeline_program", file=file,
                          pipeline=own.plan.name, hint='give one another: @pipeline(name="…")')  # fmt: skip
    if not pipelines:
        raise Invalid("the file has no pipeline", kind="pipeline_program", file=file,
                      hint="write @pipeline above a function of steps")  # fmt: skip
    return pipelines


def _line_of(error: BaseException, file: str) -> int:
    """The line of a file at which it failed, or 0."""
    return next((line for own, line in _lines(error) if own == file), getattr(error, "lineno", None) or 0)


def _lines(error: BaseException) -> list[tuple[str, int]]:
    trace, lines = error.__traceback__, []
    while trace is not None:
        lines.append((trace.tb_frame.f_code.co_filename, trace.tb_lineno))
        trace = trace.tb_next
    return lines[::-1]
