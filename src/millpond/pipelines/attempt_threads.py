"""Threads of attempts: what blocks runs there, and ends when its attempt is over, as far as a thread can be ended.

| work | its thread | ends |
|---|---|---|
| a function of users | its own; no process waits for it | before its next line of Python |
| other work | one of the event loop's | where the work says what ends it, by `ended_by` |
"""

from __future__ import annotations

import asyncio
import ctypes
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, field
from functools import partial
from threading import Event, Lock, Thread
from typing import TypeVar

from millpond.errors import Closed
from millpond.kernel.worker import begin_thread

__all__ = (
    "THREADS_MAX", "AttemptOver", "ended_by", "in_own_thread", "in_thread", "to_its_end", "while_it_lasts",
)  # fmt: skip

THREADS_MAX = 1_000
"""Threads of an event loop for attempts. Many wait, and those of attempts that are over may go on a while: also then
one is left to end an attempt that nobody wants.
"""

T = TypeVar("T")


class AttemptOver(BaseException):
    """The attempt is over. No error: functions that catch those go on with none of them."""


@dataclass(slots=True)
class _Ends:
    """Acts that end the work of an attempt."""

    acts: list[Callable[[], object]] = field(default_factory=list)
    is_over: bool = False
    changed: Lock = field(default_factory=Lock)

    def end(self) -> None:
        with self.changed:
            self.is_over = True
            for act in self.acts:
                with suppress(Exception):  # it has ended by itself
                    act()


_ENDS: ContextVar[_Ends | None] = ContextVar("attempt_ends", default=None)


async def in_thread(work: Callable[[], T]) -> T:
    """The result of work in a thread; cancelled, it is ended by what it named.

    Raises: what the work raises.
    """
    ends = _Ends()
    context = copy_context()
    context.run(_ENDS.set, ends)
    try:
        return await asyncio.get_running_loop().run_in_executor(None, partial(context.run, work))
    except asyncio.CancelledError:
        ends.end()
        raise


@contextmanager
def ended_by(act: Callable[[], object]) -> Iterator[None]:
    """Let an act, called by another thread, end what the attempt does while this lasts.

    Raises: `Closed` when the attempt is over already.
    """
    ends = _ENDS.get()
    if ends is None:
        yield
        return
    with ends.changed:
        if ends.is_over:
            raise Closed("the step was stopped", kind="step_stopped")
        ends.acts.append(act)
    try:
        yield
    finally:
        with ends.changed:
            ends.acts.remove(act)


@contextmanager
def while_it_lasts() -> Iterator[Callable[..., None]]:
    """A function that work calls now and then, which raises `Closed` when the attempt is over."""
    over = Event()

    def look(*_: object) -> None:
        if over.is_set():
            raise Closed("the step was stopped", kind="step_stopped")

    with ended_by(over.set):
        yield look


async def to_its_end(work: Awaitable[T]) -> T:
    """The result of work that ends an attempt. An attempt is cancelled twice when its timeout, which engine and worker
    measure, is over: the second time, this goes on.

    Raises: what the work raises.
    """
    task = asyncio.ensure_future(work)
    while not task.done():
        with suppress(asyncio.CancelledError):
            await asyncio.wait({task})
    return task.result()


async def in_own_thread(work: Callable[[], T]) -> T:
    """The result of a function of users, in a thread of its own; cancelled, that is interrupted, and not waited for.

    Raises: what the function raises.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()
    context = copy_context()

    def settle(set_outcome: Callable[..., None], outcome: object) -> None:
        if not done.done():
            set_outcome(outcome)

    def act() -> None:
        try:
            outcome = partial(settle, done.set_result, context.run(work))
        except AttemptOver:
            return
        except BaseException as error:
            outcome = partial(settle, done.set_exception, error)
        with suppress(RuntimeError):  # the loop has ended, and nobody waits
            loop.call_soon_threadsafe(outcome)

    thread = begin_thread("a function of a pipeline", act)
    try:
        return await done
    except asyncio.CancelledError:
        _interrupt(thread)
        raise


def _interrupt(thread: Thread) -> None:
    """Raise an exception in a thread, where Python looks for one between two steps of its code: not within a call of
    compiled code, such as a sleep, which ends first.
    """
    if thread.ident is not None and thread.is_alive():
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(AttemptOver))
