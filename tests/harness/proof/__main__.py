"""`python -m tests.harness.proof --kills 200 --seed 7`: one proof; the exit code is 1 when it failed."""

import sys

from tests.harness.frame.main import main
from tests.harness.proof.campaign import WORLD

if __name__ == "__main__":
    sys.exit(main(WORLD))
