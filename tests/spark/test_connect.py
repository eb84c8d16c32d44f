"""Sessions of Spark Connect: what a user does with maps, against a real server, in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("grpc_status", reason="pip install 'pyspark[connect]'")

SECONDS = 300


@pytest.mark.full
def test_maps_are_loaded_read_and_asked_over_connect(tmp_path: Path) -> None:
    program = Path(__file__).with_name("connect_job.py")
    done = subprocess.run(
        [sys.executable, str(program), str(tmp_path)], capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["module"].startswith("pyspark.sql.connect.")
    assert found["loaded"] == 1
    assert found["read"] == found["streamed"] == [39.0, 39.9, 40.0]
    assert found["enriched"] == found["shuffled"] == [[39.0], [40.0], None, None]
    for name, instead in (
        ("get_state", "use mp.enrich"), ("epoch", "writeStream"), ("compaction", "branch.staging.compact()"),
    ):  # fmt: skip
        assert "does not work over Spark Connect" in found[name], found[name]
        assert instead in found[name]
