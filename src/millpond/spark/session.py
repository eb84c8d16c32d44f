"""Spark sessions: any session learns Millpond's data source and SQL function by `register`.

`start` makes one with what Millpond likes: quiet, UTC, this Python on both sides. It is what the command line, the
demo, the benchmarks and the tests start; any other session will do as well.
"""

from __future__ import annotations

import os
import socket
import sys
import warnings
from collections.abc import Mapping
from contextlib import nullcontext
from importlib.resources import as_file, files
from typing import Final
from urllib.parse import urlsplit

from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource

from millpond.errors import Invalid, Unavailable
from millpond.spark.events import EventsSource
from millpond.spark.functions import register_get_state
from millpond.spark.locations import POND, Location, PondLike, Rights, location_of, rights_of
from millpond.spark.objects import ObjectsSource
from millpond.spark.private_api import active, is_connect
from millpond.spark.sources import MapSource

__all__ = ("register", "start")

_PORT, _SECONDS = 15002, 10.0
"""The port of a server of Spark Connect that names none, and the time in which it takes a connection."""


def start(
    master: str = "local[*]", *, app: str = "millpond", memory: str = "1g", settings: Mapping[str, str] | None = None,
    log_level: str = "error", ui: bool = False,
) -> SparkSession:  # fmt: skip
    """A Spark session, new or already running, that logs errors only (or `log_level`) and keeps time in UTC.

    `memory` is the driver's heap (in local mode: all of it). `settings` are Spark's own and take precedence. Rows go to
    Python 10,000 at a time, of whatever size: the guide says what to set where they are large. `ui` serves Spark's web
    pages, unless its own settings forbid it. `sc://` is a server of Spark Connect, which has a driver of its own;
    settings are those of the session there.

    Raises: `Invalid`, kind `spark_connect`, where the packages of Spark Connect are missing; `Unavailable` where nobody
    answers there.
    """
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).disabled = True  # what is raised, once more, with Java's stack
    if master.startswith("sc://"):
        return _on_server(master, app, settings or {})
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    with as_file(files("millpond.spark").joinpath("log4j2.properties")) as quiet, warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # PySpark's, about the version of pandas
        builder = SparkSession.Builder().master(master).appName(app)
        logging = f"-Dlog4j2.configurationFile=file:{quiet} -Dmillpond.log.level={log_level}"
        ours = _settings(memory, logging) | _UI[ui]
        for name, value in {**ours, **(settings or {})}.items():
            builder = builder.config(name, value)
        return builder.getOrCreate()


def _on_server(master: str, app: str, settings: Mapping[str, str]) -> SparkSession:
    address = urlsplit(master)
    try:  # Spark's client would try for minutes
        socket.create_connection((address.hostname or "", address.port or _PORT), _SECONDS).close()
    except (OSError, ValueError) as error:
        raise Unavailable("the server of Spark Connect cannot be reached", kind="spark_failed", master=master,
                          reason=error, hint="start it: start-connect-server.sh") from None  # fmt: skip
    try:
        session = SparkSession.Builder().appName(app).remote(master).getOrCreate()
    except ImportError as error:
        raise Invalid("Spark Connect needs packages that are not installed", kind="spark_connect", master=master,
                      reason=error, hint="pip install 'pyspark[connect]'") from None  # fmt: skip
    for name, value in {"spark.sql.session.timeZone": "UTC", **settings}.items():
        session.conf.set(name, value)
    return session


_NO_LIMIT = (1 << 31) - 1
"""The bytes of a batch of Arrow that are none to Spark."""
_UI: Final = {False: {"spark.ui.enabled": "false"}, True: {"spark.ui.killEnabled": "false"}}


def _settings(memory: str, java: str) -> dict[str, str]:
    return {
        "spark.driver.memory": memory,
        "spark.driver.extraJavaOptions": f"{java} -XX:+UseParallelGC",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        # With a limit, Spark adds up the bytes of a batch before each row of it: half of its time to Python.
        "spark.sql.execution.arrow.maxBytesPerBatch": str(_NO_LIMIT),
    }


def register(session: SparkSession, pond: PondLike | None = None) -> None:
    """Make the data sources (`millpond`, `millpond.objects`, `millpond.events`) and `get_state` known to a session.

    `pond` is the default pond of the session; without it, the setting `spark.millpond.pond` names it. The settings
    `spark.millpond.token` and `spark.millpond.tls_ca` are for nodes; they are read by this call. A session may be
    registered again with another pond, and several sessions may have different ponds. In a session of Spark Connect
    `get_state` is an error that says what to use instead.
    """
    if pond is not None:
        session.conf.set(POND, location_of(pond, session).where)
    named = session.conf.get(POND, None)
    rights = rights_of(session)
    with nullcontext() if is_connect(session) else active(session):
        location = None if named is None else location_of(named, session)
        for source in (MapSource, ObjectsSource, EventsSource):
            session.dataSource.register(_for_session(source, location, rights))
    register_get_state(session)


def _for_session(source: type[DataSource], location: Location | None, rights: Rights) -> type[DataSource]:
    """A data source for a session whose calls mean the pond at `location` unless they name another.

    No module has this class: so Spark takes it to other processes by its content, and these with it.
    """
    return type(f"Session{source.__name__}", (source,), {"default": location, "rights": rights})
