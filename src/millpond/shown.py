"""Values in errors: short, and whatever they are."""

from __future__ import annotations

__all__ = ("SHOWN_MAX", "shown")

SHOWN_MAX = 200
"""Characters of a value in an error."""


def shown(value: object) -> str:
    """The repr of any value, in ASCII and cut short; its type where it has none.

    >>> shown("caf\\u00e9")
    "'caf\\\\xe9'"
    """
    try:
        return ascii(value)[:SHOWN_MAX]
    except Exception:  # a number of thousands of digits, or an object that belies what it looks like
        return f"a value of type {type(value).__name__}"
