"""The examples of `docs/spark.md` run as they stand, and it names every option there is."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

import millpond
from millpond.spark.options import OPTIONS
from tests.docs.snippets import ROOT, snippets

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


def test_the_page_runs(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "incoming").mkdir()
    (tmp_path / "incoming" / "planes.json").write_text('{"key": "N14230", "value": "AIRBUS A320-214"}\n')
    code = "\n".join(snippet.text for snippet in snippets("docs/spark.md") if snippet.language == "python")
    # Spark begins relative paths where its session was started, which is not here.
    code = re.sub(r'(?<!option\()"(incoming|changes|garbage\.parquet|checkpoints/\w+)"', rf'"{tmp_path}/\1"', code)
    try:
        exec(compile(code, "docs/spark.md", "exec"), {})
    finally:
        spark.conf.unset("spark.millpond.pond")
        spark.catalog.dropTempView("flights")
    shown = capfd.readouterr().out
    assert "BOEING 737-824" in shown
    assert "BOEING 737-800" in shown
    assert re.search(r"LGA\|\s*LaGuardia\|changed", shown) and re.search(r"JFK\|\s*Kennedy\|removed", shown)
    with millpond.open("pond") as pond:
        assert pond.map("planes").get("N14230") == "AIRBUS A320-214"


def test_every_option_is_named() -> None:
    page = (ROOT / "docs" / "spark.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(\w+)`", page[page.index("| option |") : page.index("## Read")]))
    assert set(OPTIONS) - {"path"} <= named
