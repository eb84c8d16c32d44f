"""`python -m tests.harness.simulation --seed 7 --steps 200`: runs one simulation, or `--runs` from that seed on."""

import sys

from tests.harness.simulation.simulation import RUNS, simulate

if __name__ == "__main__":
    sys.exit(RUNS.main(simulate))
