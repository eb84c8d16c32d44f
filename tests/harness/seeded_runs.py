"""Runs that come from a seed: their results, their failures, and the command line that replays them.

    python -m tests.harness.simulation --seed 7 --steps 200      one run, with its trace
    python -m tests.harness.simulation --seed 7 --runs 50        fifty runs, from that seed on

Invariant: a seed and a length are a run. It does the same in every process.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ("Broken", "SeededResult", "SeededRuns")


class Broken(AssertionError):
    """An invariant does not hold; the message has the trace, and the command that replays it."""


@dataclass(slots=True)
class SeededResult:
    """A run that ended well: its trace, and a digest of what there was at its end."""

    trace: list[str] = field(default_factory=list)
    digest: str = ""

    def __str__(self) -> str:
        return f"{len(self.trace)} actions, digest {self.digest}"


@dataclass(frozen=True, slots=True)
class SeededRuns:
    """The runs of a module: its name, and the option for their length, with the usual one."""

    module: str
    option: str
    length: int

    def broken(self, seed: int, length: int, trace: list[str], error: Exception) -> Broken:
        """The failure of a run, to be raised from the error."""
        replay = f"replay: python -m {self.module} --seed {seed} --{self.option} {length}"
        return Broken("\n".join([*trace, f"{type(error).__name__}: {error}", replay]))

    def main(self, run: Callable[[int, int], SeededResult]) -> int:
        """Make the runs that the command line names; print the trace of a single one, and of the first that breaks."""
        options = argparse.ArgumentParser(prog=f"python -m {self.module}")
        options.add_argument("--seed", type=int, default=0)
        options.add_argument(f"--{self.option}", dest="length", type=int, default=self.length)
        options.add_argument("--runs", type=int, default=1, help="seeds to try, from --seed on")
        chosen = options.parse_args()
        for seed in range(chosen.seed, chosen.seed + chosen.runs):
            try:
                result = run(seed, chosen.length)
            except Broken as broken:
                print(broken)
                return 1
            if chosen.runs == 1:
                print("\n".join(result.trace))
            print(f"seed {seed}: {result}", flush=True)
        return 0
