"""Work in a process of its own, which has so much memory and so much time: for what strangers write.

    thread of a request ── a work, its arguments ──▶ child ── questions ──▶ that thread, with the rights of its request
                        ◀── answer, or it ends early ──┘  ◀── answers ──┘
                        ◀── pieces, of a work that makes some: each when the one before was taken

A child is forked in milliseconds from a server of forks, a process that has imported what works need and has nothing
else of ours: no pond, no connection, no secret of a request.

Invariants:
* what comes from a child is bytes, in frames of at most `FRAME_BYTES_MAX`, and is never unpickled;
* no child outlives the call: it is killed when its time is over, and when nobody waits for it any more; it ends with
  its node, however that ends;
* a child writes no file.
"""

from __future__ import annotations

import logging
import mmap
import os
import resource
import select
import signal
import socket
import struct
import sys
import threading
import traceback
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from multiprocessing import forkserver
from multiprocessing.connection import wait
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, TypeAlias

from millpond.client.wire_errors import from_wire, to_wire
from millpond.clock import SystemClock
from millpond.errors import Invalid, MillpondError
from millpond.json_forms import to_json
from millpond.kernel.patience import check_patience, patient
from millpond.kernel.worker import begin_thread

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = (
    "FRAME_BYTES_MAX", "PROCESSES_BYTES_MAX", "THREADS", "Ask", "Confines", "EndedEarly", "OutOfTime", "confined",
    "confined_pieces", "prepare",
)  # fmt: skip

Params = ParamSpec("Params")
Ask: TypeAlias = Callable[[bytes], bytes]
"""Asks the thread of the request; called by any thread of a child."""

FRAME_BYTES_MAX: Final = 64 << 20
PROCESSES_BYTES_MAX: Final = 1 << 30
"""The memory of all works; those that wait for it leave a quarter: two queries go on at once, each of another token."""
THREADS: Final = 2
"""Threads that a work may keep busy."""
_FILES_MAX = 64
_LOOK_SECONDS = 0.1
_ENDING_SECONDS = 2.0
_TRACE_BYTES = 4_000
_NO_MEMORY = 3
_IMPORTED = ["millpond.server.confined_imports"]
_HEAD = struct.Struct("<cQ")
_QUESTION, _ANSWER, _PIECE, _ERROR, _FAULT = b"?", b"=", b"+", b"!", b"x"
_LOG = logging.getLogger("millpond.server")
_CLOCK = SystemClock()


class EndedEarly(Exception):
    """A child ended without an answer: it needed more memory than it had, or broke. `how`: its signal or exit code."""

    def __init__(self, how: str) -> None:
        super().__init__(how)
        self.how = how


class OutOfTime(Exception):
    """A work took longer than it may."""


@dataclass(frozen=True, slots=True)
class Confines:
    """The bytes of memory that a child may take beside those of its start, and the seconds until it is killed.

    Of a work that makes pieces, those until the next piece or question; `processor`: the seconds of all of them.
    """

    memory: int
    seconds: int
    processor: int | None = None

    def enter(self) -> None:
        """Keep this process in them, for good."""
        cpu = self.seconds * THREADS if self.processor is None else self.processor
        memory = _data_bytes() + self.memory
        for limit, soft, hard in (
            (resource.RLIMIT_CORE, 0, 0), (resource.RLIMIT_FSIZE, 0, 0), (resource.RLIMIT_DATA, memory, memory),
            (resource.RLIMIT_NOFILE, _FILES_MAX, _FILES_MAX), (resource.RLIMIT_CPU, cpu, cpu + 1),
        ):  # fmt: skip
            resource.setrlimit(limit, (soft, hard))


