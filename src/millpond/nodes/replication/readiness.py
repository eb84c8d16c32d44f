"""Readiness of a node: the state machine that decides when it may answer, and when it may enter changes.

           start
             │
             ▼       a peer that is sound was heard,            the goal is entered,
          unheard ──▶ or all peers were heard ──▶ behind ──▶    and merged ──▶ sound
                                                  (a goal)                       │ it is the primary, all peers were
                                                                                 ▼ heard, and none has more
                                                                              appending

A *sound* node has every load that was acknowledged; it answers. Only an *appending* primary appends to the log. A node
that is neither answers 503, kind `node_not_ready`, and clients go on to the next node.

A disk may be empty, or an old copy, and the node that starts on it cannot know. So it believes nothing about itself
before it has heard from others. What its peers say sets its *goal*, the position it must reach:

* a peer that is sound has every acknowledged load: its position is enough;
* without one, all peers must be heard, and the largest position counts: one of them has what was acknowledged last;
* each peer remembers what this node confirmed to it, and no goal is smaller than that.

Invariants:
* Whatever was acknowledged before a node became sound is entered and merged there.
* A node stays sound while it runs: no load is acknowledged without it, see `nodes.write_to`.
* A primary enters nothing while a peer that it has not heard may have entries that it lacks.
* Nothing here is stored: each start begins with `unheard`. Only what peers confirmed is remembered, see `survey.py`.

A node that a list in the log makes the primary has all entries up to that list, and nobody else appends later ones: so
it need not hear its peers again; `membership/fence.py` says when it may append. A node that is added begins anew, with
the position of that entry as its goal. A node that is lost for good, as a person says, is not waited for.

`without_peers` lets a node go on when it has surveyed all peers once, with those that it heard.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

__all__ = ("Hearing", "Readiness")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hearing:
    """A peer's word: its position, its soundness, and the position that this node once confirmed to it."""

    position: int
    sound: bool
    remembers: int = 0


class Readiness:
    """The readiness of one node. Threads may share it."""

    def __init__(self, peers: Sequence[str], *, leads: bool, majority: bool = False, position: int = 0) -> None:
        """`majority`: a load needs only most nodes; `position` is where the log ended when the node started."""
        self._lock = threading.RLock()
        self.without_peers = False
        self._peers = tuple(peers)
        self._leads = leads
        self._majority, self._began_at = majority, position
        self._sound = self._appends = self._surveyed = False
        self._first: dict[str, int] = {}
        self._first_sound: dict[str, int] = {}
        self._latest: dict[str, Hearing] = {}
        self._remembered = 0

    # -- what happens -------------------------------------------------------------------------------------

    def hear(self, url: str, hearing: Hearing) -> None:
        """Note what a peer says; nodes that are not peers are not listened to."""
        with self._lock:
            if url not in self._peers:
                return
            self._latest[url] = hearing
            self._first.setdefault(url, hearing.position)
            if hearing.sound:
                self._first_sound.setdefault(url, hearing.position)
            if not self._sound:
                self._remembered = max(self._remembered, hearing.remembers)

    def surveyed(self) -> None:
        """Note that each peer was surveyed once since the start."""
        with self._lock:
            self._surveyed = True

    def decided(self) -> None:
        """Note that a person made this node a copy of another one: what it holds now counts."""
        with self._lock:
            self._sound, self._remembered = True, 0
            self._first = dict.fromkeys(self._first, 0)

    def become(self, peers: Sequence[str], *, leads: bool, joined_at: int | None = None) -> None:
        """Take another list of peers. `joined_at`: the position of the entry that made this node a member."""
        with self._lock:
            if leads and not self._leads and self._sound:
                self._appends = True
            if joined_at is not None:
                self._sound, self._remembered = False, max(self._remembered, joined_at)
            self._peers, self._leads = tuple(peers), leads
            for positions in (self._first, self._first_sound, self._latest):
                for url in positions.keys() - set(peers):
                    del positions[url]

    @property
    def sound(self) -> bool:
        """True when the node was found to be sound."""
        return self._sound

    # -- what follows -------------------------------------------------------------------------------------

    def unheard(self) -> list[str]:
        """The peers that were not heard since the start."""
        with self._lock:
            return [url for url in self._peers if url not in self._first]

    def goal(self) -> int | None:
        """The position at which the node is sound; None while that is not known."""
        with self._lock:
            if not self._peers:
                return 0
            if self._first_sound:
                return max(min(self._first_sound.values()), self._remembered)
            if not self._enough():
                return None
            return max(*self._first.values(), self._remembered, 0)

    def _enough(self) -> bool:
        """True when no peer that is not heard can have what matters.

        A primary whose disk is whole has every entry. With `majority` it must only be sure that it still is one.
        """
        if not self.unheard() or (self.without_peers and self._surveyed):
            return True
        whole = self._leads and 0 < self._began_at >= max(self._remembered, *self._first.values(), 0)
        return self._majority and whole and 2 * (len(self._first) + 1) > len(self._peers) + 1

    def richest(self) -> str | None:
        """The peer with the largest position, a sound one first; None while none was heard."""
        with self._lock:
            positions = self._latest.items()
            return max(positions, key=lambda pair: (pair[1].position, pair[1].sound), default=(None, None))[0]

    def position_of(self, url: str) -> int:
        """The position that a peer told last."""
        with self._lock:
            hearing = self._latest.get(url)
            return 0 if hearing is None else hearing.position

    def judge(self, position: int, merged: Callable[[int], bool]) -> bool:
        """True when the node is sound, with its log at `position`; `merged` says that everything up to there is."""
        with self._lock:
            if self._sound:
                return True
            goal = self.goal()
            self._sound = goal is not None and position >= goal and merged(goal)
            return self._sound

    def judge_append(self, position: int) -> bool:
        """True when a sound primary may append to the log, which ends at `position`."""
        with self._lock:
            if not self._appends and self._leads and self._sound and self._enough():
                self._appends = position >= max(self._first.values(), default=0)
            return self._appends and self._leads and self._sound

    def reason(self, position: int) -> str:
        """The reason why the node is not sound, with its way out."""
        goal = self.goal()
        if goal is None:
            names = ", ".join(self.unheard())
            return f"it has not heard from {names} since it started, so it cannot know that its data is complete"
        if position >= goal:
            return f"it merges what was entered up to position {goal}"
        if goal > self._most():
            return (
                f"it once confirmed position {goal}, has {position}, and no node in sight has more than {self._most()}"
            )
        return f"it is behind: it has position {position} of {goal}"

    def _most(self) -> int:
        return max((hearing.position for hearing in self._latest.values()), default=0)
