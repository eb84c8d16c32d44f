"""Credentials that lack a right on a real server: the error names it when a pond is made, opened or written to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import millpond
from millpond.errors import Denied
from millpond.stores.objects.bucket import BucketObjects
from tests.versity_server import credentials_of, grant, keep_versions, running

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.s3_server import S3Server

pytestmark = [pytest.mark.full, pytest.mark.usefixtures("process")]

ALL = ("GetObject", "ListBucket", "PutObject", "DeleteObject")
LACKING = {f"without-{right.lower()}": tuple(other for other in ALL if other != right) for right in ALL}
READER, OWNER = "reader", "owner"
BUCKET = "bucket-of-rights"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    accounts = {**LACKING, READER: ALL[:2], OWNER: ALL}
    with running(tmp_path_factory.mktemp("rights"), tuple(accounts)) as server:
        server.make_bucket(BUCKET)
        grant(server, BUCKET, accounts)
        yield server


@pytest.fixture
def become(server: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], None]:
    def as_account(account: str) -> None:
        for name, value in {**server.environment, **credentials_of(account)}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / account))

    return as_account


def verb_of(act: Callable[[], object]) -> str:
    with pytest.raises(Denied) as caught:
        act()
    assert caught.value.message == "a right to the bucket is missing"
    assert str(caught.value.values["verb"]) in str(caught.value.hint)
    return str(caught.value.values["verb"])


@pytest.mark.parametrize("right", ALL)
def test_a_pond_is_not_made_without_one_of_the_rights(become: Callable[[str], None], right: str) -> None:
    become(f"without-{right.lower()}")
    place = f"s3://{BUCKET}/{right.lower()}"
    assert f"s3:{right}" in verb_of(lambda: millpond.open(place))
    become(OWNER)
    millpond.open(place).close()


def test_who_may_read_alone_reads_and_the_first_write_names_the_right(become: Callable[[str], None]) -> None:
    place = f"s3://{BUCKET}/readers"
    become(OWNER)
    with millpond.open(place) as pond:
        pond.create_map("m", kind="state", value="long").load([{"key": "a", "value": 1}])
        pond.branch("fix", source="main")
    become(READER)
    with millpond.open(place, create=False) as pond:
        assert (pond.map("m").get("a"), pond.branch("fix").map("m").get("a")) == (1, 1)
        writes: list[Callable[[], object]] = [
            lambda: pond.map("m").load([{"key": "b", "value": 2}]),
            lambda: pond.branch("fix").map("m").load([{"key": "b", "value": 2}]),
            lambda: pond.create_map("n", kind="state"),
            lambda: pond.events.append("queue", "jobs", [b"small"]),
            lambda: pond.repositories.create("files"),
            lambda: pond.collect_garbage(),
        ]
        assert {verb_of(write) for write in writes} == {"s3:PutObject"}
    for right, verb in (("GetObject", "s3:GetObject"), ("ListBucket", "s3:ListBucket")):
        become(f"without-{right.lower()}")
        assert verb in verb_of(lambda: millpond.open(place, create=False).map("m").get("a"))


def test_the_first_write_names_the_right_to_remove_and_a_machine_asks_once(
    become: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    place, removed = f"s3://{BUCKET}/removers", list[str]()
    become(OWNER)
    with millpond.open(place) as pond:
        pond.create_map("m", kind="state", value="long").load([{"key": "a", "value": 1}])
    become("without-deleteobject")
    with millpond.open(place) as pond:
        assert pond.map("m").get("a") == 1
        for _ in range(2):
            assert verb_of(lambda: pond.map("m").load([{"key": "b", "value": 2}])) == "s3:DeleteObject"
        assert pond.map("m").get("b") is None
    become(OWNER)
    delete = BucketObjects.delete

    def counted(objects: BucketObjects, *names: str) -> None:
        removed.extend(names)
        delete(objects, *names)

    monkeypatch.setattr(BucketObjects, "delete", counted)
    for _ in range(2):
        with millpond.open(place) as pond:
            pond.map("m").load([{"key": "c", "value": 3}], again=True)
    assert removed == [], "the process that made the pond has asked"


def test_a_bucket_that_keeps_versions_is_named_by_a_purge(
    server: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:  # fmt: skip
    place = f"{server.make_bucket('with-versions')}/pond"
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    for versions in (False, True):
        if versions:
            keep_versions(server, "with-versions")
        with millpond.open(place, cache=tmp_path) as pond:
            people = pond.create_map("people", kind="state", value="long", exist_ok=True)
            people.load([{"key": "ann", "value": 1}, {"key": "bob", "value": 2}], again=True)
            report = people.delete("key = 'ann'", now=True)
        lines = [line.partition(":")[0] for line in report.left]
        assert (report.purged, lines) == (not versions, ["old versions of objects"] if versions else [])
