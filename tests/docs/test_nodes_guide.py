"""The guide for operators: its three nodes run, fail and come back as it says, and it names all there is."""

from __future__ import annotations

import re

import pytest

from millpond.nodes.limits import INTERVALS_MS
from millpond.settings import SETTINGS, duration_in_words
from tests.docs.shell import Shell
from tests.docs.snippets import ROOT, snippets
from tools import error_reference

pytestmark = pytest.mark.full

PAGE = "docs/nodes.md"
TEXT = (ROOT / PAGE).read_text(encoding="utf-8")


def test_three_nodes_do_what_the_guide_says(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    blocks = [snippet for snippet in snippets(PAGE) if snippet.heading == "Three nodes"]
    (settings,) = [snippet.text for snippet in blocks if snippet.language == "toml"]
    (shell.folder / "millpond.toml").write_text(shell.on_free_ports(settings))
    start, load, fail = [snippet.text for snippet in blocks if snippet.language == "sh"]
    shell.type(start)
    printed = shell.type(load)
    assert "loaded 3 rows into weather" in printed
    assert "all nodes agree" in printed
    printed = shell.type(fail)
    assert "the load is not on every node, so it is on none" in printed
    assert "as expected" in printed
    assert "33.1" in printed, "reads go on"
    assert printed.rstrip().endswith("all nodes agree")
    (python,) = [snippet.text for snippet in blocks if snippet.language == "python"]
    exec(compile(shell.on_free_ports(python), PAGE, "exec"), {})
    (promised,) = re.findall(r"^print\(.*\)  # (.*)$", python, re.MULTILINE)
    assert capsys.readouterr().out.strip() == promised


def test_the_node_of_the_readme_serves(shell: Shell) -> None:
    blocks = [snippet for snippet in snippets("README.md") if snippet.language == "sh"]
    (served,) = [snippet.text for snippet in blocks if snippet.serves]
    (prepared,) = [
        snippet.text for snippet in blocks if snippet.heading == "Five minutes" and "millpond load" in snippet.text
    ]
    enriched = ("millpond enrich", "cat enriched.csv")
    shell.type("".join(line for line in prepared.splitlines(True) if not line.startswith(enriched)))
    printed = shell.type(served)
    assert "rows into weather" in printed
    assert "18.4" in printed


def test_every_setting_that_is_named_is_one() -> None:
    for name in re.findall(r"`([a-z]+(?:_[a-z]+)+)`", TEXT):
        assert name in KNOWN or _is_kind(name), name
    groups = {name.partition(".")[0] for name in SETTINGS}
    for name in re.findall(r"`([a-z]+\.[a-z_.]+)[` ]", TEXT):
        group, _, field = name.partition(".")
        job = field.removeprefix("intervals.")
        assert group not in groups or name in SETTINGS or job in INTERVALS_MS, name


KNOWN = (
    "replicate",
    "known_at",
    "maintenance_suspended",
    "header_late",
    "reader_stalled",
    "pipeline_long",
    "body_unread",
    "only_here",
    "not_backed_up",
)


def _is_kind(name: str) -> bool:
    return f'"kind": "{name}"' in error_reference.KINDS.read_text(encoding="utf-8") or name.startswith("millpond_")


def test_every_job_and_its_interval_is_explained() -> None:
    listed = {
        job.strip(" `"): every
        for jobs, every in re.findall(r"^\| (`[a-z`, ]+`) \| (\w+) \|", TEXT.partition("## Jobs")[2], re.MULTILINE)
        for job in jobs.split(",")
    }
    assert listed == {job: duration_in_words(interval_ms) for job, interval_ms in INTERVALS_MS.items()}


def test_every_metric_that_is_named_is_one() -> None:
    from millpond.server import event_metrics, metrics

    described = f"{metrics.__doc__}{event_metrics.__doc__}"

    for name in re.findall(r"`(millpond_\w+)`", TEXT):
        assert f"`{name}`" in described, name
