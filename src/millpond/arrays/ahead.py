"""Batches that threads work out ahead of those who take them, in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

__all__ = ("ordered_results", "produced_ahead")

Item = TypeVar("Item")
Result = TypeVar("Result")


def ordered_results(
    work: Callable[[Item], Iterable[Result]], items: Iterable[Item], threads: int
) -> Iterator[Sequence[Result]]:
    """The results for each item, in the order of the items; at most `threads` items are at work or wait to be taken.

    Raises: what `work` raises, when its item's turn comes.
    """
    if threads == 1:
        for item in items:
            yield list(work(item))
        return
    with ThreadPoolExecutor(threads, thread_name_prefix="ahead") as pool:
        due: deque[Future[list[Result]]] = deque()
        try:
            for item in items:
                due.append(pool.submit(_all, work, item))
                if len(due) >= threads:
                    yield due.popleft().result()
            while due:
                yield due.popleft().result()
        finally:
            for future in due:
                future.cancel()


def produced_ahead(items: Generator[Result]) -> Iterator[Result]:
    """The same items; while one is in use, a thread of their own works out the next.

    That thread also closes `items`, whenever the consumer stops.

    Raises: what `items` raises, in its place.
    """
    with ThreadPoolExecutor(1, thread_name_prefix="ahead") as pool:
        try:
            upcoming = pool.submit(_following, items)
            while (item := upcoming.result()) is not None:
                upcoming = pool.submit(_following, items)
                yield item[0]
                del item
        finally:
            pool.submit(items.close).result()


def _following(items: Iterator[Result]) -> tuple[Result] | None:
    for item in items:
        return (item,)
    return None


def _all(work: Callable[[Item], Iterable[Result]], item: Item) -> list[Result]:
    return list(work(item))
