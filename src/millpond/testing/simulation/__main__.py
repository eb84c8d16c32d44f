"""`python -m millpond.testing.simulation --seed 7 --steps 200`: runs one simulation, or `--runs` from that seed on."""

from __future__ import annotations

import argparse
import sys

from millpond.testing.simulation.simulation import Broken, simulate


def main() -> int:
    """Run simulations; print the trace of a single one, and of the first that breaks."""
    options = argparse.ArgumentParser(prog="python -m millpond.testing.simulation")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--steps", type=int, default=200)
    options.add_argument("--runs", type=int, default=1, help="seeds to try, from --seed on")
    chosen = options.parse_args()
    for seed in range(chosen.seed, chosen.seed + chosen.runs):
        try:
            result = simulate(seed, chosen.steps)
        except Broken as broken:
            print(broken)
            return 1
        if chosen.runs == 1:
            print("\n".join(result.trace))
        print(f"seed {seed}: {len(result.trace)} actions, digest {result.digest}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
