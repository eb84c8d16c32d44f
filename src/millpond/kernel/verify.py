"""Results of checks, as values: the one form in which fsck, tests, simulation and the health page report damage.

Invariants:
* a problem names the place, what is wrong there, and what to do about it;
* what was looked at is counted by its kind, so "no problems" differs from "nothing was checked";
* reports are added: each part of the system checks itself, and the sum is the answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from millpond.error_values import ShownAsTable
from millpond.errors import Corrupt, Invalid

__all__ = ("Problem", "Report", "attempt", "checked", "problem")


@dataclass(frozen=True, slots=True)
class Problem:
    """One broken promise.

    * `subject`: the kind of thing: `shard`, `part`, `snapshot`, `queue` …
    * `place`: the file, folder or row.
    * `found`: what is wrong.
    * `remedy`: what was done about it, or what to do.
    """

    subject: str
    place: str
    found: str
    remedy: str

    def __post_init__(self) -> None:
        assert self.subject and self.place and self.found and self.remedy, "a problem says all four"

    def __str__(self) -> str:
        return f"{self.subject} {self.place}: {self.found} ({self.remedy})"


@dataclass(frozen=True, slots=True)
class Report(ShownAsTable):
    """Counts of the things checked, by kind, and the problems found.

    >>> report = checked("shard", 2) + checked("row", 1000)
    >>> report += problem("part", "parts/7", "is damaged", "load it again")
    >>> report.counts, report.checked, report.ok
    ((('part', 1), ('row', 1000), ('shard', 2)), 1003, False)
    >>> print(report.problems[0])
    part parts/7: is damaged (load it again)
    """

    counts: tuple[tuple[str, int], ...] = ()
    problems: tuple[Problem, ...] = field(default=())

    def __post_init__(self) -> None:
        kinds = [kind for kind, _ in self.counts]
        # In order, so that the same counts are equal, however they were added.
        assert kinds == sorted(set(kinds)), "one count for each kind, in order"
        assert all(count > 0 for _, count in self.counts), "what was not looked at is not counted"

    def __add__(self, other: Report) -> Report:
        summed = Counter(dict(self.counts)) + Counter(dict(other.counts))
        return Report(tuple(sorted(summed.items())), self.problems + other.problems)

    @property
    def checked(self) -> int:
        """The number of things checked."""
        return sum(count for _, count in self.counts)

    @property
    def ok(self) -> bool:
        """True when no problem was found."""
        return not self.problems


def checked(kind: str, count: int = 1) -> Report:
    """So many things of a kind were looked at."""
    # No count of zero: it would say that there was a look.
    return Report(((kind, count),)) if count else Report()


def problem(subject: str, place: object, evidence: object, remedy: str, *, counted: bool = True) -> Report:
    """One thing was looked at and is wrong; `counted=False` when it was counted already."""
    return (checked(subject) if counted else Report()) + Report(
        problems=(Problem(subject, str(place), str(evidence), remedy),)
    )


def attempt(subject: str, place: object, check: Callable[[], Iterable[Report]], remedy: str) -> Report:
    """The sum of what `check` reports; damage, or another format, that stops it becomes a problem of `subject`."""
    report = Report()
    try:
        for outcome in check():
            report += outcome
    # What was found before stays. Other errors are the caller's: of a place that does not answer nothing is known,
    # which is no damage.
    except (Corrupt, Invalid) as error:
        message = ", ".join([error.message, *(f"{name}={value}" for name, value in error.values.items())])
        report += problem(subject, place, message, remedy)
    return report
