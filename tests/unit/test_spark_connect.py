"""A session of Spark Connect is known by its class; what needs a classic one says so in one sentence."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("pyspark")

from millpond.errors import Invalid
from millpond.spark.events import compress_events, expire_events
from millpond.spark.private_api import is_connect

# As PySpark names it; the real one cannot be imported without gRPC, nor made without a server.
SESSION = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})()


def test_a_session_is_known_by_its_class() -> None:
    assert is_connect(SESSION)
    assert not is_connect(SimpleNamespace())


@pytest.mark.parametrize("work", [compress_events, expire_events])
def test_maintenance_of_events_says_what_to_use_instead(work: object) -> None:
    assert callable(work)
    with pytest.raises(Invalid, match="does not work over Spark Connect") as refused:
        work(SESSION, pond="pond")
    assert refused.value.kind == "spark_connect"
    assert "millpond events" in refused.value.hint


def test_the_names_are_still_those_of_pyspark() -> None:
    """Read from the files, which need no gRPC."""
    import pyspark

    package = Path(pyspark.__path__[0]) / "sql" / "connect"
    for file, name in (("session.py", "class SparkSession"), ("dataframe.py", "class DataFrame")):
        assert name in (package / file).read_text(encoding="utf-8")
