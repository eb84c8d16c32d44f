"""Spaces in PostgreSQL."""

from __future__ import annotations

from millpond.extras import need

need("psycopg")
