"""The two times between which a question combines rows."""

from __future__ import annotations

from typing import Any, TypeAlias

from millpond.error_values import shown
from millpond.errors import Invalid

__all__ = ("Between", "span_of")

Between: TypeAlias = tuple[Any, Any]
"""Two times, or columns of times: from the first on, and before the second."""


def span_of(between: object) -> Between:
    """The two times of a question.

    Raises: `Invalid`, kind `between`, for what is no pair.
    """
    if not isinstance(between, tuple | list) or len(between) != 2:
        raise Invalid(
            "between is a pair of times", kind="between", between=shown(between),
            hint="write a pair of times: from the first on, and before the second",
        )  # fmt: skip
    return between[0], between[1]
