"""Letting nodes come up to a position of the log: the entry of a load, or a change of maps."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from millpond.client.transport import Connection, Nodes, Outcome
from millpond.clock import Clock
from millpond.errors import Unavailable
from millpond.retry import retry

__all__ = ("ANSWER_SECONDS", "come_up_to")

ANSWER_SECONDS = 20.0
"""A node that is asked to come up to an entry answers at least so often how it stands."""
PAUSE_SECONDS = 0.05
MERGED_SECONDS_MAX = 3600.0
"""The time limit of `synchronise`; what takes longer is merged all the same."""
_STILL_WORKING = ("merge_slow", "node_behind")


def come_up_to(
    nodes: Nodes, position: int, clock: Clock, *, applied: bool, maps: Sequence[str] | None = None, there: str = "",
    patient: bool = True, chain: str | None = None,
) -> list[Outcome[int]]:  # fmt: skip
    """Let every node come up to a position of the log, and with `applied` merge what that brings to these maps, or all.

    A node that is merging is waited for; one that gets no nearer to the position for `read_timeout` is not. One to
    which this client may not send its token is left out, unless there is a `chain`: then the primary asks it. `there`
    is the node that gave the position. Not `patient`: a node that cannot be reached is not tried again. `chain`: the
    hash of the primary's log up to there, which the others must have, too.
    """
    stopped = threading.Event()

    def come(node: Connection) -> int:
        left_out = node.withheld and not (chain and nodes.epoch)
        if left_out or (not applied and node.url == there):
            return position
        patience = _Patience(clock, nodes.settings.read_timeout / 1000)
        connection = node if patient else node.once
        body: dict[str, Any] = {"position": position, "applied": applied, "maps": maps, "timeout": ANSWER_SECONDS}
        if chain and nodes.epoch:
            body["chain"] = chain

        def post() -> int:
            if "chain" in body and node.withheld:
                return nodes.on_primary(lambda primary: _confirmed(primary, body, node.url))
            answer = connection.request(
                "POST", "/v1/log/replication", json=body, timeout=3 * ANSWER_SECONDS, question=True
            )
            return int(answer.json()["position"])

        return retry(
            post,
            lambda error, _failures, _chance: (
                None if not isinstance(error, Unavailable) or patience.over(error) else PAUSE_SECONDS
            ),
            clock, stop=stopped,
        )  # fmt: skip

    return nodes.all(come, stop=stopped)


def _confirmed(primary: Connection, body: Mapping[str, Any], url: str) -> int:
    """The position of a node, as the primary finds it: this client may not send its token there."""
    question = {**body, "nodes": [url], "maps": body["maps"] or []}
    answer = primary.request("POST", "/v1/nodes/confirmation", json=question, timeout=3 * ANSWER_SECONDS, question=True)
    return int(answer.json()["position"])


class _Patience:
    """The time allowed for a node that says it is not ready yet."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self.clock, self.seconds = clock, seconds
        self.reached = -1
        self.until = clock.monotonic() + seconds
        self.end = clock.monotonic() + MERGED_SECONDS_MAX

    def over(self, error: Unavailable) -> bool:
        """True when the error, or the time passed, ends the retries."""
        now, here = self.clock.monotonic(), error.values.get("position")
        if error.kind == "node_behind" and isinstance(here, int) and here > self.reached:
            self.reached, self.until = here, now + self.seconds
        elif error.kind == "merge_slow":
            self.until = now + self.seconds
        return error.kind not in _STILL_WORKING or now > min(self.until, self.end)
