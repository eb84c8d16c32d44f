"""Promotion without the primary: a node becomes it with the promises of most nodes, because a person orders it.

    1 look      nothing is changed: the primary is away, most nodes can be reached, and none has a longer log
    2 promise   this node, then the others promise its epoch: from now on they enter nothing of the old primary
    3 append    with most promises, and still the longest log, this node appends the entry that names it the primary

Between 2 and 3 the pond takes no changes. A promotion that is broken off there is ordered again, of this node or of
another one.

Invariants, see `membership/fence.py`:
* this node has every entry that one of most nodes had when it promised;
* a promise is given while no entry is being entered, and stored before it is given;
* a node whose log is no beginning of this one's, or that lost entries which it once confirmed, does not count.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from millpond.errors import Conflict, Invalid, MillpondError, NotFound, Unavailable
from millpond.kernel.steps import step
from millpond.nodes.changes import ListChange
from millpond.nodes.membership.fence import Promise

if TYPE_CHECKING:
    from millpond.nodes.node import Node
    from millpond.nodes.replication.peer import Peer

__all__ = ("give_promise", "promote_without_primary")


PROMISE_SECONDS = 30.0
"""The time that a node has to end what it enters, and to promise."""


@dataclass(frozen=True, slots=True)
class _Vote:
    """The answer of one node: the end of its log, and the position that this node once confirmed to it."""

    url: str
    epoch: int
    position: int
    chain: str
    remembers: int = 0
    granted: bool = True


def give_promise(node: Node, promise: Promise) -> dict[str, Any]:
    """Promise to follow a candidate, unless an earlier promise or list forbids it; how this node's log ends.

    Raises: `Invalid` when the candidate is no member.
    """
    members, applier = node.follower.members, node.follower.applier
    if promise.candidate not in members.urls:
        raise Invalid("the candidate is no node of the pond", kind="node_unknown", node=promise.candidate,
                      nodes=", ".join(members.urls), hint="add it first")  # fmt: skip
    with node.gate.closed(), applier.working:
        granted = members.fence.may_promise(promise)
        if granted:
            members.stored.put_promise(promise)
            members.fence.promise = promise
        position, chain = node.pond.log.position()
    return {
        "granted": granted, "epoch": members.current.epoch, "promised": members.fence.promise.epoch,
        "position": position, "chain": chain, "remembers": node.follower.survey.confirmed(promise.candidate),
    }  # fmt: skip


def promote_without_primary(node: Node) -> ListChange:
    """Make this node the primary.

    Raises:
        Conflict: kind `primary_there` when the primary answers; `log_shorter` when a node that can be reached has more.
        Unavailable: kind `too_few_nodes` when most nodes do not agree.
    """
    members = node.follower.members
    if node.follower.soundness.fork is not None:
        raise node.follower.soundness.fork
    if node.url not in members.urls:
        raise Invalid("this node is no member of the pond", kind="node_unknown", node=node.url,
                      nodes=", ".join(members.urls), hint="add it first: millpond node add URL")  # fmt: skip
    _need_primary_away(node)
    _need_longest(node, _look(node), "can be reached")
    promise = Promise(members.fence.epoch_next(), node.url)
    own = give_promise(node, promise)
    if not own["granted"]:
        raise Conflict("another promotion has begun meanwhile", kind="nodes_changed", epoch=own["promised"],
                       hint="look at 'millpond node status', and begin again")  # fmt: skip
    votes = _ask(node, lambda peer: _vote(peer, promise))
    step("promotion.promised")
    with node.gate.closed(), node.follower.applier.working:
        _need_longest(node, [vote for vote in votes if vote.granted], "promised")
        current = members.current
        members.stored.append(current.promoted(node.url, promise.epoch), own=node.url, epoch=current.epoch)
        node.follower.soundness.readiness.decided()
        node.follower.refresh()
    return ListChange(members.current.epoch, members.current.nodes, changed=True)


def _need_primary_away(node: Node) -> None:
    members = node.follower.members
    if members.primary == node.url:
        return  # it begins another epoch, after a promotion of another node was broken off
    try:
        facts = members.peer(members.primary).node()
    except MillpondError:
        return
    if facts["ready"]:
        raise Conflict("the primary answers", kind="primary_there", primary=members.primary,
                       hint="it can hand over, which risks nothing: millpond node promote URL")  # fmt: skip


def _look(node: Node) -> list[_Vote]:
    def look(peer: Peer) -> _Vote:
        facts = peer.node()
        return _Vote(peer.url, int(facts.get("epoch", 0)), facts["position"], facts["chain"])

    return _ask(node, look)


def _vote(peer: Peer, promise: Promise) -> _Vote:
    body = {"epoch": promise.epoch, "candidate": promise.candidate}
    answer = peer.connection.once.request(
        "POST", "/v1/nodes/promise", json=body, timeout=PROMISE_SECONDS, repeatable=True
    ).json()
    return _Vote(
        peer.url, answer["epoch"], answer["position"], answer["chain"], answer["remembers"], bool(answer["granted"])
    )


def _ask(node: Node, act: Any) -> list[_Vote]:
    """The answers of the nodes that can be reached."""
    peers = list(node.follower.members.peers)

    def attempt(peer: Peer) -> _Vote | None:
        try:
            vote: _Vote = act(peer)
        except MillpondError:
            return None
        return vote

    if not peers:
        return []
    with ThreadPoolExecutor(len(peers), "ask-promise") as pool:
        return [vote for vote in pool.map(attempt, peers) if vote is not None]


def _need_longest(node: Node, votes: Sequence[_Vote], what: str) -> None:
    """Insist that most nodes count, and that none of them has more than this one.

    Raises: `Conflict`, kind `log_shorter`; `Unavailable`, kind `too_few_nodes`.
    """
    members, survey = node.follower.members, node.follower.survey
    position = node.pond.log.position()[0]
    longer = [vote for vote in votes if (vote.epoch, vote.position) > (members.current.epoch, position)]
    longer += [vote for vote in votes if vote.remembers > position]
    if longer:
        best = max(longer, key=lambda vote: (vote.epoch, vote.position))
        raise Conflict(
            "another node has a longer log", kind="log_shorter", node=best.url, position=position,
            there=max(best.position, best.remembers), hint=f"millpond node promote {best.url} --without-primary",
        )  # fmt: skip
    counted = [vote.url for vote in votes
               if vote.position >= survey.confirmed(vote.url) and _is_beginning(node, vote)]  # fmt: skip
    if 2 * (len(counted) + 1) <= len(members.urls):
        raise Unavailable(
            "most nodes do not agree", kind="too_few_nodes", agree=", ".join([node.url, *counted]),
            nodes=", ".join(members.urls), what=what,
            hint="start more nodes, and order it again; a node that lost entries, or whose log is another one, does "
            "not count",
        )  # fmt: skip


def _is_beginning(node: Node, vote: _Vote) -> bool:
    """True when the log of a node is a beginning of this one's, as far as this one's reaches back."""
    position, chain = node.pond.log.position()
    if vote.position == position:
        return vote.chain == chain
    if vote.position == 0:
        return True
    try:
        return node.pond.log.entries(vote.position - 1, 1)[0].chain == vote.chain
    except NotFound:
        return True  # it is older than what is retained: the node copies this one
