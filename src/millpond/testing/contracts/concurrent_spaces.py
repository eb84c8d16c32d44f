"""The promises of drivers of spaces to several users at once, and to those that die: `ConcurrentSpaceContract`.

    class TestMine(ConcurrentSpaceContract):
        driver = SpaceDriver("mine:MySpace")

What a driver cannot do by its nature, as its `SpaceDriver` says, is skipped.
"""

from __future__ import annotations

import random
import signal
import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from millpond.kernel.keys import EVERYTHING, Prefix
from millpond.kernel.space import Space, Transaction
from millpond.testing.contracts.space_child import TOTAL, count_once, counted
from millpond.testing.contracts.space_driver import SpaceDriver

__all__ = ("ConcurrentSpaceContract",)

ACCOUNTS = Prefix("account")
BALANCE = 100
KILLED_AFTER = (0, 1, 2, 5, 13, 40, 80)
"""Acknowledged writes after which a child is killed, one after another at one location."""


class ConcurrentSpaceContract:
    """The promises of `millpond.kernel.space` to threads and processes."""

    driver: ClassVar[SpaceDriver]

    @pytest.fixture
    def location(self, tmp_path: Path) -> str:
        return self.driver.locate(tmp_path)

    @pytest.fixture
    def opened(self, location: str) -> Iterator[Space]:
        space = self.driver.open(location)
        yield space
        space.close()

    # --- threads

    def test_money_that_changes_hands_stays_the_same(self, opened: Space) -> None:
        opened.write(lambda tx: _open_accounts(tx, 5))
        done = threading.Event()

        def transfer(generator: random.Random) -> None:
            source, target = generator.sample(range(5), 2)
            amount, fails = generator.randrange(30), generator.random() < 0.2

            def change(tx: Transaction) -> None:
                there = [int(value or b"") for value in tx.get_many([ACCOUNTS.pack(source), ACCOUNTS.pack(target)])]
                if there[0] < amount:
                    return
                tx.put(ACCOUNTS.pack(source), b"%d" % (there[0] - amount))
                if fails:
                    raise ZeroDivisionError  # half way
                tx.put(ACCOUNTS.pack(target), b"%d" % (there[1] + amount))

            try:
                opened.write(change)
            except ZeroDivisionError:
                return

        def watch() -> None:
            while not done.is_set():
                with opened.read() as tx:
                    balances = [int(value) for _, value in tx.scan(ACCOUNTS.range())]
                assert sum(balances) == 5 * BALANCE, balances
                assert min(balances) >= 0

        def work(seed: int) -> None:
            generator = random.Random(seed)
            for _ in range(40):
                transfer(generator)

        watcher = _Thread(watch)
        _run([lambda seed=seed: work(seed) for seed in range(4)])  # type: ignore[misc]
        done.set()
        watcher.finish()

    def test_two_writes_that_read_what_the_other_changes_do_not_both_pass(self, opened: Space) -> None:
        """Write skew: each alone keeps the sum above zero, and both together would not."""
        opened.write(lambda tx: _open_accounts(tx, 2))

        def take(number: int) -> None:
            def change(tx: Transaction) -> None:
                there = [int(tx.get(ACCOUNTS.pack(account)) or b"") for account in range(2)]
                if sum(there) >= 10:
                    tx.put(ACCOUNTS.pack(number), b"%d" % (there[number] - 10))

            for _ in range(20):
                opened.write(change)

        _run([lambda number=number % 2: take(number) for number in range(4)])  # type: ignore[misc]
        with opened.read() as tx:
            assert sum(int(value) for _, value in tx.scan(ACCOUNTS.range())) == 0

    def test_rows_that_others_add_are_counted(self, opened: Space) -> None:
        """Phantoms: a row is added only while there are few, and all see each other's."""
        rows_max = 15

        def add(thread: int) -> None:
            def change(tx: Transaction) -> None:
                there = len(list(tx.keys(ACCOUNTS.range())))
                if there < rows_max:
                    tx.put(ACCOUNTS.pack(thread, there), b"")

            for _ in range(10):
                opened.write(change)

        _run([lambda thread=thread: add(thread) for thread in range(4)])  # type: ignore[misc]
        with opened.read() as tx:
            assert len(list(tx.keys(EVERYTHING))) == rows_max

    def test_counters_of_threads_are_all_there(self, opened: Space) -> None:
        def work(thread: int) -> None:
            assert [opened.write(lambda tx: count_once(tx, thread)) for _ in range(20)] == list(range(1, 21))

        _run([lambda thread=thread: work(thread) for thread in range(4)])  # type: ignore[misc]
        with opened.read() as tx:
            assert [counted(tx, thread) for thread in range(4)] == [20] * 4
            assert tx.get(TOTAL) == b"80"

    # --- processes

    def test_a_space_is_closed_and_opened_again(self, location: str) -> None:
        if not self.driver.lasting:
            pytest.skip("it is gone with its process")
        for number in range(1, 4):
            space = self.driver.open(location)
            assert space.write(lambda tx: count_once(tx, 0)) == number
            space.close()

    def test_processes_write_beside_each_other(self, location: str, opened: Space) -> None:
        if not (self.driver.lasting and self.driver.shared):
            pytest.skip("it belongs to one process")
        child = self.driver.start_child(location, "count", threads=[1, 2])
        acknowledged: Counter[int] = Counter()
        lines = _lines(child)
        for number in range(1, 21):
            assert opened.write(lambda tx: count_once(tx, 0)) == number
            _note(acknowledged, next(lines))
            with opened.read() as tx:
                assert all(counted(tx, thread) >= acknowledged[thread] for thread in (1, 2)), "it was acknowledged"
        child.send_signal(signal.SIGKILL)
        for line in lines:
            _note(acknowledged, line)
        child.communicate()
        _check_counters(opened, acknowledged | Counter({0: 20}), (0, 1, 2))

    def test_what_was_acknowledged_outlives_a_killed_writer_and_nothing_is_half(self, location: str) -> None:
        if not self.driver.lasting:
            pytest.skip("it is gone with its process")
        acknowledged: Counter[int] = Counter()
        for killed_after in KILLED_AFTER:
            child = self.driver.start_child(location, "count", threads=[0, 1, 2])
            lines = _lines(child)
            for _ in range(killed_after):
                _note(acknowledged, next(lines))
            child.send_signal(signal.SIGKILL)
            for line in lines:
                _note(acknowledged, line)
            child.communicate()
            space = self.driver.open(location)
            _check_counters(space, acknowledged, (0, 1, 2))
            with space.read() as tx:  # what was not acknowledged, and is there, is there from now on
                acknowledged = Counter({thread: counted(tx, thread) for thread in (0, 1, 2)})
            space.close()


