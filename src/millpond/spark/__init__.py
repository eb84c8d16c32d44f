"""Maps in Spark: load, read, enrich, and ask in SQL.

    from millpond import spark as mp

    mp.register(session, pond="pond")                              # data source and SQL function, for this session
    frame.write.format("millpond").option("map", "weather").mode("append").save()
    session.read.format("millpond").option("map", "weather").load()
    mp.enrich(flights, map="weather", key="origin", at="time_hour")
    session.sql("select *, get_state('weather', origin, time_hour) from flights")

Executors need the same Python packages as the driver, and the pond's folder under the same path: one machine, or a
file system that all mount.
"""

from __future__ import annotations

from pyspark.sql import SparkSession

from millpond.spark.enrich import Lookup, enrich
from millpond.spark.files import load_files
from millpond.spark.functions import register_get_state
from millpond.spark.jobs import load
from millpond.spark.ponds import POND, PondLike, pond_folder
from millpond.spark.session import FILTER_PUSHDOWN, start
from millpond.spark.sources import source_for

__all__ = ("Lookup", "enrich", "load", "load_files", "register", "start")


def register(session: SparkSession, pond: PondLike | None = None) -> None:
    """Make `format("millpond")` and the SQL function `get_state` known to a session.

    `pond` is the one that is meant where none is named; without it, the session's setting `spark.millpond.pond`.
    Registering again with another pond is fine.
    """
    if pond is not None:
        session.conf.set(POND, str(pond_folder(pond)))
    session.conf.set(FILTER_PUSHDOWN, "true")
    named = session.conf.get(POND, None)
    session.dataSource.register(source_for(None if named is None else pond_folder(named)))
    register_get_state(session)
