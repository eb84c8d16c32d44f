"""A session of Spark Connect is refused in one sentence, wherever one is given."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark")

from millpond import spark as mp
from millpond.errors import Invalid

# As PySpark names them; the real ones cannot be imported without gRPC, nor made without a server.
SESSION = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})()
FRAME = SimpleNamespace(sparkSession=SESSION)


@pytest.mark.parametrize(
    "call",
    [
        lambda: mp.register(SESSION),
        lambda: mp.register(SESSION, pond="pond"),
        lambda: mp.load(FRAME, map="m"),
        lambda: mp.load(FRAME, pond="pond", map="m"),
        lambda: mp.enrich(FRAME, map="m", key="k"),
        lambda: mp.load_files(SESSION, __file__, pond="pond", map="m"),
    ],
    ids=["register", "register with a pond", "load", "load into a pond", "enrich", "load files"],
)
def test_a_session_of_spark_connect_is_refused(call: Callable[[], Any]) -> None:
    with pytest.raises(Invalid, match="does not work with Spark Connect") as refused:
        call()
    assert refused.value.kind == "spark_connect"
    assert refused.value.hint


def test_the_names_are_still_those_of_pyspark() -> None:
    """Read from the files, which need no gRPC."""
    import pyspark

    package = Path(pyspark.__path__[0]) / "sql" / "connect"
    for file, name in (("session.py", "class SparkSession"), ("dataframe.py", "class DataFrame")):
        assert name in (package / file).read_text(encoding="utf-8")
