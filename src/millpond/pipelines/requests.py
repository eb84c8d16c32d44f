"""Requests of pipelines, as they stand in the inputs of tasks: JSON of declared forms.

| form | says |
|---|---|
| `Rows` | rows: a query of Spark SQL over views of files |
| `Target` | a map that is made when it is missing, and the treatment of its rows |
| `Rules` | conditions on rows: their number, values, keys, and their difference from a map |
| `Question` | one lookup for each row |

A field that is not known is an error, which names it: a misspelt rule must not pass.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeVar

from millpond.errors import Invalid
from millpond.json_forms import FormError, JsonForm

__all__ = (
    "ColumnRule", "Drift", "KeyRule", "Question", "Rows", "Rules", "Target", "View", "parse_questions", "parse_rows",
    "parse_rules", "parse_target",
)  # fmt: skip

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """A view of the query: `files` in a `format` of Spark with its `options`, or the result of more `sql`.

    Views are made in their order, so one may ask those before it.
    """

    files: list[str] = field(default_factory=list)
    format: str = "parquet"
    schema: str = ""
    options: dict[str, str] = field(default_factory=dict)
    sql: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """The rows that a query of Spark SQL gives."""

    sql: str
    views: dict[str, View] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The treatment of a load: with a `kind`, the map is made when it is missing. `branch`: it is loaded there."""

    kind: str = ""
    value: str = ""
    max_rejects: int = 0
    branch: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnRule:
    """Bounds of a column: `min` and `max` of its numbers, and the share of its rows that may be null."""

    min: float | None = None
    max: float | None = None
    null_share_max: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRule:
    """The share of rows whose key, in `column`, the map must answer, as of the instant in column `at`."""

    column: str
    at: str = ""
    found_share_min: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """The largest relative change against the rows of the map: of their number, and of the mean of each number."""

    rows_change_max: float | None = None
    mean_change_max: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The conditions of a check; those that are left out hold."""

    rows_min: int | None = None
    rows_max: int | None = None
    columns: dict[str, ColumnRule] = field(default_factory=dict)
    keys: KeyRule | None = None
    drift: Drift | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A lookup for each row: the value of the key in column `key`, as of column `at`, as column `into`."""

    map: str
    key: str
    at: str = ""
    into: str = ""


_ROWS, _TARGET, _RULES, _QUESTION = JsonForm(Rows), JsonForm(Target), JsonForm(Rules), JsonForm(Question)


def parse_rows(value: Any) -> Rows:
    """The rows that an input describes.

    Raises: `Invalid` naming the field that is wrong.
    """
    rows = _parsed(_ROWS, value, "rows")
    for name, view in rows.views.items():
        if bool(view.files) == bool(view.sql):
            raise Invalid("a view has files, or a query", kind="pipeline_input", view=name,
                          hint="give it files or sql, and not both")  # fmt: skip
    return rows


def parse_target(value: Any) -> Target:
    """The target of a load.

    Raises: as `parse_rows`.
    """
    return _parsed(_TARGET, value, "options")


def parse_rules(value: Any) -> Rules:
    """The rules of a check.

    Raises: as `parse_rows`; also when there is no rule.
    """
    rules = _parsed(_RULES, value, "rules")
    if rules == Rules():
        raise Invalid("a check has no rules", kind="pipeline_input",
                      hint="one of: rows_min, rows_max, columns, keys, drift")  # fmt: skip
    return rules


def parse_questions(value: Any) -> list[Question]:
    """The lookups of an enrichment.

    Raises: as `parse_rows`; also when there is no lookup.
    """
    if not isinstance(value, list) or not value:
        raise Invalid("an enrichment has no lookups", kind="pipeline_input", hint="a list of map, key, at, into")
    return [_parsed(_QUESTION, question, "lookups") for question in value]


def _parsed(form: JsonForm[T], value: Any, what: str) -> T:
    try:
        return form.build(value)
    except FormError as error:
        raise Invalid("an input of the task is not understood", kind="pipeline_input", input=what, reason=error,
                      hint="docs/pipelines.md shows its fields") from None  # fmt: skip
