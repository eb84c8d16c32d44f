"""`python -m tests.harness.simulation --seed 7 --steps 200`: runs one simulation, or `--runs` from that seed on."""

import sys

from tests.harness.frame.main import main
from tests.harness.simulation.simulation import WORLD

if __name__ == "__main__":
    sys.exit(main(WORLD))
