"""`python -m millpond.testing.interleaving --seed 7`: runs one interleaving, or `--runs` from that seed on."""

from __future__ import annotations

import argparse
import sys

from millpond.testing.interleaving.simulation import Broken, interleave


def main() -> int:
    """Run interleavings; print the trace of a single one, and of the first that breaks."""
    options = argparse.ArgumentParser(prog="python -m millpond.testing.interleaving")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--operations", type=int, default=150)
    options.add_argument("--runs", type=int, default=1, help="seeds to try, from --seed on")
    chosen = options.parse_args()
    for seed in range(chosen.seed, chosen.seed + chosen.runs):
        try:
            result = interleave(seed, chosen.operations)
        except Broken as broken:
            print(broken)
            return 1
        if chosen.runs == 1:
            print("\n".join(result.trace))
        print(f"seed {seed}: {len(result.trace)} lines, {result.deaths} deaths, digest {result.digest}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
