"""Writes of several threads that share one commit: each succeeds or fails by itself, and all are answered."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from millpond.errors import Internal, Unavailable, Uncertain
from millpond.stores.lmdb.space import Limits, LmdbSpace
from millpond.stores.lmdb.write_queue import Group, Request, WriteQueue
from tests.unit.lmdb_spaces import BIG, SMALL, environment_of, put, python, rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from millpond.kernel.space import Transaction

    Change = Callable[[Transaction], object]


@pytest.fixture
def space(tmp_path: Path) -> Iterator[LmdbSpace]:
    space = LmdbSpace(tmp_path / "space", durable=False, limits=SMALL)
    yield space
    space.close()


def putting(key: bytes, value: bytes = b"") -> Change:
    return lambda tx: tx.put(key, value)


def _nothing(_: object) -> None:
    """Write nothing."""


def failing(key: bytes) -> Change:
    def change(tx: Transaction) -> None:
        tx.put(key, b"")
        raise ZeroDivisionError

    return change


def written_together(space: LmdbSpace, changes: list[Change], *, reading: bool = False) -> list[object]:
    """The outcome of each change: all are queued while another thread writes, so that one of them leads the others."""
    inside, go_on = threading.Event(), threading.Event()
    outcomes: list[object] = [None] * len(changes)

    def hold(tx: Transaction) -> None:
        inside.set()
        assert go_on.wait(60)
        tx.put(b"held", b"")

    def write(number: int) -> None:
        try:
            if reading:
                with space.read():
                    outcomes[number] = space.write(changes[number])
            else:
                outcomes[number] = space.write(changes[number])
        except BaseException as error:
            outcomes[number] = error

    holder = threading.Thread(target=space.write, args=(hold,))
    holder.start()
    assert inside.wait(60)
    threads = []
    for number in range(len(changes)):
        threads.append(threading.Thread(target=write, args=(number,)))
        threads[-1].start()
        while len(environment_of(space)._writers._requests) <= number:
            assert threads[-1].is_alive()
    go_on.set()
    for thread in (holder, *threads):
        thread.join(60)
        assert not thread.is_alive(), "it was never answered"
    return outcomes


def test_the_writes_of_several_threads_are_one_commit(space: LmdbSpace) -> None:
    put(space, b"held")
    before = space.last_change()
    keys = [b"%d" % number for number in range(7)]
    assert written_together(space, [putting(key) for key in keys]) == [None] * 7
    assert space.last_change() == before + 2, "one of the thread that held them up, one of all others"
    assert rows(space) == dict.fromkeys([b"held", *keys], b"")


def test_later_ones_of_a_group_see_what_earlier_ones_wrote(space: LmdbSpace) -> None:
    def count(tx: Transaction) -> int:
        number = int(tx.get(b"n") or b"0") + 1
        tx.put(b"n", b"%d" % number)
        return number

    assert written_together(space, [count] * 6) == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("wrong", [0, 2, 4])
def test_one_that_fails_takes_nothing_with_it(space: LmdbSpace, wrong: int) -> None:
    changes = [putting(b"%d" % number) for number in range(5)]
    changes[wrong] = failing(b"wrong")
    outcomes = written_together(space, changes)
    assert isinstance(outcomes[wrong], ZeroDivisionError)
    assert [outcome for number, outcome in enumerate(outcomes) if number != wrong] == [None] * 4
    assert rows(space).keys() == {b"held", *(b"%d" % number for number in range(5) if number != wrong)}


@pytest.mark.parametrize("fails", [False, True])
def test_each_is_run_again_only_when_one_of_them_fails(space: LmdbSpace, fails: bool) -> None:
    runs: list[int] = []

    def counted(number: int) -> Change:
        def change(tx: Transaction) -> None:
            runs.append(number)
            assert tx.get(b"%d" % number) is None, "what the first run wrote is gone"
            tx.put(b"%d" % number, b"")

        return change

    outcomes = written_together(space, [counted(0), failing(b"1") if fails else counted(1), counted(2)])
    assert runs == ([0, 0, 2] if fails else [0, 1, 2])
    assert [type(outcome) for outcome in outcomes] == [
        type(None),
        ZeroDivisionError if fails else type(None),
        type(None),
    ]


def test_all_may_fail(space: LmdbSpace) -> None:
    put(space, b"held")
    before = space.last_change()
    outcomes = written_together(space, [failing(b"%d" % number) for number in range(3)])
    assert [type(outcome) for outcome in outcomes] == [ZeroDivisionError] * 3
    assert space.last_change() == before + 1
    assert rows(space) == {b"held": b""}


def test_a_write_inside_a_write_is_refused_in_a_group(space: LmdbSpace) -> None:
    outcomes = written_together(space, [putting(b"a"), lambda _: put(space, b"b"), putting(b"c")])
    assert isinstance(outcomes[1], Internal)
    assert rows(space).keys() == {b"held", b"a", b"c"}


@pytest.mark.parametrize("big", [0, 1, 3])
@pytest.mark.parametrize("swallow", [False, True])
def test_a_group_that_fills_the_map_is_written_one_by_one(space: LmdbSpace, big: int, swallow: bool) -> None:
    runs: list[int] = []

    def grow(tx: Transaction) -> str:
        runs.append(len(runs))
        try:
            tx.put(b"big", BIG)
        except Exception:
            if not swallow:
                raise
        return "big"

    changes: list[Change] = [putting(b"0"), putting(b"1"), failing(b"2"), putting(b"3")]
    changes[big] = grow
    outcomes = written_together(space, changes)
    assert outcomes[big] == "big"
    assert len(runs) > 1, "it was run again"
    assert [type(outcome) for number, outcome in enumerate(outcomes) if number not in (big, 2)] == [type(None)] * 2
    assert rows(space)[b"big"] == BIG
    assert rows(space).keys() == {b"held", b"big", *(b"%d" % number for number in (0, 1, 3) if number != big)}


def test_one_that_fits_into_no_map_fails_alone(tmp_path: Path) -> None:
    space = LmdbSpace(tmp_path / "space", limits=Limits(map_bytes=16384, map_bytes_max=65536))
    changes = [putting(b"0"), putting(b"big", BIG), putting(b"2")]
    outcomes = written_together(space, changes)
    assert isinstance(outcomes[1], Unavailable)
    assert outcomes[1].kind == "space_full"
    assert outcomes[0] is outcomes[2] is None
    assert rows(space).keys() == {b"held", b"0", b"2"}
    space.close()


def test_threads_that_read_and_wait_to_write_do_not_stop_a_map_from_growing(space: LmdbSpace) -> None:
    put(space, b"k")
    outcomes = written_together(space, [putting(b"0"), putting(b"1"), putting(b"big", BIG)], reading=True)
    # Each reads itself: the one that must grow the map cannot, or the others were in its way and were sent off.
    for outcome in outcomes:
        assert outcome is None or (isinstance(outcome, Unavailable) and outcome.kind == "space_in_use"), outcome
    assert isinstance(outcomes[2], Unavailable), "its own reader keeps the map where it is"
    put(space, b"big", BIG)


def test_an_interrupt_ends_its_own_thread_alone(space: LmdbSpace) -> None:
    def interrupted(tx: Transaction) -> None:
        tx.put(b"interrupted", b"")
        raise KeyboardInterrupt

    outcomes = written_together(space, [putting(b"0"), interrupted, putting(b"2"), putting(b"3")])
    # It comes while the first leads; the system sends it to one thread, whichever runs.
    assert [type(outcome) for outcome in outcomes] == [KeyboardInterrupt, KeyboardInterrupt, type(None), type(None)]
    assert rows(space).keys() == {b"held", b"2", b"3"}


@pytest.mark.parametrize("settled", [False, True], ids=["before-the-answer", "after-it"])
def test_a_thread_that_is_interrupted_holds_up_nobody_behind_it(settled: bool) -> None:
    queue = WriteQueue(threading.RLock(), lambda: None, gathers=True)
    own = Request(_nothing)
    assert queue.enter(own)
    taken, gone = threading.Event(), threading.Event()

    class Interrupted(Request[None]):
        def wait(self, seconds: float = -1) -> bool:
            if settled:
                super().wait(seconds)
            assert taken.wait(60)
            raise KeyboardInterrupt

    outcomes: dict[int, object] = {}
    requests = [Request(_nothing), Interrupted(_nothing), Request(_nothing), Request(_nothing)]

    def enter(number: int) -> None:
        request = requests[number]
        request.thread = threading.get_ident()
        try:
            outcomes[number] = queue.enter(request)
        except KeyboardInterrupt:
            outcomes[number] = "interrupted"
            gone.set()

    threads = []
    for number in range(len(requests)):
        threads.append(threading.Thread(target=enter, args=(number,)))
        threads[-1].start()
        while len(queue._requests) <= number:
            assert threads[-1].is_alive()
    group = Group(own)
    queue.take(group)
    taken.set()
    if not settled:
        assert gone.wait(60)
    queue.settle(group)
    queue.leave()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "it was never woken"
    assert outcomes == {0: False, 1: "interrupted", 2: False, 3: False}


def test_a_gatherer_that_is_interrupted_leaves_its_place_to_the_next() -> None:
    queue = WriteQueue(threading.RLock(), lambda: None, gathers=True)
    queue._expected = 3
    waits = threading.Event()

    class Interrupted(Request[None]):
        def wait(self, seconds: float = -1) -> bool:
            assert seconds > 0, "the first one keeps the time"
            assert waits.wait(60)
            raise KeyboardInterrupt

    def first() -> None:
        with pytest.raises(KeyboardInterrupt):
            queue.enter(Interrupted(_nothing))

    led: list[bool] = []

    def second() -> None:
        led.append(queue.enter(Request(_nothing)))
        queue.leave()

    threads = [threading.Thread(target=first), threading.Thread(target=second)]
    for number, thread in enumerate(threads):
        thread.start()
        while len(queue._requests) <= number:
            assert thread.is_alive()
    waits.set()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "nobody kept the time"
    assert led == [True]


def test_an_interrupt_after_the_commit_leaves_the_others_uncertain(
    space: LmdbSpace, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = environment_of(space)
    attempt = environment._attempt

    def interrupted(act: Callable[[Any], object]) -> object:
        done = attempt(act)
        if b"0" in rows(space):
            raise KeyboardInterrupt
        return done

    monkeypatch.setattr(environment, "_attempt", interrupted)
    outcomes = written_together(space, [putting(b"0"), failing(b"1"), putting(b"2")])
    assert isinstance(outcomes[0], KeyboardInterrupt)
    assert isinstance(outcomes[1], ZeroDivisionError), "its own error is what it gets"
    assert isinstance(outcomes[2], Uncertain)
    monkeypatch.undo()
    put(space, b"after")
    assert rows(space).keys() == {b"held", b"0", b"2", b"after"}


@pytest.mark.usefixtures("process")
def test_a_disk_that_is_full_is_everybodys_error_and_nothing_is_lost(tmp_path: Path) -> None:
    child = python(
        "import resource, threading\n"
        "from millpond.errors import Unavailable\n"
        "space = LmdbSpace(sys.argv[1])\n"
        "space.write(lambda t: t.put(b'k', b'old'))\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, resource.RLIM_INFINITY))\n"
        "held, go_on, kinds = threading.Event(), threading.Event(), []\n"
        "def write(n):\n"
        "    try: space.write(lambda t: (t.put(b'k', b'new'), t.put(b'big%d' % n, bytes(100_000))))\n"
        "    except Unavailable as error: kinds.append(error.kind)\n"
        "def hold(t): held.set(); go_on.wait(60)\n"
        "threads = [threading.Thread(target=space.write, args=(hold,))]\n"
        "threads[0].start(); held.wait(60)\n"
        "threads += [threading.Thread(target=write, args=(n,)) for n in range(3)]\n"
        "for thread in threads[1:]: thread.start()\n"
        "while len(space._environment._writers._requests) < 3: pass\n"
        "go_on.set()\n"
        "for thread in threads: thread.join()\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))\n"
        "with space.read() as t: print(kinds, t.get(b'k'), t.get(b'big0'))\n"
        "space.write(lambda t: t.put(b'k', b'new'))\n"
        "with space.read() as t: print(t.get(b'k'))\n",
        tmp_path / "space",
    )
    out, _ = child.communicate()
    assert out.splitlines() == ["['disk_full', 'disk_full', 'disk_full'] b'old' None", "b'new'"]


@pytest.mark.usefixtures("processor")
def test_many_threads_write_durably_and_every_answer_is_true(tmp_path: Path) -> None:
    space = LmdbSpace(tmp_path / "space", limits=SMALL)
    answered: list[list[int]] = [[] for _ in range(8)]

    def count(tx: Transaction) -> int:
        number = int(tx.get(b"n") or b"0") + 1
        tx.put(b"n", b"%d" % number)
        tx.put(b"row %d" % number, bytes(700))
        if number % 7 == 3 and tx.get(b"skip %d" % number) is None:
            raise ZeroDivisionError
        return number

    def work(mine: list[int]) -> None:
        for turn in range(60):
            try:
                mine.append(space.write(count))
            except ZeroDivisionError:
                number = int(rows(space).get(b"n", b"0")) + 1
                space.write(lambda tx, number=number: tx.put(b"skip %d" % number, b""))
            if turn % 20 == 19:
                put(space, b"big", BIG)

    threads = [threading.Thread(target=work, args=(mine,)) for mine in answered]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    numbers = sorted(number for mine in answered for number in mine)
    assert numbers == list(range(1, len(numbers) + 1)), "each was answered its own number, and none was lost"
    assert all(mine == sorted(mine) for mine in answered)
    assert rows(space)[b"n"] == b"%d" % len(numbers)
    space.close()