def _data_bytes() -> int:
    """The memory that this process has as its own; 0 where the system does not tell."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[5]) * mmap.PAGESIZE
    except OSError:
        return 0


def prepare() -> None:
    """Let the server of forks begin to import: a work that comes later does not wait for that."""
    forkserver.set_forkserver_preload(_IMPORTED)
    forkserver.ensure_running()


def confined(
    confines: Confines, answer: Callable[[bytes], Buffer], work: Callable[Concatenate[Ask, Params], Buffer],
    *args: Params.args, **options: Params.kwargs,
) -> bytes:  # fmt: skip
    """The bytes that `work(ask, *args)` returns in a child; `ask(question)` there is `answer(question)` in this thread.

    `work` is a function at the top of a module, and the arguments can be pickled.

    Raises: an error of ours that `work` raises; `EndedEarly`; `OutOfTime`; what `answer` raises, but for errors of
    ours, which `ask` raises; as `check_patience`.
    """
    conversation = _converse(_Work(confines, work, args, options), answer)
    try:
        next(conversation)
    except StopIteration as ended:
        return bytes(ended.value)
    raise AssertionError("a work makes pieces only for those who take them")


def confined_pieces(
    confines: Confines, answer: Callable[[bytes], Buffer], work: Callable[Concatenate[Ask, Params], Iterator[Buffer]],
    *args: Params.args, **options: Params.kwargs,
) -> Generator[bytes]:  # fmt: skip
    """The pieces that `work(ask, *args)` makes in a child, each of at most `FRAME_BYTES_MAX`, as they are taken.

    The child is a piece ahead, and has ended when this is closed. The time in which nobody waits for it is not counted.

    Raises: as `confined`, when the next piece is taken.
    """
    yield from _converse(_Work(confines, work, args, options, pieces=True), answer)


def _converse(work: _Work, answer: Callable[[bytes], Buffer]) -> Generator[bytes, None, bytes]:
    """The pieces of a work; it returns its answer."""
    with _child(work) as end:
        due, outer = 0.0, copy_context()

        def look() -> None:
            outer.run(check_patience)
            if _CLOCK.monotonic() >= due:
                raise OutOfTime

        line = _Line(end, look, FRAME_BYTES_MAX)
        while True:
            if work.pieces or not due:
                due = _CLOCK.monotonic() + work.confines.seconds
            mark, data = line.receive()
            if mark == _QUESTION:
                with patient(look):
                    _answer(line, answer, data)
            elif mark == _PIECE and work.pieces:
                yield data
            else:
                return _result(mark, data)


def _answer(line: _Line, answer: Callable[[bytes], Buffer], question: bytes) -> None:
    try:
        line.send(_ANSWER, answer(question))
    except MillpondError as error:
        line.send(_ERROR, to_json(to_wire(error)))


def _result(mark: bytes, data: bytes) -> bytes:
    """The answer that the last frame of a child is.

    Raises: the error that it is.
    """
    if mark == _ERROR:
        raise _raised(data)
    if mark == _ANSWER:
        return data
    _LOG.error("a confined work failed: %s", data[:_TRACE_BYTES].decode(errors="replace"))
    raise EndedEarly("an error")


@contextmanager
def _child(work: _Work) -> Iterator[socket.socket]:
    """The line to a child at work, which has ended afterwards."""
    prepare()
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            status, start = forkserver.connect_to_new_process([theirs.fileno()])
        ours.settimeout(_LOOK_SECONDS)
        pid = None
        try:
            with os.fdopen(start, "wb") as file:
                pid = forkserver.read_signed(status)
                # Two pickles, as every child of the server reads them: how to prepare, and what to do.
                file.write(ForkingPickler.dumps({"sys_path": sys.path}))
                file.write(ForkingPickler.dumps(work))
            yield ours
        except (EOFError, ConnectionError) as error:
            code = 0 if pid is None else _ended(pid, status, _ENDING_SECONDS)
            if code == -signal.SIGXCPU:
                raise OutOfTime from error
            raise EndedEarly(_words(code)) from error
        finally:
            if pid is not None:
                _ended(pid, status)
            os.close(status)


def _words(code: int) -> str:
    if code == _NO_MEMORY:
        return "no memory is left"
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"


def _ended(pid: int, status: int, seconds: float = 0.0) -> int:
    """The exit code of a child, which is killed if it has not ended in so many seconds."""
    if not wait([status], seconds):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    try:
        return forkserver.read_signed(status)
    except EOFError:  # the code was read before, or the server of forks has ended
        return -signal.SIGKILL


@dataclass(frozen=True, slots=True)
class _Work:
    """A work, as it is handed to its child."""

    confines: Confines
    work: Callable[..., Any]
    args: tuple[Any, ...]
    options: dict[str, Any]
    pieces: bool = False

    def _bootstrap(self, _parent: int) -> int:
        """Do it, in the child; the exit code."""
        [end] = forkserver.get_inherited_fds() or []
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)  # libraries complain there of what strangers wrote
        os.chdir("/")  # the folder in which the server of forks began may be gone
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # in a terminal, the node that it is for ends in order
        begin_thread("the end of the line", partial(_end_with, end))
        line, turn = _Line(socket.socket(fileno=end), bool, sys.maxsize), threading.Lock()

        def ask(question: bytes) -> bytes:
            with turn:
                line.send(_QUESTION, question)
                mark, data = line.receive()
            if mark == _ERROR:
                raise _raised(data)
            return data

        try:
            self.confines.enter()
            answer = self.work(ask, *self.args, **self.options)
            for piece in answer if self.pieces else ():
                with turn:
                    line.send(_PIECE, _sendable(piece))
            line.send(_ANSWER, b"" if self.pieces else _sendable(answer))
        except MillpondError as error:
            line.send(_ERROR, to_json(to_wire(error)))
        except MemoryError:
            return _NO_MEMORY
        except Exception:
            line.send(_FAULT, traceback.format_exc()[-_TRACE_BYTES:].encode())
        return 0


def _end_with(end: int) -> None:
    """End this process when the other end of its line has gone, however that ended."""
    poll = select.poll()
    poll.register(end, 0)
    if not any(event & select.POLLNVAL for _, event in poll.poll()):  # else the work ended, and this end with it
        os._exit(1)


def _sendable(answer: Buffer) -> Buffer:
    if (size := memoryview(answer).nbytes) > FRAME_BYTES_MAX:
        raise Invalid("the answer is larger than one may be", kind="answer_too_large", bytes=size,
                      bytes_max=FRAME_BYTES_MAX, hint="ask for less")  # fmt: skip
    return answer


def _raised(data: bytes) -> MillpondError:
    error = from_wire("", 500, data)
    assert error is not None
    return error


@dataclass(frozen=True, slots=True)
class _Line:
    """Frames over a socket: a mark, a length, bytes. `look` is called again and again while it waits."""

    end: socket.socket
    look: Callable[[], object]
    bytes_max: int

    def send(self, mark: bytes, data: Buffer) -> None:
        """Send a frame.

        Raises: `ConnectionError` when the other end has gone.
        """
        content = memoryview(data).cast("B")
        for rest in (memoryview(_HEAD.pack(mark, len(content))), content):
            while rest:
                self.look()
                with suppress(TimeoutError):
                    rest = rest[self.end.send(rest) :]

    def receive(self) -> tuple[bytes, bytes]:
        """The next frame.

        Raises: `EOFError` when the other end has gone, or sends more than it may.
        """
        mark, size = _HEAD.unpack(self._read(_HEAD.size))
        if size > self.bytes_max:
            raise EOFError
        return mark, self._read(size)

    def _read(self, size: int) -> bytes:
        data = bytearray(size)
        rest = memoryview(data)
        while rest:
            self.look()
            with suppress(TimeoutError):
                count = self.end.recv_into(rest)
                if not count:
                    raise EOFError
                rest = rest[count:]
        return bytes(data)
