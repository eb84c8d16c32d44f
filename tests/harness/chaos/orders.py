"""Orders that an operator gives to nodes while they work: drain, promote, add, remove; and the way back.

Invariants:
* an order that fails for a fault of another kind is no breach: it is given up, or given again when the fault is over;
* after `settle` the list of nodes is the first one: all nodes are members, and node `PRIMARY` is the primary; one that
  entered what nobody else has, before another was promoted, is made a copy of that one first, as an operator would.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import urllib3

from tests.harness.chaos.plan import NODES, PRIMARY

if TYPE_CHECKING:
    from tests.harness.cluster import Cluster

__all__ = ("Orders",)

PAUSE_SECONDS = 0.2


class Orders:
    """The orders to one cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    def drain(self, number: int, *, draining: bool) -> str:
        """Let a node take no new work, or take it again; the reason why not."""
        return self._send(number, "drain", {"draining": draining})

    def promote(self, number: int) -> str:
        """Make a node the primary; the reason why not."""
        return self._send(self.primary(), "promote", {"url": self._url(number)})

    def promote_alone(self, number: int) -> str:
        """Make a node the primary without the old one; the reason why not."""
        return self._send(number, "promote", {"url": self._url(number), "without_primary": True})

    def remove(self, number: int, *, lost: bool = False) -> str:
        """Take a node out; the reason why not."""
        return self._send(self.primary(), "remove", {"url": self._url(number), "lost": lost})

    def add(self, number: int) -> str:
        """Make a node a member; the reason why not."""
        return self._send(self.primary(), "add", {"url": self._url(number)})

    def primary(self) -> int:
        """The number of the primary of the latest list."""
        return self._members(self._latest())[0]

    def settle(self, seconds: float) -> str:
        """Give orders until the list is the first one again; the reason why not, when that takes too long."""
        due = time.monotonic() + seconds
        reason = self._step()
        while reason and time.monotonic() < due:
            time.sleep(PAUSE_SECONDS)
            reason = self._step()
        return reason

    def _step(self) -> str:
        """One order towards the first list; what is missing."""
        found = self._latest()
        if found.get("leaving"):
            return self.add(self._number(found["leaving"][0])) or "a node was leaving"
        members = self._members(found)
        for number in range(NODES):
            if number not in members:
                self._repair(number, members[0])
                return self.add(number) or "a node was no member"
        for number in members[1:]:
            self._repair(number, members[0])
        if members[0] != PRIMARY:
            return self.promote(PRIMARY) or self._pending(members[0])
        return self._pending(PRIMARY) if self._promised() else ""

    def _pending(self, primary: int) -> str:
        """Finish a promotion that was broken off: the primary begins another epoch."""
        if not self._promised():
            return "another node was the primary"
        return self.promote_alone(primary) or "a promotion was broken off"

    def _promised(self) -> bool:
        return any("promised to follow" in reason or "is to be" in reason for number in range(NODES)
                   for reason in self._facts(number).get("reasons", ()))  # fmt: skip

    def _repair(self, number: int, source: int) -> None:
        """Make a node a copy of the primary, when it entered what nobody else has."""
        reasons = self._facts(number).get("reasons", ())
        if any("another one than its peer's" in reason for reason in reasons):
            with suppress(urllib3.exceptions.HTTPError):
                body = {"source": self._url(source), "over": True}
                self.cluster.ask(number, "POST", "/v1/repair", body=body)

    # -- what nodes say -----------------------------------------------------------------------------------

    def _latest(self) -> Mapping[str, Any]:
        found = [facts for number in range(NODES) if (facts := self._facts(number))]
        return max(found, key=lambda facts: int(facts["epoch"]), default={"nodes": [self._url(PRIMARY)], "epoch": 0})

    def _members(self, facts: Mapping[str, Any]) -> list[int]:
        return [self._number(url) for url in facts["nodes"]]

    def _facts(self, number: int) -> dict[str, Any]:
        if not self.cluster.nodes[number].runs:
            return {}
        try:
            found: dict[str, Any] = self.cluster.ask(number, "GET", "/v1/node").json()
        except (urllib3.exceptions.HTTPError, ValueError):
            return {}
        return found

    def _send(self, number: int, what: str, body: Mapping[str, object]) -> str:
        try:
            answer = self.cluster.ask(number, "POST", f"/v1/nodes/{what}", body=body)
        except urllib3.exceptions.HTTPError as error:
            return f"the order was not answered: {type(error).__name__}"
        return "" if answer.status == 200 else f"refused: {answer.json().get('kind')}"

    def _url(self, number: int) -> str:
        return self.cluster.nodes[number].url

    def _number(self, url: str) -> int:
        return [node.url for node in self.cluster.nodes].index(url)
