"""Entries that requests stage at one time: each has its own outcome, and the thread that stages them ends in order."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from millpond.errors import Denied, Invalid, NotFound, Unavailable
from millpond.pond import Pond, open_pond
from millpond.server.lakefs.batcher import Batcher
from millpond.versions.objects.entries import Entry
from millpond.versions.repository import Repository
from millpond.versions.repository_context import ProtectedBranches, write_setting
from millpond.versions.staging.group_commit import StagedEntry, put_together


@pytest.fixture
def pond(tmp_path: Path) -> Iterator[Pond]:
    with open_pond(tmp_path / "pond") as made:
        yield made


@pytest.fixture
def repository(pond: Pond) -> Repository:
    made = pond.repositories.create("flights")
    made.create_branch("safe", "main")
    pond.space.write(lambda tx: write_setting(tx, made.context.uid, ProtectedBranches(("safe",))))
    return made


def staged(repository: Repository, path: str, size: int = 0, branch: str = "main") -> StagedEntry:
    return StagedEntry.of(repository.context, branch, Entry(path, "data/x", size))


def listed(repository: Repository) -> dict[str, int]:
    page = repository.ref("main").list(amount=10_000)
    return {entry.path: entry.size for entry in page.results if isinstance(entry, Entry)}


def test_each_request_has_its_own_outcome(repository: Repository) -> None:
    async def main() -> list[BaseException | None]:
        together = Batcher(put_together, "stage-entries")
        orders = [
            staged(repository, "a", 1), staged(repository, "b", 1, "absent"), staged(repository, "b", 2, "safe"),
            staged(repository, "a", 2), staged(repository, "c", 3), staged(repository, "d", 1, "absent"),
        ]  # fmt: skip
        found = await asyncio.gather(*map(together.act, orders), return_exceptions=True)
        together.close()
        return found

    kinds = [None if outcome is None else type(outcome) for outcome in asyncio.run(main())]
    assert kinds == [None, NotFound, Denied, None, None, NotFound]
    assert listed(repository) == {"a": 2, "c": 3}


def with_body(repository: Repository, path: str, body: bytes, branch: str = "main") -> StagedEntry:
    name = f"data/000001/000000000001-{path}{branch}"
    return StagedEntry.of(repository.context, branch, Entry(path, name, len(body)), body=body)


def test_bytes_are_stored_with_their_entries_and_only_where_a_branch_takes_them(repository: Repository) -> None:
    orders = [
        with_body(repository, "a", b"1"), with_body(repository, "b", b"22", "absent"),
        with_body(repository, "c", b"333", "safe"), staged(repository, "d", 4), with_body(repository, "e", b""),
    ]  # fmt: skip
    kinds = [type(outcome) for outcome in put_together(orders)]
    assert kinds == [type(None), NotFound, Denied, type(None), type(None)]
    assert listed(repository) == {"a": 1, "d": 4, "e": 0}
    assert [repository.ref("main").get(path) for path in "ae"] == [b"1", b""]
    assert len(list(repository.context.data.list("data"))) == 2


def test_entries_whose_bytes_cannot_be_stored_fail_alone(pond: Pond, repository: Repository) -> None:
    other = pond.repositories.create("boats")
    other.context.data.put("data", b"no folder")
    orders = [with_body(other, "a", b"1"), staged(other, "b"), with_body(repository, "a", b"1")]
    kinds = [type(outcome) for outcome in put_together(orders)]
    assert kinds == [Invalid, type(None), type(None)]
    assert (set(listed(other)), set(listed(repository))) == ({"b"}, {"a"})


def test_a_sender_that_went_away_takes_nobody_with_it(repository: Repository) -> None:
    async def main() -> None:
        together = Batcher(put_together, "stage-entries")
        tasks = [asyncio.create_task(together.act(staged(repository, f"p{number}"))) for number in range(20)]
        await asyncio.sleep(0)
        for task in tasks[::3]:
            task.cancel()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        assert [outcome for outcome in found if outcome is not None and not isinstance(outcome, Exception)] == [
            outcome for outcome in found if isinstance(outcome, asyncio.CancelledError)
        ]
        together.close()

    asyncio.run(main())
    assert {f"p{number}" for number in range(20) if number % 3} <= set(listed(repository))


def test_what_was_handed_over_is_written_before_the_end_and_nothing_after_it(repository: Repository) -> None:
    async def main() -> None:
        together = Batcher(put_together, "stage-entries")
        task = asyncio.create_task(together.act(staged(repository, "a")))
        await asyncio.sleep(0)
        together.close()
        assert set(listed(repository)) == {"a"}
        await task
        with pytest.raises(Unavailable, match="stopping"):
            await together.act(staged(repository, "b"))

    asyncio.run(main())
    assert set(listed(repository)) == {"a"}


def test_when_the_write_fails_all_of_a_group_do(pond: Pond, repository: Repository) -> None:
    orders = [staged(repository, f"p{number}") for number in range(5)]
    pond.close()

    async def main() -> None:
        together = Batcher(put_together, "stage-entries")
        found = await asyncio.gather(*map(together.act, orders), return_exceptions=True)
        assert all(isinstance(outcome, Exception) for outcome in found)
        together.close()

    asyncio.run(main())
