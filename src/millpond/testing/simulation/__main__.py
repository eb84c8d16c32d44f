"""`python -m millpond.testing.simulation --seed 7 --steps 200`: runs one simulation, or `--runs` from that seed on."""

import sys

from millpond.testing.simulation.simulation import RUNS, simulate

if __name__ == "__main__":
    sys.exit(RUNS.main(simulate))
