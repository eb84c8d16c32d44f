"""Imports: objects that lie elsewhere, or are listed in a table, become entries; no byte of them is copied."""
