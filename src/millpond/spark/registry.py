"""Making a session know Millpond: its data source and its SQL function."""

from __future__ import annotations

from pyspark.sql import SparkSession

from millpond.spark.functions import register_get_state
from millpond.spark.places import POND, PondLike, place_of, rights_of
from millpond.spark.private_api import active, need_classic
from millpond.spark.sources import source_for

__all__ = ("register",)


def register(session: SparkSession, pond: PondLike | None = None) -> None:
    """Make `format("millpond")` and the SQL function `get_state` known to a session.

    `pond` is the default pond of the session; without it, the setting `spark.millpond.pond` names it. The settings
    `spark.millpond.token` and `spark.millpond.tls_ca` are for nodes; they are read by this call. A session may be
    registered again with another pond, and several sessions may have different ponds.

    Raises: `Invalid` for a session of Spark Connect.
    """
    need_classic(session)
    if pond is not None:
        session.conf.set(POND, place_of(pond, session).where)
    named = session.conf.get(POND, None)
    rights = rights_of(session)
    with active(session):
        session.dataSource.register(source_for(None if named is None else place_of(named, session), rights))
    register_get_state(session)
