"""The stable ids of a value's fields: they outlive names, so a field that is dropped and added again is another one.

A map whose fields never changed has none: its fields are numbered from 1, in their order. A single value is field 1.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ("FieldDefault", "FieldIds", "FormerValue")


@dataclass(frozen=True, slots=True)
class FieldDefault:
    """The value of a field in rows that are older than it: the bytes of a value (`values.py`), in hexadecimal."""

    field: int
    value: str


@dataclass(frozen=True, slots=True)
class FieldIds:
    """The ids of the fields in force, in their order. `next` grows with each change that frees a name, so that a field
    that takes it later has another id: see `field_changes.py`.
    """

    ids: tuple[int, ...]
    next: int
    defaults: tuple[FieldDefault, ...] = ()


@dataclass(frozen=True, slots=True)
class FormerValue:
    """A value type that was in force, by the id that layers name it with, and the ids of its fields."""

    id: str
    value: str
    ids: tuple[int, ...]
