"""The result of a campaign with faults: what struck, and how soon all nodes were ready again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.harness.chaos.plan import KINDS
from tests.harness.frame.report import Report as FrameReport

if TYPE_CHECKING:
    from tests.harness.chaos.plan import Fault

__all__ = ("Healing", "Report")


@dataclass
class Healing:
    """The faults of one kind: struck, skipped with a reason, and the seconds until all nodes were ready again."""

    struck: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)

    def to_dict(self) -> dict[str, object]:
        """The faults as JSON."""
        longest = round(max(self.seconds), 2) if self.seconds else None
        return {"struck": self.struck, "skipped": dict(self.skipped), "ready_seconds_max": longest}


@dataclass
class Report(FrameReport):
    """The outcome of a campaign: its faults, and loads that are there although errors said they are not."""

    faults: dict[str, Healing] = field(default_factory=lambda: {kind: Healing() for kind in KINDS})
    surprises: list[str] = field(default_factory=list)

    @property
    def summary(self) -> str:
        """The campaign in one line."""
        return f"{len(self.findings.wrong)} wrong answers in {self.seconds:.0f} s"

    def struck(self, fault: Fault, skipped: str) -> None:
        """Count a fault, or the reason why it was skipped."""
        healing = self.faults[fault.kind]
        if skipped:
            healing.skipped[skipped] += 1
        else:
            healing.struck += 1

    def details(self) -> dict[str, object]:
        """Its faults and surprises, as JSON."""
        faults = {kind: healing.to_dict() for kind, healing in self.faults.items()}
        return {"faults": faults, "surprises": self.surprises}

    def tables(self) -> Iterator[str]:
        """Faults by kind, and counts."""
        yield f"{'fault':<18}{'struck':>8}{'skipped':>9}{'ready again after at most':>28}"
        for kind, healing in self.faults.items():
            longest = f"{max(healing.seconds):.1f} s" if healing.seconds else ""
            yield f"{kind:<18}{healing.struck:>8}{healing.skipped.total():>9}{longest:>28}"
        yield ""
        names = ("loads acknowledged", "synchronised", "load attempts that failed", "loads given up", "reads checked",
                 "reads unanswered")  # fmt: skip
        for name in names:
            yield f"{name:<40}{self.counts[name]:>8}"
        yield f"{'there, though errors said they are not':<40}{len(self.surprises):>8}"
        yield f"{'wrong answers':<40}{len(self.findings.wrong):>8}"
        for kind, healing in self.faults.items():
            for reason, count in healing.skipped.items():
                yield f"note: {count} of {kind} were skipped: {reason}"
