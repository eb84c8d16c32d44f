"""`python -m tests.harness.interleaving --seed 7`: runs one interleaving, or `--runs` from that seed on."""

import sys

from tests.harness.frame.main import main
from tests.harness.interleaving.simulation import WORLD

if __name__ == "__main__":
    sys.exit(main(WORLD))
