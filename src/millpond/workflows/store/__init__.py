"""The store of runs: grouped rows, their tags, and the legacy layout that is still read."""

from millpond.extras import need

need("littlehorse")

from millpond.workflows.store.addresses import Address, Kind
from millpond.workflows.store.initialization import Initialization, initialize
from millpond.workflows.store.run_slices import delete_run
from millpond.workflows.store.run_store import RunReads, RunStore
from millpond.workflows.store.search import TagQuery

__all__ = (
    "Address",
    "Initialization",
    "Kind",
    "RunReads",
    "RunStore",
    "TagQuery",
    "delete_run",
    "initialize",
)
