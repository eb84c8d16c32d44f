"""Batches that threads work out ahead of those who take them, in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

__all__ = ("ordered_results",)

Item = TypeVar("Item")
Result = TypeVar("Result")


def ordered_results(
    work: Callable[[Item], Iterable[Result]], items: Iterable[Item], threads: int, waiting_max: int = 0
) -> Iterator[Sequence[Result]]:
    """The results for each item, in their order; at most `threads`, or `waiting_max`, are at work or wait to be taken.

    Raises: what `work` raises, when its item's turn comes.
    """
    if threads <= 1:
        for item in items:
            yield list(work(item))
        return
    with ThreadPoolExecutor(threads, thread_name_prefix="ahead") as pool:
        due: deque[Future[list[Result]]] = deque()
        try:
            for item in items:
                due.append(pool.submit(_all, work, item))
                if len(due) >= max(threads, waiting_max):
                    yield due.popleft().result()
            while due:
                yield due.popleft().result()
        finally:
            for future in due:
                future.cancel()


def _all(work: Callable[[Item], Iterable[Result]], item: Item) -> list[Result]:
    return list(work(item))
