"""`millpond demo`: real flights, enriched by Spark from maps that Spark built."""

from __future__ import annotations

import typer

__all__ = ("register",)


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
