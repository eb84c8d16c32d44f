"""The rings of the tests: what they cost is compared, and what is sampled is drawn by a seed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.rings.again import Again
from tests.rings.forked import run_python
from tests.rings.ledger import Cost, grown
from tests.rings.order import Order, _group
from tests.rings.sampling import Sampling, drawn


def test_a_file_that_grew_by_half_is_named() -> None:
    before = {"a.py": Cost(9, 10), "b.py": Cost(9, 10), "c.py": Cost(9, 10)}
    [words] = grown(before, before | {"b.py": Cost(9, 16)})
    assert words == "b.py: 16.0 s of processor time, 10.0 s before on this machine"


def test_a_slower_machine_is_no_growth() -> None:
    before = {name: Cost(0, 10) for name in "abc"}
    assert grown(before, {name: Cost(0, 30) for name in "abc"}) == []
    assert len(grown(before, {"a": Cost(0, 30), "b": Cost(0, 30), "c": Cost(0, 60)})) == 1


def test_small_and_new_files_are_not_named() -> None:
    before = {"a": Cost(0, 0.2), "b": Cost(0, 5)}
    assert grown(before, {"a": Cost(0, 1.9), "b": Cost(0, 5), "new": Cost(0, 50)}) == []


def test_a_sample_follows_from_the_seed_and_the_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_SEED", "7")
    monkeypatch.delenv("TEST_RING", raising=False)
    first = drawn(range(100), 5, name="kills")
    assert first == sorted(first) == drawn(range(100), 5, name="kills")
    assert first != drawn(range(100), 5, name="other")
    monkeypatch.setenv("TEST_SEED", "8")
    assert first != drawn(range(100), 5, name="kills")
    assert drawn(range(3), 5) == [0, 1, 2]
    monkeypatch.setenv("TEST_RING", "full")
    assert drawn(range(100), 5) == list(range(100))


class _Item:
    """A test, as far as a sample looks at it."""

    def __init__(self, nodeid: str, *marks: pytest.Mark) -> None:
        self.nodeid, self.marks = nodeid, {mark.name: mark for mark in marks}

    def get_closest_marker(self, name: str) -> pytest.Mark | None:
        return self.marks.get(name)


def test_of_a_file_some_tests_are_kept_beside_its_unit_tests(
    monkeypatch: pytest.MonkeyPatch, pytestconfig: pytest.Config
) -> None:
    monkeypatch.delenv("TEST_RING", raising=False)
    sample = pytest.mark.sample(2, of="file").mark
    items: list[Any] = [_Item(f"a.py::test_{number}", sample) for number in range(9)]
    units: list[Any] = [_Item(f"a.py::test_unit_{number}", sample, pytest.mark.unit.mark) for number in range(3)]
    full: list[Any] = [_Item("a.py::test_full", sample, pytest.mark.full.mark)]
    left = [*items, *units, *full]
    monkeypatch.setattr(pytestconfig.hook, "pytest_deselected", lambda items: None)
    Sampling().pytest_collection_modifyitems(pytestconfig, left)
    assert len(set(left) & set(items)) == 2
    assert set(units) | set(full) <= set(left)


def test_spark_has_a_group_for_its_session_and_one_for_its_processes() -> None:
    groups = [_group(f"tests/{name}") for name in (
        "spark/test_reads.py::test_a", "workflows/test_driver.py::test_a", "docs/test_readme.py::test_with_spark",
        "docs/test_readme.py::test_a",
    )]  # fmt: skip
    assert groups == ["spark", "processes of spark", "processes of spark", "tests/docs/test_readme.py"]


def test_long_files_come_first_and_new_ones_not_last(tmp_path: Path) -> None:
    long, new, short = (f"tests/unit/test_{name}.py" for name in ("sql", "rings", "log"))
    ledger = Path(tmp_path, "ledger.json")
    ledger.write_text(f'{{"test": {{"{long}": [50, 9], "{short}": [2, 1]}}, "unit": {{"{short}": [1, 1]}}}}')
    items: list[Any] = [_Item(f"{file}::test_a") for file in (short, new, long)]
    Order(ledger).pytest_collection_modifyitems(items)
    assert [item.nodeid.partition("::")[0] for item in items] == [long, new, short]


def test_workers_begin_with_tests_that_were_imported_once(tmp_path: Path, process: None) -> None:
    Path(tmp_path, "test_whole.py").write_text("def test_all():\n    assert 1 == 2")
    Path(tmp_path, "test_broken.py").write_text("raise SystemExit(1)")
    program = (
        "import sys; from tests.rings.workers import import_tests; import_tests(sys.argv[1:])\n"
        "for name in list(sys.modules):\n"
        "    if name.endswith(('test_whole', 'test_broken')): print(name, type(sys.modules[name].__loader__))"
    )
    [found] = run_python("-c", program, str(tmp_path)).stdout.splitlines()
    assert "test_whole" in found
    assert "AssertionRewritingHook" in found


@pytest.mark.parametrize(("failed", "passes", "exitstatus"), [(1, True, 0), (1, False, 1), (4, True, 1), (0, True, 1)])
def test_a_few_failed_tests_have_a_second_run(failed: int, passes: bool, exitstatus: int) -> None:
    tried: list[str] = []

    def again(nodeids: Sequence[str]) -> bool:
        tried.extend(nodeids)
        return passes

    plugin, session = Again(3, again), SimpleNamespace(exitstatus=1)
    for number in range(failed):
        for _ in range(2):  # of the call, and of what it leaves behind
            plugin.pytest_runtest_logreport(SimpleNamespace(failed=True, nodeid=f"a.py::test_{number}"))  # type: ignore[arg-type]
    plugin.pytest_sessionfinish(session)  # type: ignore[arg-type]
    assert session.exitstatus == exitstatus
    assert tried == (["a.py::test_0"] if failed == 1 else [])
    assert plugin.unsteady == (("a.py::test_0",) if exitstatus == 0 else ())
