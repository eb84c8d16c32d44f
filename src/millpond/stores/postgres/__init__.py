"""Spaces in PostgreSQL."""
