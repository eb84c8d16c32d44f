"""Formats of files: Parquet, CSV, JSON lines, XML; found, split, and read as batches."""
