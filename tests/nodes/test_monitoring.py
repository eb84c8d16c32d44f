"""The files for Prometheus and Grafana below `deploy/`, tried with a real Prometheus that scrapes a real node.

Grafana itself is not started: Debian does not ship it. Every query of its dashboard is put to Prometheus instead.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import urllib3
import yaml

from millpond.clock import SystemClock
from tests.docs.snippets import ROOT
from tests.ports import free_ports

if TYPE_CHECKING:
    from tests.nodes.conftest import Served

pytestmark = pytest.mark.sample(1, of="file")

RULES = ROOT / "deploy" / "prometheus"
DASHBOARD = ROOT / "deploy" / "grafana" / "millpond.json"
CLOCK = SystemClock()
SECONDS = 60.0
_NEVER_YET = re.compile(
    r"quarantined|merge_failing|status=~|refused|snapshot_age|merged|queued|upload|clock_skew|task_oldest|events_|backup_age"
)
"""Series that a node has only after something happened to it."""


class Prometheus:
    """A running server."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self._pool = urllib3.PoolManager(retries=False)

    def get(self, path: str, **fields: str) -> Any:
        response = self._pool.request("GET", f"{self.url}/api/v1/{path}", fields=fields)
        if response.status == 503:  # it is starting
            raise urllib3.exceptions.HTTPError(response.data)
        return json.loads(response.data)

    def holds(self, query: str) -> list[Any]:
        answer = self.get("query", query=query)
        assert answer["status"] == "success", (query, answer)
        found: list[Any] = answer["data"]["result"]
        return found

    def wait(self, query: str) -> list[Any]:
        until = CLOCK.monotonic() + SECONDS
        while CLOCK.monotonic() < until:
            try:
                if found := self.holds(query):
                    return found
            except urllib3.exceptions.HTTPError:
                continue  # it is starting
        raise AssertionError(f"nothing for {query}")


@pytest.fixture
def prometheus(node: Served, tmp_path: Path) -> Iterator[Prometheus]:
    """A server with the rules of `deploy/`, scraping one node."""
    program = shutil.which("prometheus")
    assert program, "Prometheus is missing: run `tools/setup prometheus`"
    config = yaml.safe_load((RULES / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["rule_files"] = [str(RULES / "alerts.yml")]
    (scraped,) = config["scrape_configs"]
    scraped["static_configs"] = [{"targets": [node.url.removeprefix("http://")]}]
    del scraped["authorization"]
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config))
    (port,) = free_ports(1)
    command = [
        program, f"--config.file={tmp_path / 'prometheus.yml'}", f"--storage.tsdb.path={tmp_path / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]  # fmt: skip
    with (tmp_path / "log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            yield Prometheus(port)
        finally:
            process.terminate()


def dashboard_queries() -> list[str]:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    return [target["expr"] for panel in panels for target in panel["targets"]]


@pytest.mark.settings(server_grpc_port="auto")
def test_alerts_and_panels_query_what_a_node_shows(node: Served, prometheus: Prometheus) -> None:
    node.get("/v1/maps")
    node.post("/v1/jobs/events/run?wait=30")
    prometheus.wait("millpond_ready == 1")
    prometheus.wait('rate(millpond_requests_total{job="millpond"}[1m]) >= 0')
    for query in dashboard_queries():
        filled = query.replace('instance=~"$node"', 'instance=~".*"').replace("$__rate_interval", "1m")
        found = prometheus.wait(filled) if not _NEVER_YET.search(query) else prometheus.holds(filled)
        assert found or _NEVER_YET.search(query), query
    rules = [rule for group in prometheus.get("rules")["data"]["groups"] for rule in group["rules"]]
    assert len(rules) >= 12
    assert [rule["name"] for rule in rules if rule.get("lastError")] == []
    shown = node.get("/metrics").body.decode()
    shown += "# TYPE millpond_backup_age_seconds gauge"  # where the setting `backups` names a place
    known = set(re.findall(r"^# TYPE (\S+)", shown, re.MULTILINE))
    text = (RULES / "alerts.yml").read_text() + " ".join(dashboard_queries())
    for name in set(re.findall(r"\b(?:millpond|process)_\w+", text)):
        assert {name, name.removesuffix("_bucket"), name.removesuffix("_total")} & known, name


def test_a_node_that_ends_is_alerted_on(node: Served, prometheus: Prometheus) -> None:
    prometheus.wait("millpond_ready == 1")
    node.service.stop()
    prometheus.wait('up{job="millpond"} == 0')
    prometheus.wait('ALERTS{alertname="MillpondNodeDown", alertstate="pending"}')


def test_the_rules_pass_their_tests() -> None:
    program = shutil.which("promtool")
    assert program, "Prometheus is missing: run `tools/setup prometheus`"
    done = subprocess.run(
        [program, "test", "rules", "alerts.test.yml"], cwd=RULES, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_guide_lists_the_alerts() -> None:
    text = (ROOT / "docs" / "nodes.md").read_text()
    rules = yaml.safe_load((RULES / "alerts.yml").read_text())["groups"][0]["rules"]
    for rule in rules:
        assert f"`{rule['alert']}`" in text, rule["alert"]
