"""Deletes a run, or moves a legacy store, in slices of three rows: `… delete|migrate FOLDER`. Its steps may kill it."""

from __future__ import annotations

import sys

from millpond.stores.lmdb.space import LmdbSpace
from millpond.testing.faults import arm
from millpond.workflows.store import delete_run
from tests.harness.contracts.run_stores import store_in
from tests.harness.legacy_rows import migrate_store


def main(verb: str, folder: str) -> None:
    space = LmdbSpace(folder)
    store = store_in(space)
    with arm():
        if verb == "delete":
            delete_run(space, store, ("asdf",), rows_max=3)
        else:
            migrate_store(space, lambda _: store, rows_max=3)
    space.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
