"""Conditions on rows: parsed, pushed down as bounds, evaluated on Arrow batches, written as text."""
