"""The result of a campaign, as tables and as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tests.harness.chaos.plan import KINDS

if TYPE_CHECKING:
    from tests.harness.chaos.plan import Fault

__all__ = ("Healing", "Report")

WRONG_SHOWN = 20


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
class Report:
    """The deeds and findings of a campaign; `wrong` is empty when it passed."""

    seed: int
    folder: Path
    seconds: float = 0.0
    faults: dict[str, Healing] = field(default_factory=lambda: {kind: Healing() for kind in KINDS})
    counts: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    surprises: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """True when nothing was wrong."""
        return not self.wrong

    def struck(self, fault: Fault, skipped: str) -> None:
        """Count a fault, or the reason why it was skipped."""
        healing = self.faults[fault.kind]
        if skipped:
            healing.skipped[skipped] += 1
        else:
            healing.struck += 1

    def to_dict(self) -> dict[str, object]:
        """The report as JSON."""
        return {
            "seed": self.seed, "ok": self.ok, "seconds": round(self.seconds, 1),
            "faults": {kind: healing.to_dict() for kind, healing in self.faults.items()}, "counts": dict(self.counts),
            "wrong": self.wrong, "wrong_by_kind": dict(self.kinds), "surprises": self.surprises,
            "folder": None if self.ok else str(self.folder),
        }  # fmt: skip

    def lines(self) -> Iterator[str]:
        """The report as tables."""
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
        yield f"{'wrong answers':<40}{len(self.wrong):>8}"
        for kind, healing in self.faults.items():
            for reason, count in healing.skipped.items():
                yield f"note: {count} of {kind} were skipped: {reason}"
        for problem in self.wrong[:WRONG_SHOWN]:
            yield f"WRONG: {problem}"
        if not self.ok:
            yield f"failed: --seed {self.seed}; the history, the nodes' logs and folders are in {self.folder}"
