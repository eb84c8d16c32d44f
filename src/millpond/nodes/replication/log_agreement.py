"""Consistency check: compares the digests of every map on every node.

The primary's answer is the measure. A digest of a map comes with two positions of the log: up to `position` everything
about the map has been applied, and `entry` is the last that shaped its rows. What a map holds is a function of the log.
So when each of two nodes has applied what shaped the other's rows, their digests must be the same; else one is merely
behind, and is asked again, up to a deadline. A map that changes all the time is compared as soon as two answers meet.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

from millpond.clock import Clock
from millpond.errors import Corrupt, MillpondError, NotFound, Unavailable
from millpond.json_forms import plain

__all__ = ("Agreement", "Participant", "Finding", "agreement")

_PAUSE_SECONDS = 0.2
_BUSY_SECONDS = 5.0
"""So long a node may take for what it has entered to be merged, before it is asked once more."""


class Participant(Protocol):
    """A node that can be asked: a peer, or this node itself."""

    @property
    def url(self) -> str:
        """Base URL."""

    def node(self) -> dict[str, Any]:
        """The peer's status document."""

    def maps(self) -> list[dict[str, Any]]:
        """Its maps."""

    def digest(self, name: str, position: int, seconds: float) -> dict[str, Any]:
        """`{position, entry, rows, digest}`: see above."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The comparison of one map on one node with the primary's.

    `state`: `agrees, behind, differs, damaged` (it cannot read its own), `missing, unreachable`.
    """

    map: str
    node: str
    state: str
    behind: int = 0
    rows: int | None = None
    digest: str | None = None
    position: int | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Agreement:
    """The findings for every map on every node, the primary first."""

    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """True when every node was reached and agrees."""
        return all(finding.state == "agrees" for finding in self.findings)

    @property
    def differing(self) -> tuple[Finding, ...]:
        """Those that hold other rows."""
        return tuple(finding for finding in self.findings if finding.state in ("differs", "damaged", "missing"))

    def to_dict(self) -> dict[str, Any]:
        """A JSON-able form."""
        return {"agrees": self.ok, "findings": [plain(finding) for finding in self.findings]}


def agreement(
    peers: Sequence[Participant], clock: Clock, *, maps: Sequence[str] | None = None, seconds: float = 60.0,
    stopping: threading.Event | None = None,
) -> Agreement:  # fmt: skip
    """Compare the maps (all: None) of all nodes; `peers[0]` is the primary, `seconds` bounds the wait for each map.

    `stopping`: when it is set, nothing is waited for any more, and maps that were not compared are left out.

    Raises: `Unavailable` when the primary cannot be reached; `NotFound` for a map that it does not have.
    """
    primary, others = peers[0], peers[1:]
    names = [description["name"] for description in primary.maps()] if maps is None else list(maps)
    findings: list[Finding] = []
    stopping = stopping or threading.Event()
    for name in names:
        if stopping.is_set():
            break
        comparison = _Comparison(name, primary, clock, clock.monotonic() + seconds, stopping)
        findings += comparison.compare(others)
    return Agreement(tuple(findings + _surplus(others, names if maps is None else None)))


def _surplus(others: Sequence[Participant], names: Sequence[str] | None) -> list[Finding]:
    """Maps that only a peer has."""
    if names is None:
        return []
    surplus = []
    for peer in others:
        try:
            listed = [description["name"] for description in peer.maps()]
        except Unavailable:
            continue  # its failure is reported for every map already
        surplus += [
            Finding(map=name, node=peer.url, state="differs", reason="the primary has no such map")
            for name in listed
            if name not in names
        ]
    return surplus


class _Comparison:
    """One map, compared on all nodes."""

    def __init__(self, name: str, primary: Participant, clock: Clock, until: float, stopping: threading.Event) -> None:
        self.name, self.primary, self.clock, self.until, self.stopping = name, primary, clock, until, stopping

    def compare(self, others: Sequence[Participant]) -> list[Finding]:
        """The primary's finding, then one for each of the others."""
        expected = self._ask(self.primary, int(self.primary.node()["position"]))
        if isinstance(expected, Finding):
            return [expected]
        findings = [self._finding(self.primary, expected, "agrees")]
        if others:
            with ThreadPoolExecutor(len(others), "compare") as pool:
                findings += pool.map(lambda peer: self._compare_one(peer, expected), others)
        return findings

    def _left(self) -> float:
        return 0.0 if self.stopping.is_set() else self.until - self.clock.monotonic()

    def _compare_one(self, peer: Participant, expected: dict[str, Any]) -> Finding:
        while True:
            answer = self._ask(peer, expected["position"])
            if isinstance(answer, Finding):
                return answer
            if answer["position"] >= expected["entry"] and expected["position"] >= answer["entry"]:
                same = (answer["rows"], answer["digest"]) == (expected["rows"], expected["digest"])
                return self._finding(peer, answer, "agrees" if same else "differs")
            if self._left() <= 0:
                behind = max(expected["entry"] - answer["entry"], 0)
                return self._finding(peer, answer, "behind", behind=behind, reason="the map changes all the time")
            # The map moved on between the two questions: catch the primary where this node is now, or was.
            self.clock.wait(self.stopping, self.clock.monotonic() + _PAUSE_SECONDS)
            again = self._ask(self.primary, answer["position"])
            expected = expected if isinstance(again, Finding) else again

    def _ask(self, peer: Participant, position: int) -> dict[str, Any] | Finding:
        """A peer's digest when it has applied everything up to a position; a finding when it does not get there."""
        while True:
            try:
                return peer.digest(self.name, position, max(min(self._left(), _BUSY_SECONDS), 0.0))
            except NotFound as error:
                answer = Finding(map=self.name, node=peer.url, state="missing", reason=error.message)
            except Unavailable as error:
                answer = self._not_there(peer, position, error)
            except MillpondError as error:
                state = "damaged" if isinstance(error, Corrupt) else "unreachable"
                return Finding(map=self.name, node=peer.url, state=state, reason=str(error))
            if self._left() <= 0 or answer.state == "unreachable":
                return answer
            self.clock.wait(self.stopping, self.clock.monotonic() + _PAUSE_SECONDS)

    def _not_there(self, peer: Participant, position: int, error: Unavailable) -> Finding:
        if error.kind == "node_unreachable":
            return Finding(map=self.name, node=peer.url, state="unreachable", reason=str(error))
        at = int(str(error.values.get("position", 0)))
        return Finding(map=self.name, node=peer.url, state="behind", behind=max(position - at, 0), position=at,
                       reason=error.message)  # fmt: skip

    def _finding(
        self, peer: Participant, digest: dict[str, Any], state: str, *, behind: int = 0, reason: str | None = None
    ) -> Finding:
        return Finding(
            map=self.name, node=peer.url, state=state, behind=behind, rows=digest["rows"], digest=digest["digest"],
            position=digest["position"], reason=reason,
        )  # fmt: skip
