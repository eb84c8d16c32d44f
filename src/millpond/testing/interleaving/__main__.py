"""`python -m millpond.testing.interleaving --seed 7`: runs one interleaving, or `--runs` from that seed on."""

import sys

from millpond.testing.interleaving.simulation import RUNS, interleave

if __name__ == "__main__":
    sys.exit(RUNS.main(interleave))
