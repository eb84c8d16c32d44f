"""Attempts to merge parts, counted on the disk while they run: a part that ends the process is found by that.

    shards/<map>.<incarnation>/attempts    lines of a part id, a space, and how many attempts did not return

The file is written before the parts of a load are merged, and they are taken out of it when the merge returns, well or
with an error. So what it names at the next start is what the process was at when it ended. It is not synced, and costs
a load nothing that can be measured: a process that dies leaves its writes with the system, and a machine that loses
its power says nothing about a part.

Invariants:
* who reads or writes the file holds the lock of the map;
* while it names a part, loads of the map are merged one at a time, so that the next attempt shows which of them it is;
* a part with `ATTEMPTS_MAX` attempts is not merged again, but quarantined, unless the shard has its rows already;
* a part that was merged has no attempts when it is queued again.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from millpond.stores.files import disk_errors

__all__ = ("ATTEMPTS_MAX", "MergeAttempts")

ATTEMPTS_MAX = 2
_LINE = re.compile(r"^([0-9a-f]{32}) (\d{1,9})\n", re.MULTILINE | re.ASCII)


class MergeAttempts:
    """The attempts of one map."""

    def __init__(self, shard: Path) -> None:
        self._file = shard / "attempts"

    def counts(self) -> dict[str, int]:
        """The attempts of the parts that were being merged when a process ended."""
        try:
            text = self._file.read_text("ascii", "replace")
        except FileNotFoundError:
            return {}
        return {part: int(count) for part, count in _LINE.findall(text)}

    def begin(self, parts: Iterable[str]) -> None:
        """An attempt on parts begins.

        Raises: `Unavailable` when the disk is full.
        """
        counts = self.counts()
        counts.update({part: counts.get(part, 0) + 1 for part in parts})
        self._write(counts)

    def ended(self, parts: Iterable[str]) -> None:
        """The attempt on parts returned, or they are not merged any more."""
        gone = set(parts)
        left = {part: count for part, count in self.counts().items() if part not in gone}
        if left:
            self._write(left)
        else:
            with suppress(FileNotFoundError):
                self._file.unlink()

    def leave(self, queued: Collection[str]) -> bool:
        """Forget the parts that are not queued any more; True when others are left.

        A process that ended between the end of a merge and that of its attempt leaves the merged parts here.
        """
        counts = self.counts()
        merged = counts.keys() - set(queued)
        if merged:
            self.ended(merged)
        return len(merged) < len(counts)

    def _write(self, counts: Mapping[str, int]) -> None:
        with disk_errors(self._file):
            self._file.write_bytes("".join(f"{part} {count}\n" for part, count in counts.items()).encode())
