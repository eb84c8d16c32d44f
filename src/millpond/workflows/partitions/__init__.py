"""Partitions of workflows on a command log that several processes share.

    request ─▶ its partition's log ─▶ everybody who follows that partition: one write an entry, at its position

A store is a function of the log up to its position. So ownership, which the members of a group share out, only says
which process works: it answers requests, fires timers, hands out tasks. A process that lost a partition and does not
know it yet can do no harm: what it appends is one more command, which all apply alike, and what it reads it checks
against the end of the log.
"""

from millpond.extras import need

need("littlehorse")

from millpond.workflows.partitions.checkpoints import Checkpoints
from millpond.workflows.partitions.follower import Follower
from millpond.workflows.partitions.routing import METADATA, RUN_PARTITIONS, partition_of_key, routed
from millpond.workflows.partitions.stores import open_store

__all__ = ("METADATA", "RUN_PARTITIONS", "Checkpoints", "Follower", "open_store", "partition_of_key", "routed")