def _open_accounts(tx: Transaction, count: int) -> None:
    for number in range(count):
        tx.put(ACCOUNTS.pack(number), b"%d" % BALANCE)


class _Thread:
    """A thread whose failure is raised where it is waited for."""

    def __init__(self, act: Callable[[], object]) -> None:
        self._failed: list[BaseException] = []
        self._thread = threading.Thread(target=self._run, args=(act,))
        self._thread.start()

    def _run(self, act: Callable[[], object]) -> None:
        try:
            act()
        except BaseException as error:
            self._failed.append(error)

    def finish(self) -> None:
        self._thread.join()
        if self._failed:
            raise self._failed[0]


def _run(acts: list[Callable[[], object]]) -> None:
    """Run all at once, each in a thread of its own."""
    for thread in [_Thread(act) for act in acts]:
        thread.finish()


def _lines(child: subprocess.Popen[str]) -> Iterator[str]:
    assert child.stdout is not None
    return iter(child.stdout)


def _note(acknowledged: Counter[int], line: str) -> None:
    if line.endswith("\n"):
        thread, number = map(int, line.split())
        assert number > acknowledged[thread]
        acknowledged[thread] = number


def _check_counters(space: Space, acknowledged: Counter[int], threads: tuple[int, ...]) -> None:
    with space.read() as tx:
        counters = {thread: counted(tx, thread) for thread in threads}
        total = int(tx.get(TOTAL) or b"0")
    assert total == sum(counters.values()), "of each write all is there, or nothing"
    for thread, number in counters.items():
        # One may have been committed, and its process killed before it could tell.
        assert acknowledged[thread] <= number <= acknowledged[thread] + 1, (thread, acknowledged, counters)
