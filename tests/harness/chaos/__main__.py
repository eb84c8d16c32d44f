"""`python -m tests.harness.chaos --minutes 10 --seed 7`: runs one campaign; the exit code is 1 when it failed."""

import sys

from tests.harness.chaos.campaign import WORLD
from tests.harness.frame.main import main

if __name__ == "__main__":
    sys.exit(main(WORLD))
