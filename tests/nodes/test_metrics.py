"""The page of metrics, as those who collect it read it: each family once, in either format."""

from __future__ import annotations

from collections import Counter

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families as text_families

import millpond
from millpond.maps.snapshots.manifest import SnapshotManifest, load_manifest
from millpond.server import metrics
from millpond.stores.objects import Objects
from tests.nodes.conftest import ClusterHere, Served

OPENMETRICS = {"Accept": "application/openmetrics-text;version=1.0.0;q=0.6,text/plain;version=0.0.4;q=0.3,*/*;q=0.2"}


def declared(page: str, what: str) -> list[str]:
    """The families whose `# TYPE` or `# HELP` a page tells, in order."""
    return [line.split(" ")[2] for line in page.splitlines() if line.startswith(f"# {what} ")]


def check_page(node: Served) -> None:
    plain, strict = node.get("/metrics"), node.get("/metrics", headers=OPENMETRICS)
    assert plain.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert strict.headers["Content-Type"] == "application/openmetrics-text; version=1.0.0; charset=utf-8"
    for answer, families in ((plain, text_families), (strict, openmetrics_families)):
        page = answer.body.decode()
        names = [family.name for family in families(page)]
        assert {"millpond_maps_differing", "millpond_log_ahead_seconds", "process_open_fds"} <= set(names)
        for found in (names, declared(page, "TYPE"), declared(page, "HELP")):
            assert [name for name, count in Counter(found).items() if count > 1] == []
        samples = Counter(
            (sample.name, tuple(sorted(sample.labels.items())))
            for family in families(page)
            for sample in family.samples
        )
        assert [sample for sample, count in samples.items() if count > 1] == []


def test_the_page_is_what_its_formats_allow(node: Served) -> None:
    with millpond.open(node.url) as pond:
        for name in ("m", "n"):
            pond.create_map(name, kind="state", value="long")
            pond.map(name).load([{"key": "a", "value": 1}])
        pond.merge()
        pond.map("m").freeze()
    node.get("/v1/maps/nowhere")
    check_page(node)


def test_so_it_is_of_replicas(cluster: ClusterHere) -> None:
    for node in cluster.nodes:
        check_page(node)


def test_a_page_reads_only_the_snapshots_that_are_new(node: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def counted(objects: Objects, id_: str) -> SnapshotManifest:
        read.append(id_)
        return load_manifest(objects, id_)

    monkeypatch.setattr(metrics, "load_manifest", counted)
    with millpond.open(node.url) as pond:
        for name in ("m", "n", "never"):
            pond.create_map(name, kind="state", value="long").load([{"key": "a", "value": 1}])
        pond.merge()
        for name in ("m", "n"):
            node.pond.map(name).freeze()
        for frozen, fresh in (("m", 2), ("n", 1), ("m", 1)):
            pages = [node.get("/metrics").body.decode() for _ in range(3)]
            assert len(read) == fresh
            for page in pages:
                assert [f'snapshot_age_seconds{{map="{name}"}}' in page for name in ("m", "n", "never")] == [1, 1, 0]
            read.clear()
            node.pond.map(frozen).load([{"key": "b", "value": 2}])
            node.pond.map(frozen).freeze()
        pond.drop_map("m")
        assert 'millpond_snapshot_age_seconds{map="m"}' not in node.get("/metrics").body.decode()
