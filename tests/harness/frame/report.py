"""The outcome of a run, for people and as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.harness.frame.findings import Findings

__all__ = ("Broken", "Report")

WRONG_SHOWN = 20


class Broken(AssertionError):
    """An invariant does not hold; the message has the trace, and the command that replays it."""


@dataclass
class Report:
    """The deeds and findings of a run; `trace` is its actions, `digest` that of what there was at its end.

    What a world adds: `tables` of its own for people, and `details` for JSON.
    """

    seed: int
    trace: list[str] = field(default_factory=list)
    digest: str = ""
    seconds: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)
    findings: Findings = field(default_factory=Findings)

    @property
    def ok(self) -> bool:
        """True when nothing was wrong."""
        return not self.findings.wrong

    @property
    def summary(self) -> str:
        """The run in one line."""
        counts = [f"{count} {name}" for name, count in self.counts.items()]
        return ", ".join([f"{len(self.trace)} actions", *counts, f"digest {self.digest}"])

    def tables(self) -> Iterator[str]:
        """Lines about what was done."""
        yield from self.trace

    def details(self) -> dict[str, object]:
        """Facts that a world adds to the JSON."""
        return {"digest": self.digest}

    def lines(self) -> Iterator[str]:
        """The report for people."""
        yield from self.tables()
        yield from (f"WRONG: {problem}" for problem in self.findings.wrong[:WRONG_SHOWN])
        yield f"seed {self.seed}: {self.summary}"

    def to_dict(self) -> dict[str, object]:
        """The report as JSON."""
        return {
            "seed": self.seed, "ok": self.ok, "seconds": round(self.seconds, 1), "counts": dict(self.counts),
            "wrong": self.findings.wrong, "wrong_by_kind": dict(self.findings.kinds), **self.details(),
        }  # fmt: skip
