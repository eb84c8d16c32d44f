"""The cache against a list of its entries in the order of their use."""

from __future__ import annotations

import threading

from hypothesis import given
from hypothesis import strategies as st

from millpond.kernel.cache import Cache

KEYS = st.integers(0, 5)
STEPS = st.lists(st.tuples(st.sampled_from(["get", "put", "make", "pop"]), KEYS, st.text(max_size=6)), max_size=40)


@given(STEPS, st.integers(1, 12), st.booleans())
def test_what_was_used_longest_ago_leaves(steps: list[tuple[str, int, str]], size_max: int, by_size: bool) -> None:
    cache: Cache[int, str] = Cache(size_max, len) if by_size else Cache(size_max)
    size_of = len if by_size else (lambda _: 1)
    model: list[tuple[int, str]] = []
    for act, key, value in steps:
        there = dict(model).get(key)
        rest = [entry for entry in model if entry[0] != key]
        if act == "pop":
            assert cache.pop(key) == there
            model = rest
        elif act == "put":
            cache.put(key, value)
            model = [*rest, (key, value)]
        else:
            found = cache.get(key) if act == "get" else cache.get_or_make(key, lambda made=value: made)
            assert found == (value if act == "make" and there is None else there)
            model = rest if found is None else [*rest, (key, found)]
        while sum(size_of(held) for _, held in model) > size_max and len(model) > 1:
            model.pop(0)
        assert cache.values() == [held for _, held in model]
        assert [number in cache for number in range(6)] == [number in dict(model) for number in range(6)]
        assert len(cache) == len(model)


def test_the_first_one_made_stays() -> None:
    cache: Cache[str, int] = Cache(3)

    def slow() -> int:
        assert cache.get_or_make("a", lambda: 1) == 1  # another thread, meanwhile
        return 2

    assert cache.get_or_make("a", slow) == 1


def test_an_entry_that_is_put_again_is_not_gone_in_between() -> None:
    """Its size is asked for between the old one and the new one; another thread looks just then."""
    seen: list[bool] = []
    looking: list[threading.Thread] = []

    def size_of(_: int) -> int:
        looking.append(threading.Thread(target=lambda: seen.append("a" in cache), daemon=True))
        looking[-1].start()
        looking[-1].join(0.05)  # it is done now, or waits for what this thread does
        return 1

    cache: Cache[str, int] = Cache(3, size_of)
    for value in (1, 2):
        cache.put("a", value)
    for thread in looking:
        thread.join()
    assert seen == [True, True]
