"""Behaviours 14 and 53: deletions that wait for no compaction, and logs that end at a time."""

from __future__ import annotations

from millpond.versions.graph.commits import Commit
from millpond.versions.graph.history import Window, log
from millpond.versions.repository_context import CompactionRules
from tests.version_sites import Place, put


def test_14_deletions_do_not_wait_for_the_compaction_that_they_cause() -> None:
    place = Place()
    repository = place.repositories(later=True).create("behaviours")
    repository.set(CompactionRules(deletions=5, pause_ms=0))
    main = repository.branch("main")
    paths = [f"{number:02}" for number in range(11)]
    put(main, dict.fromkeys(paths, "1"))
    main.commit("all")
    place.later.clear()
    for path in paths:
        main.delete(path)
    assert main.staging.record().compacted_index is None
    assert main.list().results == ()
    assert place.later
    while place.later:
        place.later.pop(0)()
    assert main.staging.record().compacted_index is not None
    assert main.list().results == ()


def test_53_a_log_since_a_time_shows_what_is_not_older() -> None:
    commits: dict[str, Commit] = {}
    for created, (name, parents) in enumerate({"c1": "", "c2": "c1", "c3": "c1", "c4": "c2 c3", "c5": "c4"}.items(), 1):
        generation = max((commits[parent].generation for parent in parents.split()), default=0) + 1
        commits[name] = Commit(name, "", tuple(parents.split()), created=created, generation=generation)

    def shown(window: Window) -> list[str]:
        return [commit.id for commit in log(commits.__getitem__, "c5", window)]

    assert shown(Window(since=3)) == ["c5", "c4", "c3"]
    assert shown(Window(since=2, first_parent=True)) == ["c5", "c4", "c2"]
    assert shown(Window(since=6)) == []
