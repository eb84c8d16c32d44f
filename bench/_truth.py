"""The answers a pond must give, held by the loader: a dictionary a map, with the rules of states and temporal
states.
"""

from __future__ import annotations

from bisect import bisect_right

import numpy as np

__all__ = ("Truth",)


class Truth:
    """The rows of one map. A plain state is a temporal one in which everything happens at 0."""

    def __init__(self, *, temporal: bool) -> None:
        self.temporal = temporal
        self.rows: dict[str, dict[int, int]] = {}
        self._times: dict[str, list[int]] = {}

    def __len__(self) -> int:
        return sum(len(history) for history in self.rows.values())

    def put(self, keys: list[str], times: list[int], values: list[int]) -> None:
        """Later rows win over earlier ones of the same key and time."""
        for key, time, value in zip(keys, times, values, strict=True):
            self.rows.setdefault(key, {})[time if self.temporal else 0] = value
            self._times.pop(key, None)

    def answer(self, key: str, at: int) -> int | None:
        """The latest value of a key that is not after a time."""
        rows = self.rows.get(key)
        if not rows:
            return None
        if key not in self._times:
            self._times[key] = sorted(rows)
        times = self._times[key]
        place = bisect_right(times, at if self.temporal else 0)
        return rows[times[place - 1]] if place else None

    def condense(self, before: int) -> None:
        """Drop rows before a time that repeat the row before them."""
        for key, rows in self.rows.items():
            last: int | None = None
            for time in sorted(rows):
                if last is not None and time < before and rows[time] == last:
                    del rows[time]
                else:
                    last = rows[time]
            self._times.pop(key, None)

    def retain(self, before: int) -> None:
        """Drop rows before a time."""
        for key in list(self.rows):
            self.rows[key] = {time: value for time, value in self.rows[key].items() if time >= before}
            self._times.pop(key, None)
            if not self.rows[key]:
                del self.rows[key]

    def questions(self, random: np.random.Generator, count: int, keys: int, until: int) -> tuple[list[str], list[int]]:
        """Keys, most of which exist, and times at which there may be an answer."""
        names = [f"k{number:06d}" for number in random.integers(0, keys + keys // 20 + 1, count)]
        return names, random.integers(max(0, until - 200_000), until + 1000, count).tolist()
