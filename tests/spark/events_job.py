"""The job that `test_event_kills.py` runs: a query from a folder of files into streams of events, all of whose
processes die at a step.

    events_job.py <folder with pond/, source/, checkpoint/> [<step to die at>[:<occurrence>]]
"""

from __future__ import annotations

import sys
from typing import Any

from millpond.spark.events import EventsSource, runs
from tests.spark.stream_job import run

SCHEMA = "queue string, job_set string, time timestamp, payload string"


class ManyWrites(EventsSource):
    """The data source, which appends an epoch in many writes."""

    def streamWriter(self, schema: Any, overwrite: bool) -> Any:
        runs.APPEND_EVENTS = 6
        return super().streamWriter(schema, overwrite)


if __name__ == "__main__":
    run(ManyWrites, SCHEMA, *sys.argv[1:])
