"""Copies of ponds on nodes, with shards or with runs; and parts that are refused before anything is made."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING

import pytest

import millpond
from millpond.errors import Conflict, Invalid, NotFound
from millpond.events.keyspaces import LOCATION
from millpond.testing.faults import KILL_AT
from millpond.workflows.keyspaces import INITIALIZED
from millpond.workflows.store.initialization import initialize
from tests.clients.conftest import serving
from tests.harness.copied_ponds import CHILD, fill, new_place, opened, said
from tests.rings.forked import run_python

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from millpond import Pond
    from tests.s3_server import S3Server

pytestmark = pytest.mark.usefixtures("process")


@pytest.fixture
def url(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    return new_place(s3_server, monkeypatch, tmp_path)


def _with_objects_elsewhere(pond: Pond) -> None:
    pond.repositories.create("elsewhere", namespace=f"{pond.folder}.r")


def _with_runs(pond: Pond) -> None:
    pond.space.write(lambda tx: initialize(tx, 1))


@pytest.mark.parametrize(
    ("prepared", "part"),
    [
        (lambda pond: pond.create_map("s", kind="state", store="shard"), "shards"),
        (lambda pond: (pond.folder / "workflows").mkdir(), "runs of workflows in RocksDB"),
        (lambda pond: pond.space.write(lambda tx: tx.put(LOCATION.packed, b"redis://h")), "streams of events in Redis"),
        (_with_objects_elsewhere, "objects of repositories in other places"),
    ],
    ids=["shards", "runs in RocksDB", "events in Redis", "objects elsewhere"],
)  # fmt: skip
def test_what_cannot_be_copied_is_named_before_anything_is_made(
    url: str, tmp_path: Path, prepared: Callable[[Pond], object], part: str
) -> None:
    with opened(tmp_path / "one") as pond:
        prepared(pond)
    with pytest.raises(Invalid) as caught:
        millpond.copy(tmp_path / "one", url)
    assert (caught.value.kind, caught.value.values["part"]) == ("copy_unsupported", part)
    assert caught.value.hint
    with pytest.raises(NotFound):
        millpond.copy(url, tmp_path / "two")


def test_runs_stay_behind_where_that_is_wanted_and_come_to_a_new_folder(url: str, tmp_path: Path) -> None:
    with opened(tmp_path / "one") as pond:
        fill(pond)
        _with_runs(pond)
        expected = said(pond, log=False)
    millpond.copy(tmp_path / "one", url, without_runs=True)
    millpond.copy(tmp_path / "one", tmp_path / "two")
    for target, come in ((url, False), (tmp_path / "two", True)):
        with opened(target) as pond, pond.space.read() as tx:
            assert (said(pond, log=False), tx.get(INITIALIZED.packed) is not None) == (expected, come)


@pytest.mark.parametrize("by_node", [True, False], ids=["of a node", "of a folder"])
def test_a_pond_with_shards_goes_whole_to_a_new_folder(tmp_path: Path, by_node: bool) -> None:
    with opened(tmp_path / "one") as pond:
        fill(pond)
        pond.create_map("s", kind="state", value="long", store="shard").load([{"key": "a", "value": 1}])
        expected = said(pond, log=False)
    with serving(tmp_path / "one") if by_node else nullcontext(str(tmp_path / "one")) as source:
        for moment in ("backup.files_stored", "restore.cloned", "copy.folder_named"):
            cut = run_python("-c", CHILD, source, str(tmp_path / "two"), **{KILL_AT: moment})
            assert cut.returncode < 0, cut.stderr
            assert (tmp_path / "two").exists() == (moment == "copy.folder_named")
        assert millpond.copy(source, tmp_path / "two").maps == ("nets", "s", "weather")
        with pytest.raises(Invalid, match="maps in shards are not copied"):
            millpond.copy(source, tmp_path / "two")
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != "cache") == ["one", "two"]
    with opened(tmp_path / "two") as pond:
        assert (said(pond, log=False), pond.map("s").get("a")) == (expected, 1)


def test_what_stands_where_a_copy_was_cut_short_is_not_taken_for_it(tmp_path: Path) -> None:
    with opened(tmp_path / "one") as pond:
        pond.create_map("s", kind="state", value="long", store="shard")
    cut = run_python("-c", CHILD, str(tmp_path / "one"), str(tmp_path / "two"), **{KILL_AT: "restore.cloned"})
    assert cut.returncode < 0, cut.stderr
    opened(tmp_path / "two").close()
    with pytest.raises(Invalid, match="holds something else"):
        millpond.copy(tmp_path / "one", tmp_path / "two")


def test_a_pond_on_a_node_goes_into_a_bucket_and_its_maps_into_a_pond(url: str, tmp_path: Path) -> None:
    with opened(tmp_path / "node") as pond:
        fill(pond)
        expected = said(pond, log=False)
    with opened(tmp_path / "own") as pond:
        pond.create_map("own", kind="state", value="long").load([{"key": "a", "value": 1}])
    with serving(tmp_path / "node") as node:
        for moment in ("backup.files_stored", "restore.assembled", "copy.files_sent", "copy.rows_entered"):
            cut = run_python("-c", CHILD, node, url, **{KILL_AT: moment})
            assert cut.returncode < 0, cut.stderr
            with opened(url) as pond:
                assert len(pond.maps()) == (2 if moment == "copy.rows_entered" else 0), moment
        assert millpond.copy(node, url).files == 0, "all came before"
        with opened(url) as pond:
            assert said(pond, log=False) == expected
        with millpond.open(node) as remote:
            remote.map("weather").load([{"key": "c", "effective_time": 1, "value": 5}])
        for maps, target in (((), url), (("weather",), tmp_path / "own")):
            assert millpond.copy(node, target, maps=maps).files > 0
            with opened(target) as pond:
                assert pond.map("weather").get("c", at=2) == 5
        with pytest.raises(Conflict, match="there is another pond"):
            millpond.copy(node, tmp_path / "own")
    assert not list((tmp_path / "cache" / "millpond" / "copies").iterdir())


def test_a_node_on_a_bucket_names_the_bucket_as_the_place_to_copy_from(url: str, tmp_path: Path) -> None:
    with opened(url) as pond:
        pond.create_map("m", kind="state", value="long").load([{"key": "a", "value": 1}])
    with serving(url) as node:  # type: ignore[arg-type]  # a bucket is served as a folder is
        for maps in ((), ("m",)):
            with pytest.raises(Invalid) as caught:
                millpond.copy(node, tmp_path / "two", maps=maps)
            assert "bucket" in (caught.value.hint or "")
