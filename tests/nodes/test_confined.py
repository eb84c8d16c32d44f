"""Work in a process of its own: it answers, or ends within its confines, whatever it does."""

from __future__ import annotations

import errno
import os
import select
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from millpond.errors import Internal, Invalid, NotFound
from millpond.kernel.patience import check_patience, patient
from millpond.server.confined import (
    FRAME_BYTES_MAX,
    Confines,
    EndedEarly,
    OutOfTime,
    confined,
    confined_pieces,
    prepare,
)
from tests.nodes import confined_work

pytestmark = pytest.mark.usefixtures("process")
SMALL = Confines(64 << 20, 30)
BRIEF = Confines(64 << 20, 1)


def done(work: Callable[..., bytes], *args: Any, confines: Confines = SMALL, **options: Any) -> bytes:
    return bytes(confined(confines, bytes, work, *args, **options))


def is_gone(pid: int) -> bool:
    """True when there is no process, and no zombie."""
    return not Path(f"/proc/{pid}").exists()


def test_a_work_asks_and_answers() -> None:
    prepare()
    assert done(confined_work.repeat, "a", times=3) == b"aaa"
    large = "é" * (1 << 20)
    assert done(confined_work.repeat, large, times=2) == large.encode() * 2
    threads: list[threading.Thread] = []

    def answer(_question: Any) -> bytes:
        threads.append(threading.current_thread())
        return b"b"

    assert confined(SMALL, answer, confined_work.repeat, "a", times=1) == b"b"
    assert threads == [threading.current_thread()]


def test_a_work_has_no_folder_of_the_node() -> None:
    assert done(confined_work.folder) == b"/"


def test_errors_of_ours_are_raised_on_the_other_side() -> None:
    with pytest.raises(NotFound, match=r"there is no such map\. map=m \(name another\)") as raised:
        done(confined_work.wrong)
    assert raised.value.kind == "map_not_found"

    def answer(_question: Any) -> bytes:
        raise NotFound("no", kind="map_not_found", map="m")

    assert confined(SMALL, answer, confined_work.refused) == b"map_not_found m"

    def fail(_question: Any) -> bytes:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        confined(SMALL, fail, confined_work.refused)


