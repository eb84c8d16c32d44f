"""The fence of a node: the state machine that decides which list of nodes it follows, and when it may append.

A list of nodes is an entry of the log (`maps/log/node_list.py`) and has an epoch. A node *adopts* a list by entering
its entry, and by nothing else. Three things change a list:

    the primary appends an entry that adds or removes a node       it stays the primary, in the next epoch
    the primary hands over: its last entry names another one       the other one is the primary of the next epoch
    without the primary, a node collects promises of most nodes,   it is the primary of the epoch that was promised
    and appends an entry that names itself

A *promise* is stored before it is given. A node that promised an epoch to a candidate enters entries only from a node
that has the list of the candidate, or a list of a later epoch: the old primary cannot have a load acknowledged by it
any more.

Invariants:
* a node adopts epochs that rise, and one list of each; it promises one candidate in each epoch, in rising epochs, and
  none in an epoch that it has adopted;
* **no two primaries append in one epoch**: a primary appends only after most nodes of its list have adopted that list,
  and two lists that follow one another differ by one node at most, so most of one and most of the other share a node;
* **a primary of an older epoch is fenced**: it appends nothing after it has heard of a later list or promise; what it
  appended before it heard is not acknowledged, for most nodes have promised not to enter it;
* **nothing acknowledged is lost**: a candidate has every entry of each of most nodes, at the moment of their promises;
* a node that is no member, or is leaving, answers nothing, and no load waits for one that is no member.

Lists of the settings have epoch 0. They are compared, and not fenced by it: a person makes them alike.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

from millpond.maps.log.node_list import NodeList

__all__ = ("Fence", "Promise", "Word")


@dataclass(frozen=True, slots=True)
class Promise:
    """The promise to follow a candidate from an epoch on; epoch 0: none was given."""

    epoch: int = 0
    candidate: str = ""


@dataclass(frozen=True, slots=True)
class Word:
    """A peer's word: its list, the epoch of its last promise, and its soundness."""

    nodes: NodeList
    promised: int = 0
    sound: bool = False


class Fence:
    """The fence of one node. Threads may share it. `promise` is set after it was stored."""

    def __init__(self, own: str, current: NodeList, promise: Promise) -> None:
        self._lock = threading.RLock()
        self.own, self.current, self.promise = own, current, promise
        self._heard: dict[str, Word] = {}

    # -- what happens -------------------------------------------------------------------------------------

    def adopt(self, nodes: NodeList) -> None:
        """Take the list of an entry that was entered, or of a copy of another node."""
        with self._lock:
            self.current = nodes
            self._heard = {url: word for url, word in self._heard.items() if word.nodes.epoch >= nodes.epoch}

    def hear(self, url: str, word: Word) -> None:
        """Note what a node says of itself."""
        with self._lock:
            self._heard[url] = word

    # -- what follows -------------------------------------------------------------------------------------

    def may_promise(self, promise: Promise) -> bool:
        """True when a promise breaks none that was given, and is for an epoch to come."""
        with self._lock:
            return promise.epoch > max(self.current.epoch, self.promise.epoch) or (
                promise == self.promise and promise.epoch > self.current.epoch
            )

    def may_follow(self, source: NodeList) -> bool:
        """True when entries of a node that has this list may be entered."""
        with self._lock:
            promise = self.promise
            if promise.epoch <= self.current.epoch or source.epoch > promise.epoch:
                return True
            return source.epoch == promise.epoch and source.primary == promise.candidate

    def epoch_next(self) -> int:
        """An epoch later than all that this node knows of."""
        with self._lock:
            epochs = [max(word.nodes.epoch, word.promised) for word in self._heard.values()]
            return max(self.current.epoch, self.promise.epoch, *epochs, 0) + 1

    def newer(self) -> tuple[str, ...]:
        """The nodes that have a list of a later epoch, the latest first; or another one of this epoch, with most."""
        with self._lock:
            later = [
                (word.nodes.epoch, url)
                for url, word in self._heard.items()
                if word.nodes.epoch > self.current.epoch or self._disputed(word.nodes)
            ]
            return tuple(url for _, url in sorted(later, reverse=True))

    def _disputed(self, other: NodeList) -> bool:
        """True when another list has this epoch, and this node's own has not come to most nodes."""
        same_epoch = other.epoch == self.current.epoch > 0
        return same_epoch and not other.same(self.current) and not self.most_adopted()

    def latest(self) -> NodeList:
        """The list with the latest epoch that this node knows of: for those who look for the primary."""
        with self._lock:
            return max([self.current, *(word.nodes for word in self._heard.values())], key=lambda nodes: nodes.epoch)

    def deposed(self) -> bool:
        """True when this node knows of an epoch after its own, promised or begun."""
        with self._lock:
            epochs = [max(word.nodes.epoch, word.promised) for word in self._heard.values()]
            return max(self.promise.epoch, *epochs, 0) > self.current.epoch

    def _adopted_by(self) -> tuple[str, ...]:
        """The nodes of the current list that have it, this one included."""
        with self._lock:
            return tuple(url for url in self.current.nodes if url == self.own or self._has_list(url))

    def _has_list(self, url: str) -> bool:
        word = self._heard.get(url)
        return word is not None and word.nodes.same(self.current)

    def most_adopted(self) -> bool:
        """True when most nodes of the current list have it. A list of the settings needs no proof."""
        return self.current.epoch == 0 or 2 * len(self._adopted_by()) > len(self.current.nodes)

    @property
    def leads(self) -> bool:
        """True when this node is the primary of its list."""
        return not self.current.nodes or self.current.primary == self.own

    def appends(self) -> bool:
        """True when the fence lets this node append to the log."""
        return self.leads and not self.deposed() and self.most_adopted()

    def member(self) -> bool:
        """True when loads wait for this node, so that it may answer.

        A node whose settings name it, and whom no sound peer names, is one that waits to be added.
        """
        with self._lock:
            if self.current.nodes and (self.own not in self.current.nodes or self.own in self.current.leaving):
                return False
            return not any(
                word.sound and word.nodes.nodes and self.own not in word.nodes.nodes
                and word.nodes.epoch >= self.current.epoch
                for word in self._heard.values()
            )  # fmt: skip
