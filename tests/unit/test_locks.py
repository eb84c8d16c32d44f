"""Locks of processes and of their threads: held alone, or together by threads that hold different names."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from millpond.errors import Unavailable
from millpond.stores.locks import Names, alone, together

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

BUSY = Unavailable("somebody else has it", kind="pond_busy")


class Holder:
    """A thread that holds a lock until it is let go."""

    def __init__(self, lock: AbstractContextManager[None]) -> None:
        self.holds, self.go = threading.Event(), threading.Event()
        self._lock = lock
        self._thread = threading.Thread(target=self._hold)
        self._thread.start()

    def _hold(self) -> None:
        with self._lock:
            self.holds.set()
            assert self.go.wait(60)

    def let_go(self) -> None:
        self.go.set()
        self._thread.join(60)
        assert not self._thread.is_alive()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "lock"


@pytest.fixture
def holders() -> Iterator[list[Holder]]:
    """Threads that are let go at the end, whatever comes."""
    found: list[Holder] = []
    yield found
    for holder in found:
        holder.let_go()


def of_another_process(file: Path) -> bool:
    """True when another process gets the lock alone."""
    code = (
        "import sys; from pathlib import Path\n"
        "from millpond.errors import Unavailable\n"
        "from millpond.stores.locks import alone\n"
        "try:\n"
        "    with alone(Path(sys.argv[1]), 0, Unavailable('busy', kind='pond_busy')): print('held')\n"
        "except Unavailable: print('busy')\n"
    )
    child = subprocess.run([sys.executable, "-c", code, str(file)], capture_output=True, text=True, check=True)
    return child.stdout.strip() == "held"


@pytest.mark.usefixtures("process")
def test_it_is_held_alone_and_again_by_the_same_thread(file: Path, holders: list[Holder]) -> None:
    with alone(file, 0, BUSY), alone(file, 0, BUSY):
        for lock in (alone(file, 0, BUSY), together(file, {"a"}, 0, BUSY)):
            refused = threading.Event()
            thread = threading.Thread(target=enter_refused, args=(lock, refused))
            thread.start()
            thread.join(60)
            assert refused.is_set()
        assert not of_another_process(file)
    assert of_another_process(file)
    holders.append(Holder(alone(file, 0, BUSY)))
    assert holders[0].holds.wait(60)


def enter_refused(lock: AbstractContextManager[None], refused: threading.Event) -> None:
    try:
        with lock:
            pass
    except Unavailable:
        refused.set()


@pytest.mark.usefixtures("process")
def test_threads_with_different_names_hold_it_together(file: Path, holders: list[Holder]) -> None:
    for name in ("a", "b"):
        holders.append(Holder(together(file, {name, f"{name}2"}, 0, BUSY)))
        assert holders[-1].holds.wait(60)
    with pytest.raises(Unavailable), together(file, {"b2", "c"}, 0, BUSY):
        raise AssertionError("a name is held twice")
    with pytest.raises(Unavailable), alone(file, 0, BUSY):
        raise AssertionError("it is not alone")
    holders[0].let_go()
    assert not of_another_process(file), "one of them holds it still"
    holders[1].let_go()
    assert of_another_process(file)


@pytest.mark.usefixtures("process")
def test_another_process_keeps_all_of_them_out(file: Path) -> None:
    code = (
        "import sys; from pathlib import Path\n"
        "from millpond.errors import Unavailable\n"
        "from millpond.stores.locks import together\n"
        "with together(Path(sys.argv[1]), {'x'}, 0, Unavailable('busy', kind='pond_busy')):\n"
        "    print('held', flush=True); sys.stdin.read()\n"
    )
    arguments = [sys.executable, "-c", code, str(file)]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "held\n"
        for lock in (together(file, {"y"}, 0, BUSY), alone(file, 0, BUSY)):
            with pytest.raises(Unavailable), lock:
                raise AssertionError("another process has it")
        child.communicate()
    with together(file, {"y"}, 0, BUSY):
        pass


def test_who_waits_to_be_alone_is_let_in_before_others(file: Path, holders: list[Holder]) -> None:
    holders.append(Holder(together(file, {"a"}, 0, BUSY)))
    assert holders[0].holds.wait(60)
    queued = Holder(alone(file, 60, BUSY))
    holders.append(queued)
    refused = False
    while not refused:  # until the other has begun to wait
        try:
            with together(file, {"b"}, 0, BUSY):
                pass
        except Unavailable:
            refused = True
    assert not queued.holds.is_set()
    holders[0].let_go()
    assert queued.holds.wait(60)


def test_names_are_held_by_one_thread_at_a_time(holders: list[Holder]) -> None:
    names = Names()
    holders.append(Holder(names.hold({"a", "b"})))
    assert holders[0].holds.wait(60)
    with names.hold({"c"}):
        queued = Holder(names.hold({"b", "c"}))
        holders.append(queued)
        assert not queued.holds.is_set()
        holders[0].let_go()
        assert not queued.holds.is_set(), "one of its names is held still"
    assert queued.holds.wait(60)


@pytest.mark.usefixtures("process")
def test_many_threads_never_hold_a_name_twice(file: Path) -> None:
    held: list[str] = []
    wrong: list[object] = []

    def work(number: int) -> None:
        for turn in range(40):
            mine = {f"{(number + turn) % 5}", f"{(number * turn) % 5}"}
            if turn % 10 == 9:
                with alone(file, 60, BUSY):
                    wrong.extend(held)
            else:
                with together(file, mine, 60, BUSY):
                    wrong.extend(mine.intersection(held))
                    held.extend(mine)
                    for name in mine:
                        held.remove(name)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    assert not wrong
    assert not held
    assert of_another_process(file)
