"""`millpond` whose checkpoints of partitions are made each second."""

from __future__ import annotations

from millpond.cli.main import main
from millpond.server.workflows.shared import partitions

if __name__ == "__main__":
    partitions.CHECKPOINT_SECONDS = 1.0
    main()