def test_a_work_that_breaks_ends_early_and_the_log_says_why(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(EndedEarly, match="an error"):
        done(confined_work.broken)
    assert "a mistake of ours" in caplog.text
    with pytest.raises(EndedEarly, match="SIGABRT"):
        done(confined_work.abort)


def test_memory_is_confined() -> None:
    assert done(confined_work.take, 48 << 20) == b"taken"
    for size in (80 << 20, 1 << 40):
        with pytest.raises(EndedEarly, match="no memory is left"):
            done(confined_work.take, size)


def test_a_work_that_ends_at_once_says_how() -> None:
    for _ in range(20):
        with pytest.raises(EndedEarly, match="no memory is left"):
            done(confined_work.take_at_once)


def test_time_is_confined() -> None:
    with pytest.raises(OutOfTime):
        done(confined_work.burn, confines=BRIEF)
    with pytest.raises(OutOfTime):
        done(confined_work.over_its_processor_time)
    never = threading.Event()

    def answer(_question: Any) -> bytes:
        while not never.wait(0.01):
            check_patience()
        return b""

    with pytest.raises(OutOfTime):
        confined(BRIEF, answer, confined_work.refused)


@pytest.mark.parametrize(
    ("data", "ends"),
    [
        (confined_work.head(b"=", FRAME_BYTES_MAX + 1), EndedEarly),
        (confined_work.head(b"=", 1 << 63), EndedEarly),
        (confined_work.head(b"%", 0), EndedEarly),
        (confined_work.head(b"+", 0), EndedEarly),
        (confined_work.head(b"!", 3) + b"no!", Internal),
        (confined_work.head(b"=", 9)[:-1], OutOfTime),
        (confined_work.head(b"=", 9) + b"part", OutOfTime),
    ],
)
def test_what_a_hostile_work_sends_is_bounded(data: bytes, ends: type[Exception]) -> None:
    with pytest.raises(ends):
        done(confined_work.send, data, confines=BRIEF)


def test_pieces_come_as_they_are_taken_and_questions_between_them() -> None:
    questions: list[bytes] = []

    def answer(question: Any) -> bytes:
        questions.append(question)
        return bytes(question) * 2

    pieces = confined_pieces(SMALL, answer, confined_work.numbers, 40)
    assert (next(pieces), next(pieces)) == (b"00", b"11")
    assert list(pieces) == [str(number).encode() * 2 for number in range(2, 40)]
    assert questions == [str(number).encode() for number in range(40)]
    assert list(confined_pieces(SMALL, bytes, confined_work.numbers, 0)) == []


@pytest.mark.parametrize(
    ("what", "ends"),
    [("wrong", NotFound), ("abort", EndedEarly), ("take", EndedEarly), ("long", Invalid), ("burn", OutOfTime)],
)
def test_a_work_that_ends_between_pieces_tells_why(what: str, ends: type[Exception]) -> None:
    confines = Confines(256 << 20, 1 if what == "burn" else 30)
    pieces = confined_pieces(confines, bytes, confined_work.one_then, what)
    assert next(pieces) == b"one"
    with pytest.raises(ends):
        next(pieces)


def test_all_pieces_together_have_a_limit_of_time() -> None:
    with pytest.raises(OutOfTime):
        list(confined_pieces(Confines(64 << 20, 30, processor=1), bytes, confined_work.one_then, "burn"))


def test_a_child_whose_pieces_nobody_takes_ends() -> None:
    with closing(confined_pieces(SMALL, bytes, confined_work.pids)) as pieces:
        child = int(next(pieces))
        assert not is_gone(child)
    assert is_gone(child)


def test_an_answer_has_a_limit() -> None:
    with pytest.raises(Invalid) as raised:
        done(confined_work.repeat, "x" * 1024, times=(FRAME_BYTES_MAX >> 10) + 1, confines=Confines(256 << 20, 30))
    assert raised.value.kind == "answer_too_large"


def test_a_work_writes_no_files_and_has_none_of_the_node(tmp_path: Path) -> None:
    file = tmp_path / "written"
    assert done(confined_work.write, file).decode() == f"{os.strerror(errno.EFBIG)}; {os.strerror(errno.EMFILE)}"
    assert not file.stat().st_size
    with file.open():
        held = done(confined_work.own).decode()
    assert held.count("socket:") == 1 and str(file) not in held


@pytest.mark.parametrize("end", [KeyboardInterrupt, OutOfTime])
def test_a_child_ends_when_nobody_waits_for_it(end: type[BaseException]) -> None:
    pids: list[int] = []

    def answer(question: Any) -> bytes:
        pids.append(int(question))
        return b""

    def gone() -> None:
        if pids and end is KeyboardInterrupt:
            raise end

    with patient(gone), pytest.raises(end):
        confined(BRIEF if end is OutOfTime else SMALL, answer, confined_work.tell_and_wait)
    assert is_gone(pids[0])


ORPHAN = """
from tests.nodes import confined_work
from millpond.server.confined import Confines, confined
confined(Confines(64 << 20, 600), lambda pid: print(pid.decode(), flush=True) or b"", confined_work.tell_and_wait)
"""


def test_a_child_ends_with_its_node() -> None:
    root = Path(__file__).parents[2]
    with subprocess.Popen([sys.executable, "-c", ORPHAN], stdout=subprocess.PIPE, cwd=root) as node:
        assert node.stdout is not None
        child = os.pidfd_open(int(node.stdout.readline()))
        try:
            node.kill()
            assert select.select([child], [], [], 60)[0]
        finally:
            os.close(child)


SECRETIVE = """
from millpond.server.confined import Confines, confined
from tests.nodes import confined_work
print(confined(Confines(64 << 20, 30), bytes, confined_work.environment).decode(errors="replace"))
"""


def test_a_work_has_no_secret_of_its_nodes_environment() -> None:
    secrets = dict.fromkeys(("AWS_SECRET_ACCESS_KEY", "MILLPOND_CLIENT_TOKEN", "PGPASSWORD"), "s3cret")
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", SECRETIVE],
        env=os.environ | secrets,
        cwd=root,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "PATH" in done.stdout and "s3cret" not in done.stdout and "MILLPOND" not in done.stdout


def test_many_works_go_on_at_once_and_none_is_left() -> None:
    together, pids = threading.Barrier(6, timeout=60), set[int]()

    def answer(question: Any) -> bytes:
        pids.add(int(question))
        together.wait()
        raise ZeroDivisionError

    def go_on(_number: int) -> None:
        with pytest.raises(ZeroDivisionError):
            confined(SMALL, answer, confined_work.tell_and_wait)

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(go_on, range(6)))
    assert len(pids) == 6 and all(map(is_gone, pids))
