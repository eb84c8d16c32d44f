"""Telling alerts at a node: all that its pond left; of nodes that replicate, the primary does it.

A replica judges the loads that it merges, too, and keeps what it finds until the log says that it was told. So one that
becomes the primary tells what the one before it did not.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from millpond.errors import MillpondError
from millpond.maps.alerts.alerted import remove_marked
from millpond.reports.alerts import tell_alerts
from millpond.reports.reporter import reason_of

if TYPE_CHECKING:
    from millpond.nodes.node import Node

__all__ = ("tell_of_node",)

_LOG = logging.getLogger(__name__)


def tell_of_node(node: Node) -> None:
    """Tell the alerts that a node has to tell now; what it may not enter waits."""
    pond = node.pond
    if not node.follower.members.replicates:
        tell_alerts(pond.space, lambda: pond.events.store)
        return
    try:
        if remove_marked(pond.space) and node.leads():
            with node.appending():
                tell_alerts(pond.space, lambda: pond.events.store, node.clock.now_ms)
            pond.log.announce()
    except MillpondError as error:
        _LOG.info("alerts wait: %s", reason_of(error))
