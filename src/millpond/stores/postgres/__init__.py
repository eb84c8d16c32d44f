"""Spaces in PostgreSQL."""

from millpond.extras import need

need("psycopg")
