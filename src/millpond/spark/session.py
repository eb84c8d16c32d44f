"""A Spark session with what Millpond likes: quiet, UTC, this Python on both sides.

Nobody needs this module: any session will do once `register` has seen it. It is what the command line, the demo,
the benchmarks and the tests start.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Mapping
from importlib.resources import as_file, files

from pyspark.sql import SparkSession

__all__ = ("start",)


def start(
    master: str = "local[*]", *, app: str = "millpond", memory: str = "1g", settings: Mapping[str, str] | None = None,
    log_level: str = "error",
) -> SparkSession:  # fmt: skip
    """A Spark session, new or already running, that logs errors only (or `log_level`) and keeps time in UTC.

    `memory` is the driver's heap (in local mode: all of it). `settings` are Spark's own and take precedence.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    with as_file(files("millpond.spark").joinpath("log4j2.properties")) as quiet, warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # PySpark's, about the version of pandas
        builder = SparkSession.Builder().master(master).appName(app)
        logging = f"-Dlog4j2.configurationFile=file:{quiet} -Dmillpond.log.level={log_level}"
        ours = _settings(memory, logging)
        for name, value in {**ours, **(settings or {})}.items():
            builder = builder.config(name, value)
        return builder.getOrCreate()


def _settings(memory: str, java: str) -> dict[str, str]:
    return {
        "spark.driver.memory": memory,
        "spark.driver.extraJavaOptions": f"{java} -XX:+UseParallelGC",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
    }
