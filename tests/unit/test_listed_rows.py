"""Pages of entries as JSON: written from columns, they are what each entry would be written as."""

from __future__ import annotations

from pathlib import Path

import pytest

from millpond.json_forms import to_json
from millpond.pond import open_pond
from millpond.server.lakefs.stats import listed_model, listed_rows
from millpond.versions.objects.entries import Entry, batch_of, entries_of

ENTRIES = [
    Entry("a", "data/1", 1, 2, "c", "text/plain", {"é": "\x01", "b": ""}),
    Entry("é/ü", "s3://bucket/x", 0, -1, "", "", {}),
    Entry("z", "local:///folder/x", 1 << 40, 5, "0" * 32),
]


@pytest.mark.parametrize("metadata", [True, False])
def test_rows_are_written_as_their_entries_are(tmp_path: Path, metadata: bool) -> None:
    with open_pond(tmp_path / "pond") as pond:
        site = pond.repositories.create("flights").site
        rows = batch_of(ENTRIES)
        one_by_one = [listed_model(site, entry, metadata=metadata) for entry in entries_of(rows)]
        together = listed_rows(site, rows, metadata=metadata)
        assert to_json(together) == to_json(one_by_one)
        assert listed_rows(site, batch_of([])) == []
