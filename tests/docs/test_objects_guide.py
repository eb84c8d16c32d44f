"""The guide to snapshots in a bucket does what it says, on a real S3 server; it names every setting."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from millpond.settings import SETTINGS
from tests.docs.snippets import ROOT, snippets
from tests.s3_server import S3Server

PAGE = "docs/objects.md"


def test_the_guide_does_what_it_says(
    s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, value in (s3_server.environment | {"MILLPOND_CLIENT_CACHE": str(tmp_path / "cache")}).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    s3_server.make_bucket("my-bucket")
    names: dict[str, Any] = {}
    commands = ""
    for snippet in snippets(PAGE):
        if snippet.language == "python":
            exec(compile(snippet.text, PAGE, "exec"), names)
        else:
            done = subprocess.run(["sh", "-ec", snippet.text], capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
            commands += done.stdout
    assert capsys.readouterr().out.splitlines() == ["[{'temp': 39.0}, None]"]
    assert commands.count("weather") == 3


def test_the_guide_to_ponds_in_a_bucket_does_what_it_says(
    s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, value in (s3_server.environment | {"XDG_CACHE_HOME": str(tmp_path)}).items():
        monkeypatch.setenv(name, value)
    bucket = s3_server.make_bucket(f"guide-{os.getpid()}")
    [snippet] = [snippet for snippet in snippets("docs/buckets.md") if snippet.language == "python"]
    exec(compile(snippet.text.replace("s3://my-bucket", bucket), "docs/buckets.md", "exec"), {})
    assert capsys.readouterr().out.splitlines() == re.findall(r"# (\{.*)$", snippet.text, re.MULTILINE)


def test_every_setting_is_named() -> None:
    named = re.findall(r"^\| `(objects\.\w+)` \|", (ROOT / PAGE).read_text(encoding="utf-8"), re.MULTILINE)
    assert named == [name for name in SETTINGS if name.startswith("objects.") and name != "objects.backups"]
