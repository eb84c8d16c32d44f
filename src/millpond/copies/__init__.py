"""Copies of ponds at other places: from a folder into a bucket and back, whole or some maps."""

from millpond.copies.copy import CopyReport, copy_pond

__all__ = ("CopyReport", "copy_pond")
