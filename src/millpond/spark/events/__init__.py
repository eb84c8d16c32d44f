"""Streams of events in Spark: read them in batches or as a stream, append to them, compress and expire them as jobs.

columns.py                  rows as events
selection.py plan.py        the events that are wanted, and the tasks that read them
locations.py                the streams of a pond in a folder, in Redis, or on nodes
source.py                   `format("millpond.events")`
reader.py follower.py       reading in batches, and as a stream
runs.py sinks.py            writing: tasks sort, the driver appends
maintenance.py              compression and expiry on executors
"""

from millpond.spark.events.maintenance import compress_events, expire_events
from millpond.spark.events.source import EventsSource

__all__ = ("EventsSource", "compress_events", "expire_events")
