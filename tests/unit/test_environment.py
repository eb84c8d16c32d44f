"""The locks that `tools/setup` installs, its steps, and the line that says how far it is."""

from __future__ import annotations

import re

from tests.docs.snippets import ROOT
from tools.environment import Step, progress_line


def _pins(lock: str) -> set[str]:
    return set(re.findall(r"^[\w.-]+==\S+", (ROOT / lock).read_text(encoding="utf-8"), re.MULTILINE))


def _done(_step: Step) -> None:
    return


def test_the_demo_installs_less_and_the_same_versions() -> None:
    demo, all_of_them = _pins("requirements-demo.lock"), _pins("requirements.lock")
    assert demo < all_of_them
    assert not {pin.partition("==")[0] for pin in demo} & {"mypy", "polars", "grpcio-tools", "pytest"}


def test_locks_name_no_index() -> None:
    for lock in ("requirements.lock", "requirements-demo.lock"):
        assert "://" not in (ROOT / lock).read_text(encoding="utf-8")


def test_progress_is_a_share_of_all_steps() -> None:
    packages = Step("Python packages", 30.0, _done, share=0.5, line="Building pyspark", state="running")
    java = Step("Debian packages", 10.0, _done, share=1.0, state="done")
    assert (
        progress_line([packages, java], 12.3) == "[############--------]  62%   12 s  Python packages: Building pyspark"
    )


def test_a_step_reads_its_share_from_the_lines_of_its_command(process: None) -> None:
    step = Step("count", 1.0, _done)
    step.run("sh", "-c", "echo '1 of 4 a'; echo '2 of 4 b'", share=lambda line: int(line[0]) / 4)
    assert (step.share, step.line) == (0.5, "2 of 4 b")
