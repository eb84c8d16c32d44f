"""Multipart uploads: parts in any order, joined when they are complete, and gone when they are not."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.clock import ManualClock
from millpond.errors import Conflict, Denied, Invalid, NotFound
from millpond.stores.memory import MemorySpace
from millpond.stores.objects import MemoryObjects, ObjectStore
from millpond.versions.collect import GRACE_MS
from millpond.versions.multipart import OPEN_MS_MAX
from millpond.versions.repositories import Repositories
from millpond.versions.repository import Repository
from millpond.versions.repository_context import ProtectedBranches
from tests.rings.sampling import examples

NOW = 1_600_000_000_000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW)


def new_repository(clock: ManualClock) -> Repository:
    places: dict[str, ObjectStore] = {}
    repositories = Repositories(MemorySpace(), clock, lambda where: places.setdefault(where, MemoryObjects()))
    return repositories.create("uploads")


@pytest.fixture
def repository(clock: ManualClock) -> Repository:
    return new_repository(clock)


def data(repository: Repository) -> list[str]:
    return [info.name for info in repository.context.data.list("data", prefix="data/")]


def etag(*parts: bytes) -> str:
    digests = b"".join(hashlib.md5(part).digest() for part in parts)
    return f"{hashlib.md5(digests).hexdigest()}-{len(parts)}"


def test_parts_become_one_object(repository: Repository) -> None:
    main = repository.branch("main")
    upload = main.uploads.create("a/big", content_type="text/plain", metadata={"k": "v"})
    second = main.uploads.put_part(upload.id, 2, [b"wor", b"ld"])
    main.uploads.put_part(upload.id, 1, b"wrong")
    first = main.uploads.put_part(upload.id, 1, b"hello ")
    assert (second.size, second.checksum) == (5, hashlib.md5(b"world").hexdigest())
    assert [found.id for found in main.uploads.pending()] == [upload.id]
    with pytest.raises(NotFound):
        main.stat("a/big")
    entry = main.uploads.complete(upload.id, [(1, f'"{first.checksum}"'), (2, second.checksum)])
    assert main.stat("a/big") == entry
    assert main.get("a/big") == b"hello world"
    assert (entry.size, entry.content_type, entry.metadata) == (11, "text/plain", {"k": "v"})
    assert entry.checksum == etag(b"hello ", b"world")
    assert data(repository) == [entry.address], "the parts are gone"
    with pytest.raises(NotFound) as error:
        main.uploads.complete(upload.id)
    assert error.value.kind == "upload_not_found"


def test_what_cannot_be_completed_is_refused_and_may_be_mended(repository: Repository) -> None:
    main = repository.branch("main")
    uploads = main.uploads
    upload = uploads.create("x")
    one = uploads.put_part(upload.id, 1, b"1")
    for parts, kind in (
        ([], "part_order"), ([(2, ""), (1, "")], "part_order"), ([(1, ""), (1, "")], "part_order"),
        ([(1, one.checksum), (3, "")], "part_missing"), ([(1, "0" * 32)], "part_changed"), ([(0, "")], "part_number"),
    ):  # fmt: skip
        with pytest.raises(Invalid) as error:
            uploads.complete(upload.id, parts)
        assert error.value.kind == kind
    main.put("x", b"there")
    with pytest.raises(Conflict):
        uploads.complete(upload.id, if_absent=True)
    repository.set(ProtectedBranches(("main",)))
    with pytest.raises(Denied):
        uploads.complete(upload.id)
    repository.set(ProtectedBranches())
    assert uploads.complete(upload.id).checksum == etag(b"1")
    with pytest.raises(NotFound):
        repository.create_branch("dev", "main").uploads.put_part(uploads.create("y").id, 1, b"")


def test_an_upload_that_is_given_up_leaves_nothing(repository: Repository) -> None:
    uploads = repository.branch("main").uploads
    upload = uploads.create("x")
    uploads.put_part(upload.id, 1, b"1")
    uploads.abort(upload.id)
    assert data(repository) == []
    with pytest.raises(NotFound):
        uploads.put_part(upload.id, 2, b"2")


def test_garbage_spares_an_open_upload_and_finds_an_abandoned_one(repository: Repository, clock: ManualClock) -> None:
    main = repository.branch("main")
    upload = main.uploads.create("x")
    main.uploads.put_part(upload.id, 1, b"1")
    stray = main.put("y", b"")
    main.delete("y")
    clock.now += GRACE_MS + 1
    found = repository.collect()
    assert (found.objects, found.names) == (1, [stray.address])
    assert main.uploads.complete(upload.id).size == 1
    assert main.get("x") == b"1"

    late = main.uploads.create("late")
    main.uploads.put_part(late.id, 7, b"7")
    clock.now += OPEN_MS_MAX
    assert repository.collect(dry_run=True).objects == 0, "a dry run ends no upload"
    with pytest.raises(NotFound):
        main.uploads.complete(late.id)
    assert repository.collect().names == [late.part_name(7)]
    assert main.get("x") == b"1"


def test_an_upload_streams(repository: Repository) -> None:
    """No chunk is held that was stored."""
    live: list[int] = []

    def chunks() -> Iterator[bytes]:
        for number in range(50):
            live.append(number)
            yield bytes([number]) * 1000

    uploads = repository.branch("main").uploads
    upload = uploads.create("x")
    assert uploads.put_part(upload.id, 1, chunks()).size == 50_000
    assert len(live) == 50


@pytest.mark.usefixtures("processor")
@settings(max_examples=examples(10, 30))
@given(st.dictionaries(st.integers(1, 10_000), st.binary(max_size=9), min_size=1, max_size=6), st.randoms())
def test_any_parts_in_any_order_are_their_concatenation(parts: dict[int, bytes], chance: object) -> None:
    main = new_repository(ManualClock(NOW)).branch("main")
    upload = main.uploads.create("x")
    order = list(parts)
    chance.shuffle(order)  # type: ignore[attr-defined]
    for number in order:
        main.uploads.put_part(upload.id, number, parts[number])
    entry = main.uploads.complete(upload.id)
    joined = [parts[number] for number in sorted(parts)]
    assert (main.get("x"), entry.checksum) == (b"".join(joined), etag(*joined))
