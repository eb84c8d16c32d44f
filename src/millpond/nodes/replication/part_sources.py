"""Sources of the parts that other nodes entered: this node's own uploads, else a peer.

fetched/<part id>.<checksum>.partial    parts on their way, see `client/transfer.py`
fetched/<part id>                       parts that came whole and were checked, until they are entered
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

from millpond.errors import MillpondError, NotFound, Unavailable
from millpond.kernel.steps import step
from millpond.maps.log.log import Entry
from millpond.maps.parts.part import is_part
from millpond.nodes.limits import LIMITS
from millpond.nodes.replication.source import PartSource
from millpond.stores.files import remove_tree

__all__ = ("PartSources", "Uploads", "part_ids")

FETCHES_AT_ONCE = 4
MISSES_MAX = 5
"""So often the node that is followed may say that it has a part no more while others, who might, cannot be reached."""
_LOG = logging.getLogger(__name__)


class Uploads(Protocol):
    """The parts that writers sent to this node."""

    def uploaded(self, part_id: str) -> Path | None:
        """The file of a part that was sent whole and checked, None when there is none."""


def part_ids(entries: Iterable[Entry]) -> list[str]:
    """The parts that these entries bring, each once."""
    return list(dict.fromkeys(str(part["id"]) for entry in entries for part in entry.body.get("parts", ())))


class PartSources:
    """Gets parts, several at once."""

    def __init__(self, folder: Path, uploads: Uploads, peers: Callable[[], Sequence[PartSource]]) -> None:
        """`peers`: whom to ask, in that order."""
        self.folder = folder / "fetched"
        self._uploads, self._peers = uploads, peers
        self._misses: Counter[str] = Counter()

    def parts(self, entries: Sequence[Entry]) -> dict[str, Path]:
        """A checked file for each part of these entries.

        Raises: as `part`, of the first that could not be had.
        """
        needed = part_ids(entries)
        if len(needed) <= 1:
            return {part_id: self.part(part_id) for part_id in needed}
        with ThreadPoolExecutor(min(FETCHES_AT_ONCE, len(needed)), "fetch-part") as pool:
            return dict(zip(needed, pool.map(self.part, needed), strict=True))

    def part(self, part_id: str) -> Path:
        """A checked file of one part.

        Raises:
            NotFound: kind `part_nowhere`: no peer has it any more.
            Unavailable: those that may have it cannot be reached, or the disk is full.
            Corrupt: all that was sent is damaged.
        """
        uploaded = self._uploads.uploaded(part_id)
        return uploaded if uploaded is not None else self.fetch(part_id)

    def fetch(self, part_id: str) -> Path:
        """As `part`, but of peers only."""
        file = self.folder / part_id
        if file.exists() and is_part(file, part_id):
            return file
        failures: list[MillpondError] = []
        for peer in self._peers():
            try:
                return self._fetch_from(peer, part_id, file)
            except MillpondError as error:
                failures.append(error)
                if not isinstance(error, NotFound):
                    _LOG.warning("part %s cannot be had from %s: %s", part_id, peer.url, error)
        raise self._worst(failures, part_id)

    def _fetch_from(self, peer: PartSource, part_id: str, file: Path) -> Path:
        peer.fetch_part(part_id, file, LIMITS.part_bytes_max)
        step("fetch.part_came")
        return file

    def _worst(self, failures: Sequence[MillpondError], part_id: str) -> MillpondError:
        """The error to report when no source had the part: missing, when all said so, or the first did for long."""
        errors = [error for error in failures if not isinstance(error, NotFound)]
        if failures and isinstance(failures[0], NotFound):
            self._misses[part_id] += 1
        if errors and self._misses[part_id] < MISSES_MAX:
            # Who cannot be reached now may be later; a damaged copy gets no better.
            return next((error for error in errors if isinstance(error, Unavailable)), errors[0])
        return NotFound(
            "no node has the part any more", kind="part_nowhere", part=part_id,
            hint="it is kept for `maps.part_retention` after it was merged",
        )  # fmt: skip

    def sweep(self) -> None:
        """Remove what was fetched and is not wanted any more."""
        self._misses.clear()
        remove_tree(self.folder)
