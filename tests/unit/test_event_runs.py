"""Rows on their way into streams: whatever tasks and runs they are spread over, the same events come out, each once."""

from __future__ import annotations

import tempfile
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.clock import ManualClock
from millpond.errors import Unavailable
from millpond.events.embedded.store import EmbeddedStore
from millpond.events.names import StreamName
from millpond.kernel.steps import listening
from millpond.spark.events import runs
from millpond.spark.events.columns import RowForm
from millpond.spark.events.runs import EventLog, append_runs, write_runs
from millpond.stores.lmdb.space import LmdbSpace
from tests.harness.contracts.stream_site import NOON, everything

if TYPE_CHECKING:
    from collections.abc import Sequence

SETS = ("a", "b")
COLUMNS = pa.schema(
    [
        ("job_set", pa.string()), ("time", pa.timestamp("us", tz="UTC")), ("payload", pa.string()),
        ("headers", pa.map_(pa.string(), pa.string())), ("topic", pa.string()), ("partition", pa.int32()),
        ("offset", pa.int64()),
    ]
)  # fmt: skip
Row = tuple[str, int, str]
ROWS = st.lists(st.tuples(st.sampled_from(SETS), st.integers(0, 2), st.sampled_from("xyz")), max_size=12)


def form(*, kafka: bool) -> RowForm:
    names = COLUMNS.names if kafka else COLUMNS.names[:4]
    return RowForm(tuple(names), "etl")


def tasks_of(rows: Sequence[Row], places: Sequence[int], *, kafka: bool) -> list[str | bytes]:
    """The runs of tasks among which rows are spread; each row is of a message of its own."""
    spread: dict[int, list[dict[str, object]]] = {}
    for number, ((job_set, ms, payload), place) in enumerate(zip(rows, places, strict=False)):
        row = {
            "job_set": job_set, "time": (NOON + ms) * 1_000, "payload": payload, "headers": [("n", payload)],
            "topic": "jobs", "partition": number % 2, "offset": number,
        }  # fmt: skip
        spread.setdefault(place, []).append(row)
    written: list[str | bytes] = []
    for some in spread.values():
        batches = [pa.RecordBatch.from_pylist([row], COLUMNS) for row in some]
        written += write_runs(batches, form(kafka=kafka), None)
    return written


class Dies(Unavailable):
    """The death of a driver."""


def dying_after(appends: int) -> object:
    seen = Counter[str]()

    def listen(step: str) -> None:
        seen[step] += 1
        if seen["events.runs_appended"] == appends:
            raise Dies("it died", kind="test")

    return listening(listen)


@pytest.mark.usefixtures("processor")
@given(epochs=st.lists(ROWS, min_size=1, max_size=3), spread=st.data(), kafka=st.booleans(), appends=st.integers(1, 4))
def test_an_epoch_that_is_run_again_appends_what_is_missing(
    epochs: list[list[Row]], spread: st.DataObject, *, kafka: bool, appends: int
) -> None:
    events_before, runs.APPEND_EVENTS, run_before, runs.RUN_BYTES = runs.APPEND_EVENTS, 2, runs.RUN_BYTES, 200
    clock = ManualClock(NOON)
    try:
        with tempfile.TemporaryDirectory() as folder, closing(LmdbSpace(Path(folder) / "s", durable=False)) as space:
            store = EmbeddedStore(space, clock)
            stored: list[Row] = []
            for number, epoch in enumerate(epochs):
                stored += epoch
                known = stored if kafka else epoch  # a log is delivered again from its beginning
                for _ in range(2):
                    places = spread.draw(st.lists(st.integers(0, 2), min_size=len(known), max_size=len(known)))
                    log = EventLog("spark:q", number)
                    try:
                        with dying_after(appends):  # type: ignore[attr-defined]
                            append_runs(store.append, tasks_of(known, places, kafka=kafka), log)
                    except Dies:
                        append_runs(store.append, tasks_of(known, list(reversed(places)), kafka=kafka), log)
            for name in SETS:
                found = everything(store, StreamName("etl", name), bytes_max=1 << 20)
                wanted = Counter((row[1], row[2]) for row in stored if row[0] == name)
                assert Counter((event.time_ms - NOON, event.payload.decode()) for event in found) == wanted
                assert all(event.headers == {"n": event.payload.decode()} for event in found)
    finally:
        runs.APPEND_EVENTS, runs.RUN_BYTES = events_before, run_before
