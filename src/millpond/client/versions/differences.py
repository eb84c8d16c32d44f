"""Differences of a node's repository as columns, read page by page."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from millpond.versions.diffs import DIFFERENCES, Change
from millpond.versions.objects.entries import Entry, metadata_text
from millpond.versions.paging import Page, pages_of

__all__ = ("difference_batches",)


def difference_batches(page: Callable[[str], Page[Change]]) -> Iterator[pa.RecordBatch]:
    """The changes of all pages, a batch for each; `page` brings the one behind a path."""
    for page_ in pages_of(page):
        changes = [change for change in page_.results if isinstance(change, Change)]
        if changes:
            yield _batch(changes)


def _batch(changes: Sequence[Change]) -> pa.RecordBatch:
    rows = [
        {
            "path": change.path, "type": change.type,
            **_side("left", change.left), **_side("right", change.right),
        }
        for change in changes
    ]  # fmt: skip
    return pa.RecordBatch.from_pylist(rows, schema=DIFFERENCES)


def _side(name: str, entry: Entry | None) -> dict[str, Any]:
    if entry is None:
        return {}
    return {
        f"{name}_address": entry.address, f"{name}_size": entry.size, f"{name}_mtime": entry.mtime,
        f"{name}_checksum": entry.checksum, f"{name}_content_type": entry.content_type,
        f"{name}_metadata": metadata_text(entry.metadata),
    }  # fmt: skip
