"""Hints in the words of the command line: an error names a parameter of Python's, a command has an option for it.

What all doors share says its hints as Python does (`zone='UTC'`); here, and nowhere else, that becomes `--zone UTC`.
Some kinds have a hint of their own for commands: `statuses.py`.
"""

from __future__ import annotations

import re

from millpond.errors import MillpondError
from millpond.statuses import row_of

__all__ = ("OPTIONS", "hint_of")

OPTIONS = {
    "again": "--again", "at": "--at", "before": "--before", "compress_after": "--compress-after",
    "condense": "--condense", "kind": "--kind", "maps": "--map", "max_rejects": "--max-rejects",
    "now": "--now", "overwrite": "--overwrite", "pond": "--pond", "rejects": "--rejects",
    "resolution": "--resolution", "retain": "--retain", "retention": "--retention", "roll_up": "--roll-up",
    "store": "--store", "time_zone": "--time-zone", "without_runs": "--without-runs", "written": "--format",
    "zone": "--zone",
}  # fmt: skip
"""Parameters that hints name, and the options that stand for them."""

_PARAMETER = re.compile(rf"\b({'|'.join(OPTIONS)})=('[^']*'|\"[^\"]*\"|[^\s,;:)]+)")


_COLUMN = re.compile(r"\bcolumns=\{'(\w+)': (?:'([^']*)'|\{([^}]*)\})\}")


def hint_of(error: MillpondError) -> str | None:
    """The way out of an error, for somebody who types commands.

    >>> from millpond.errors import Invalid
    >>> hint_of(Invalid("timestamps have no zone", hint="say which zone they are in, such as zone='UTC'"))
    'say which zone they are in, such as --zone UTC'
    >>> hint_of(Invalid("no such columns", hint="perhaps columns={'value': {'temp': 'tmp', 'wind': 'wnd'}}"))
    'perhaps --value temp=tmp,wind=wnd'
    >>> hint_of(Invalid("a part is not copied", hint="copy maps by name: maps=['NAME']"))
    'copy maps by name: --map NAME'
    """
    hint = row_of(error.kind).hint
    if hint is not None:
        return hint.format_map({name: str(value) for name, value in error.values.items()})
    if error.kind == "pipeline_value":  # it names parameters of the user's own
        return error.hint
    return error.hint and _PARAMETER.sub(_as_option, _COLUMN.sub(_as_columns, error.hint))


def _as_option(match: re.Match[str]) -> str:
    option, value = OPTIONS[match[1]], match[2].strip("[]'\"")
    return option if value == "True" else f"{option} {'VALUE' if value == '…' else value}"


def _as_columns(match: re.Match[str]) -> str:
    """`columns={'time': 'seen'}` as `--time seen`, and the columns of fields as `--value temp=tmp,wind=wnd`."""
    column = match[2] or re.sub(r"'(\w+)': '([^']*)',? ?", r"\1=\2,", match[3]).rstrip(",")
    return f"--{match[1].replace('_', '-')} {column}"
