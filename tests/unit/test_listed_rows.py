"""Pages of entries as JSON: written from columns, they are what each entry would be written as."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.clock import ManualClock
from millpond.json_forms import to_json
from millpond.pond import open_pond
from millpond.server.lakefs.stats import listed_model, listed_rows
from millpond.stores.memory import MemorySpace
from millpond.stores.objects import MemoryObjects
from millpond.versions.objects.entries import Entry, batch_of, entries_of
from millpond.versions.repositories import Repositories
from tests.rings.sampling import examples

ENTRIES = [
    Entry("a", "data/1", 1, 2, "c", "text/plain", {"é": "\x01", "b": ""}),
    Entry("é/ü", "s3://bucket/x", 0, -1, "", "", {}),
    Entry("z", "local:///folder/x", 1 << 40, 5, "0" * 32),
]
texts = st.text(st.characters(exclude_categories=("Cs",)) | st.sampled_from('"\\\x00\x1f\x7f\u2028é🦀/:'), max_size=6)
entries = st.lists(
    st.builds(
        Entry, texts.map("p{}".format), texts | texts.map("s3://{}".format), st.integers(0, 1 << 62),
        st.integers(-(1 << 60), 1 << 60), texts, texts, st.dictionaries(texts, texts, max_size=2),
    ),
    max_size=5,
)  # fmt: skip


@pytest.mark.usefixtures("processor")
@settings(max_examples=examples(40, 150), deadline=None)
@given(entries, st.booleans(), st.integers(0, 2))
def test_rows_of_any_texts_are_written_as_their_entries_are(found: list[Entry], metadata: bool, skipped: int) -> None:
    place = Repositories(MemorySpace(), ManualClock(0), lambda _: MemoryObjects())
    context = place.create("flights").context
    rows = batch_of(found).slice(skipped)
    one_by_one = [listed_model(context, entry, metadata=metadata) for entry in entries_of(rows)]
    assert listed_rows(context, rows, metadata=metadata) == [to_json(one).decode() for one in one_by_one]


@pytest.mark.parametrize("metadata", [True, False])
def test_rows_are_written_as_their_entries_are(tmp_path: Path, metadata: bool) -> None:
    with open_pond(tmp_path / "pond") as pond:
        context = pond.repositories.create("flights").context
        rows = batch_of(ENTRIES)
        one_by_one = [listed_model(context, entry, metadata=metadata) for entry in entries_of(rows)]
        together = listed_rows(context, rows, metadata=metadata)
        assert together == [to_json(one).decode() for one in one_by_one]
        assert listed_rows(context, batch_of([])) == []
