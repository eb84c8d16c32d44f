"""Spark types of columns that a map is asked with, checked while a query is planned: before any task runs."""

from __future__ import annotations

from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import DataType, DateType, IntegralType, NullType, StringType, TimestampNTZType, TimestampType

from millpond.errors import Invalid
from millpond.maps.inputs.tags import check_keys_type, type_of_keys_refused
from millpond.maps.model.definition import MapDefinition

__all__ = ("TO_TIMESTAMP", "check_key", "check_time")

TO_TIMESTAMP = "cast the column to timestamp: it is then in the session's time zone"
"""The way out for a column of times without a zone."""


def check_key(definition: MapDefinition, kind: DataType, column: object) -> None:
    """Refuse a column of which no value may be a key of the map.

    Raises: `Invalid`, kind `key_type`, naming the column, its type and what is wanted.
    """
    subject = {"map": definition.name, "column": column}
    try:
        check_keys_type(definition, to_arrow_type(kind, timezone="UTC"))
    except (Invalid, PySparkException, TypeError) as error:
        raise type_of_keys_refused(definition, kind.simpleString(), **subject) from error


def check_time(definition: MapDefinition, kind: DataType, column: object) -> None:
    """Refuse a column whose values are no instants.

    Raises: `Invalid`, kinds `time_naive` and `time_type`, naming the column, its type and what is wanted.
    """
    if not definition.kind.timed or isinstance(kind, TimestampType | IntegralType | StringType | NullType):
        return
    naive = isinstance(kind, TimestampNTZType)
    bare = naive or isinstance(kind, DateType)
    raise Invalid(
        "a time without a zone names no instant" if bare else "a time is a timestamp",
        kind="time_naive" if naive else "time_type", map=definition.name, column=column, type=kind.simpleString(),
        hint=TO_TIMESTAMP,
    )  # fmt: skip
