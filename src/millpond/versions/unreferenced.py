"""Ranges and indexes that no row names, and since when: they are deleted when nobody can be reading them any more.

A reader that took a state may go on to read its files after another state took its place: a Spark job that froze a
branch, a stream of differences. So a file is deleted only when it was found unneeded one grace time ago, or longer:

    collection 1      finds it, notes the time        a reader that took its state before reads on
    collection 2      within the grace time           it stays
    collection 3      the grace time is over          it is deleted

Invariants:
* A state can be read for the grace time after it was taken, whatever takes its place, unless the files had been found
  unneeded before, were named again, and no collection ran while they were.
* The note is a hint. Without it, or when it is damaged, grace times begin again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from millpond.errors import NotFound
from millpond.json_forms import FormError, JsonForm
from millpond.versions.repository_context import RepositoryContext

__all__ = ("NOTE", "Unneeded")

NOTE = "unneeded.json"


@dataclass(frozen=True, slots=True)
class _Note:
    """The form of the note: milliseconds since 1970 by name."""

    since: dict[str, int] = field(default_factory=dict)


_FORM = JsonForm(_Note)


@dataclass(frozen=True, slots=True)
class Unneeded:
    """Names of files that nothing needs, in order, each with the time when that was found first."""

    since: Mapping[str, int]

    @classmethod
    def of(cls, context: RepositoryContext, names: Iterable[str]) -> Unneeded:
        """These names, with the times that were noted; the others are found now."""
        now, noted = context.clock.now_ms(), _read(context)
        # a time that lies ahead was noted under another time of day
        return cls({name: min(noted.get(name, now), now) for name in names})

    def before(self, time: int) -> list[str]:
        """Those that were found at a time, or earlier."""
        return [name for name, since in self.since.items() if since <= time]

    def note(self, context: RepositoryContext, gone: Iterable[str] = ()) -> None:
        """Write the times down for the next collection, but of files that are gone."""
        names = set(gone)
        since = {name: time for name, time in self.since.items() if name not in names}
        if since != _read(context):
            context.ranges.put(NOTE, _FORM.encode(_Note(since)))


def _read(context: RepositoryContext) -> dict[str, int]:
    try:
        return _FORM.decode(context.ranges.get(NOTE).to_pybytes()).since
    except (NotFound, FormError):
        return {}
