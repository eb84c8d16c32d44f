"""Maps in Spark: load, read, enrich, compact, and ask in SQL; repositories of objects: read, compact, collect
garbage; streams of events: read, append, compress, expire.

    from millpond import spark as mp

    mp.register(session, pond="pond")                              # data source and SQL function, for this session
    frame.write.format("millpond").option("map", "weather").mode("append").save()
    mp.load(["2013/*.parquet"], map="weather", columns={"key": "airport"})
    session.read.format("millpond").option("map", "weather").load()
    mp.enrich(flights, map="weather", key="origin", at="time_hour")
    session.read.format("millpond.objects").option("repository", "flights").option("ref", "main").load()
    session.readStream.format("millpond.events").option("queue", "etl").option("job_set", "nightly").load()
    session.sql("select *, get_state('weather', origin, time_hour) from flights")

Executors need the same Python packages as the driver, and the pond's folder under the same path: one machine, or a
file system that all mount.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from millpond.extras import need

need("pyspark")

from millpond.spark.enrich import Lookup, enrich, training_set

if TYPE_CHECKING:
    from millpond.spark.compaction import compact_map
    from millpond.spark.events import compress_events, expire_events
    from millpond.spark.loads import load
    from millpond.spark.objects import collect_garbage, compact_branch
    from millpond.spark.session import register, start

__all__ = (
    "Lookup", "collect_garbage", "compact_branch", "compact_map", "compress_events", "enrich", "expire_events", "load",
    "register", "start", "training_set",
)  # fmt: skip

_LAZY = {
    "compact_map": "compaction", "compress_events": "events", "expire_events": "events",
    "load": "loads", "collect_garbage": "objects", "compact_branch": "objects", "register": "session",
    "start": "session",
}  # fmt: skip
"""The modules by the names that they hold: a task on an executor imports one module, and not what all of them need."""


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'millpond.spark' has no attribute {name!r}")
    return getattr(importlib.import_module(f"millpond.spark.{_LAZY[name]}"), name)


def __dir__() -> list[str]:
    return list(__all__)
