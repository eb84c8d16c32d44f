"""Making a session know Millpond: its data source and its SQL function."""

# ruff: noqa: SLF001 - which session is the active one, only the JVM can be told
from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession

from millpond.spark.functions import register_get_state
from millpond.spark.ponds import POND, PondLike, place_of, rights_of
from millpond.spark.sources import source_for

__all__ = ("register",)


def register(session: SparkSession, pond: PondLike | None = None) -> None:
    """Make `format("millpond")` and the SQL function `get_state` known to a session.

    `pond` is the one that is meant where none is named; without it, the session's setting `spark.millpond.pond`.
    The settings `spark.millpond.token` and `spark.millpond.tls_ca` let the session in at nodes; they are read here.
    Registering again with another pond is fine, and so are several sessions with a pond each.
    """
    if pond is not None:
        session.conf.set(POND, place_of(pond, session).where)
    named = session.conf.get(POND, None)
    rights = rights_of(session)
    with _active(session):
        session.dataSource.register(source_for(None if named is None else place_of(named, session), rights))
    register_get_state(session)


@contextmanager
def _active(session: SparkSession) -> Iterator[None]:
    """Spark asks the active session, not the one that registers, whether a name is free."""
    jvm = session._jvm
    assert jvm is not None, "the session is running"
    sessions = jvm.org.apache.spark.sql.classic.SparkSession
    before = sessions.getActiveSession()
    sessions.setActiveSession(session._jsparkSession)
    try:
        yield
    finally:
        if before.isDefined():
            sessions.setActiveSession(before.get())
        else:
            sessions.clearActiveSession()
