"""A load over the network: parts to every node, then one entry at the primary, then every node at that entry.

0. `bring_load`: a small load to a pond of one node is one request, with its parts: it is entered sooner than two are
   sent and answered. With several nodes, nothing may be entered before every node has the parts.
1. `upload_parts`: the stream of each part goes to all nodes at once, from its folder, several parts at a time, see
   `transfer.py`. When one node fails, the others stop: nothing has been entered, and what was uploaded expires.
2. `enter_load`: the primary enters the load. It is durable then, and has an id drawn here, so that asking again after
   an answer was lost enters nothing twice.
   It is entered for the list of nodes that the writer has: when that is another one by now, the writer takes the new
   one, and asks again. A node that was added meanwhile fetches the parts from the others.
3. every other node is requested to come up to that entry; with `synchronise`, all wait until it is merged.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any, TypeAlias
from urllib.parse import quote

from millpond.client.catching_up import ANSWER_SECONDS, come_up_to
from millpond.client.connections import Broken, answers_nothing
from millpond.client.operations import ask_primary
from millpond.client.transfer import SMALL_BYTES, Sending, SentPart, Stopped
from millpond.client.transport import Connection, Nodes, Outcome, Response
from millpond.clock import Clock
from millpond.errors import Conflict, Corrupt, Denied, Invalid, MillpondError, NotFound, Unavailable, Uncertain
from millpond.kernel.steps import step
from millpond.maps.loads.load import LoadResult
from millpond.maps.parts.part import PartFile
from millpond.maps.parts.stream import MEDIA_TYPE, PartStream

__all__ = (
    "Advance", "bring_load", "confirming", "discard_parts", "enter_load", "upload_parts",
)  # fmt: skip

Advance: TypeAlias = Callable[[int, int], None]
"""A callback for progress: the bytes sent since the last time, and all that are to be sent."""

ON_MAIN: Mapping[str, str] = {}
"""The query of a load on `main`."""
PARTS_AT_ONCE = 4
"""So many parts are on their way to one node: while one is being written there, others come in."""
TEXT_BYTES_MAX = 2000
"""The names of source and stream travel in the head of such a request."""
ACKNOWLEDGED_SECONDS = 300.0
"""The time limit for the primary to be sure that nodes that lag answer nothing."""
LISTS_MAX = 5
"""So many changes of the list of nodes a load takes, one after another."""
_ELSEWHERE = ("nodes_changed", "not_primary", "upload_busy", "route_not_found")
"""The kinds of error after which a load is sent in several requests: the list of nodes is another one, somebody else
sends a part, or the node is of an earlier release."""
_NOT_HEARD_OF_IT = ("map_not_found", "map_incarnation")
"""The kinds of error with which a node refuses a part of a map that was made while it was away."""


# -- 0: a small load in one request -------------------------------------------------------------------


def bring_load(
    nodes: Nodes, parts: Sequence[PartFile], *, load_id: str, source: str, rejected: int,
    stream: tuple[str, int] | None, advance: Advance | None, at: Mapping[str, str] = ON_MAIN,
) -> Response | None:  # fmt: skip
    """The primary's answer to a load that was sent with its parts; None: upload them, and then enter it. `at`: the
    branch, and the options of a load there.

    The id is the same in every attempt, also when the load goes on in several requests: nothing is entered twice.

    Raises: what is wrong with the parts, or with the right to bring them; `Unavailable`, kind `node_unreachable`, when
    an answer was lost, so that the load may be entered, and kind `load_not_everywhere`, when it is not.
    """
    if len(nodes.connections) != 1 or not nodes.take_whole_loads:
        return None
    streams = [PartStream(part.file) for part in parts]
    size = sum(part.size for part in streams)
    texts = (source, "" if stream is None else stream[0])
    if size > SMALL_BYTES or sum(len(quote(text)) for text in texts) > TEXT_BYTES_MAX:
        return None
    if len({part.manifest.id for part in parts}) < len(parts):
        return None
    query: dict[str, Any] = {"source": source, "rejected": rejected, "epoch": nodes.epoch, **at}
    if stream is not None:
        query |= {"stream": stream[0], "stream_epoch": stream[1]}
    body = b"".join(chunk for part in streams for chunk in part.chunks())
    answer = _brought(nodes, f"/v1/loads/{quote(load_id, safe='')}", query, body)
    if answer is not None and advance is not None:
        advance(size, size)
    return answer


def _brought(nodes: Nodes, path: str, query: dict[str, Any], body: bytes) -> Response | None:
    node, arrived = nodes.primary(), False

    def ask() -> Response:
        nonlocal arrived
        try:
            return node.ask("PUT", path, query=query, body=body, headers={"Content-Type": MEDIA_TYPE})
        except Broken as error:
            arrived = arrived or error.sent
            raise

    try:
        answer = node.persist(ask)
    except MillpondError as error:
        if error.kind == "route_not_found":
            nodes.take_whole_loads = False
        if error.kind in _ELSEWHERE or (answers_nothing(error) and nodes.leave(node)) or nodes.relearn():
            return None
        if isinstance(error, Unavailable) and error.kind == "node_unreachable" and not arrived:
            raise _not_everywhere([Outcome(node.url, None, error)]) from error
        raise
    step("upload.sent")
    return answer


# -- 1: parts to every node ---------------------------------------------------------------------------


def upload_parts(
    nodes: Nodes, parts: Sequence[PartFile], *, advance: Advance | None = None, at: Mapping[str, str] = ON_MAIN
) -> None:
    """Bring every part to every node; when some fail, and the list of nodes is another one by now, to those.

    Of a pond with `nodes.write_to = "majority"`, the primary and most nodes are enough: the others fetch the parts from
    them.

    Raises: `Unavailable` kind `load_not_everywhere`, naming each node that failed and why; what is wrong with the parts
    themselves, or with the right to bring them, is raised as that.
    """
    try:
        _upload_parts(nodes, parts, advance, at)
    except MillpondError:
        if not nodes.relearn():
            raise
        _upload_parts(nodes, parts, None, at)


def _upload_parts(
    nodes: Nodes, parts: Sequence[PartFile], advance: Advance | None, at: Mapping[str, str]
) -> None:  # fmt: skip
    sent = [SentPart(part, at) for part in {part.manifest.id: part for part in parts}.values()]
    stop = threading.Event()
    progress = _Progress(advance, sum(part.size for part in sent) * len(nodes.connections))

    def bring(node: Connection) -> bool:
        if node.withheld and nodes.epoch:
            return True  # it fetches the parts from those that this client may send its token to
        # A node that may be missing does not stop the others.
        optional = nodes.majority and node.url != nodes.primary().url
        # Nor does one of equal nodes stop the next, which is asked in its place.
        free = optional or len(nodes.connections) == 1
        return bring_to(node.once if optional else node, threading.Event() if free else stop)

    def bring_to(node: Connection, stop: threading.Event) -> bool:
        connection = node.until(stop)

        def send(part: SentPart) -> bool:
            upload = Sending(connection, part, stop, progress)
            try:
                upload.run()
            except (NotFound, Conflict) as error:
                if error.kind not in _NOT_HEARD_OF_IT or node.url == nodes.primary().url:
                    raise
                _bring_up(nodes, node)
                upload.run()
            return True

        return _send_all(send, sent, stop)

    outcomes = nodes.all(bring, stop=stop)
    if any(outcome.error is not None for outcome in outcomes) and not _enough(nodes, outcomes):
        raise _not_everywhere(outcomes)
    step("upload.everywhere")


def _enough(nodes: Nodes, outcomes: Sequence[Outcome[Any]]) -> bool:
    """True when the primary and most nodes succeeded, and the others could not be reached or are not ready."""
    failed = [outcome for outcome in outcomes if outcome.error is not None]
    lost = all(isinstance(outcome.error, Unavailable) for outcome in failed)
    primary = all(outcome.node != nodes.primary().url for outcome in failed)
    return nodes.majority and lost and primary and 2 * len(failed) < len(outcomes)


def _send_all(send: Callable[[SentPart], bool], parts: Sequence[SentPart], stop: threading.Event) -> bool:
    """Send several at once; False when it was stopped from elsewhere.

    Raises: what went wrong first; the others stop, also those on their way to other nodes.
    """
    wrong: list[BaseException] = []

    def attempt(part: SentPart) -> bool:
        if stop.is_set():
            return False
        try:
            return send(part)
        except Stopped:
            return False
        except BaseException as error:
            wrong.append(error)
            stop.set()
            return False

    if len(parts) <= 1:
        sent = [attempt(part) for part in parts]
    else:
        with ThreadPoolExecutor(min(PARTS_AT_ONCE, len(parts)), "send-part") as threads:
            try:
                sent = list(threads.map(attempt, parts))
            except BaseException:
                stop.set()
                raise
    if wrong:
        raise wrong[0]
    return all(sent)


def discard_parts(nodes: Nodes, part_ids: Sequence[str]) -> None:
    """Let nodes forget uploads that nobody will enter; those that cannot be reached let them expire."""

    def discard(node: Connection) -> None:
        for part in part_ids:
            with suppress(MillpondError):
                node.once.request("DELETE", f"/v1/parts/{part}/upload", repeatable=True)

    nodes.all(discard)


def _bring_up(nodes: Nodes, node: Connection) -> None:
    """Let a node hear of maps that the primary knows."""
    position = ask_primary(nodes, "GET", "/v1/node").json()["position"]
    body = {"position": position, "applied": False, "timeout": ANSWER_SECONDS}
    node.request("POST", "/v1/log/replication", json=body, timeout=3 * ANSWER_SECONDS, question=True)


def _not_everywhere(outcomes: Sequence[Outcome[Any]]) -> MillpondError:
    """The error for some failures. A refusal by the primary, or by all nodes, is no fault of a single node."""
    failed = [outcome for outcome in outcomes if outcome.error is not None]
    first = outcomes[0].error or next(outcome.error for outcome in failed)
    assert first is not None
    alike = all(
        type(outcome.error) is type(first) and outcome.error.kind == first.kind for outcome in failed if outcome.error
    )
    everybody = outcomes[0].error is not None or (alike and not any(outcome.value for outcome in outcomes))
    if everybody and isinstance(first, Conflict | Corrupt | Denied | Invalid | NotFound):
        return first
    return Unavailable(
        "the load is not on every node, so it is on none", kind="load_not_everywhere", failed=_reasons(failed),
        hint="mend what is named and load the same data again",
    )  # fmt: skip


def _reasons(failed: Sequence[Outcome[Any]]) -> str:
    return "; ".join(f"{outcome.node}: {_sentence(outcome.error)}" for outcome in failed if outcome.error is not None)


def _sentence(error: MillpondError) -> str:
    values = ", ".join(f"{name}={value}" for name, value in error.values.items() if name != "node")
    return error.message + (f" ({values})" if values else "")


class _Progress:
    """Adds up what several threads send."""

    def __init__(self, advance: Advance | None, total: int) -> None:
        self._advance, self._total, self._lock = advance, total, threading.Lock()

    def __call__(self, count: int) -> None:
        if self._advance is not None and count:
            with self._lock:
                self._advance(count, self._total)


# -- 2 and 3: entered once, known everywhere ----------------------------------------------------------


def enter_load(
    nodes: Nodes, parts: Sequence[PartFile], *, load_id: str, clock: Clock, source: str = "", rejected: int = 0,
    stream: tuple[str, int] | None = None, synchronise: bool = False, answer: Response | None = None,
    void: bool = False, at: Mapping[str, str] = ON_MAIN,
) -> LoadResult:  # fmt: skip
    """Enter uploaded parts as one load; their folders need not be there any more.

    `answer`: that of the primary, when it has entered the load. `void`: there are no parts, but the id is taken. `at`:
    as in `bring_load`.

    Raises:
        Uncertain: kind `load_unconfirmed` when the primary's answer was lost. It may be repeated.
        Unavailable: kind `load_behind`, naming nodes and reasons, when it is entered, but some node has not come up to
            it. It may be repeated.
        Corrupt: kind `part_quarantined`, with `synchronise`.
    """
    began = clock.monotonic()
    body = {
        "load_id": load_id, "parts": [part.manifest.id for part in parts], "source": source, "rejected": rejected,
        "stream": None if stream is None else list(stream), **({"void": True} if void else {}),
    }  # fmt: skip
    if answer is None:
        with confirming(load_id):
            answer = _entered(nodes, body, at)
    step("upload.entered")
    response = answer.json()
    if at:  # a node with branches is alone; it has counted the rows as they are there
        names = ("load", "rows", "parts", "duplicate_parts", "maps", "position", "commit", "rejected")
        return LoadResult(**{name: response[name] for name in names}, seconds=clock.monotonic() - began)
    maps: dict[str, int] = {}
    for part in parts:
        maps[part.manifest.map] = maps.get(part.manifest.map, 0) + part.manifest.rows
    _everywhere(nodes, response, clock, list(maps), there=answer.node, synchronise=synchronise)
    return LoadResult(
        load=response["load"], rows=sum(maps.values()), rejected=rejected, parts=response["parts"],
        duplicate_parts=response["duplicate_parts"], maps=maps, seconds=clock.monotonic() - began,
        position=response["position"], synchronised=synchronise or bool(response.get("synchronised")),
    )  # fmt: skip


@contextmanager
def confirming(load: str) -> Iterator[None]:
    """Say of a load whose answer is lost that it may be entered.

    Raises: `Uncertain`, kind `load_unconfirmed`.
    """
    try:
        yield
    except Unavailable as error:
        if error.kind not in ("node_unreachable", "answer_lost"):
            raise
        raise Uncertain(
            "the primary did not say whether the load is entered", kind="load_unconfirmed", load=load,
            node=error.values.get("node"), reason=error.values.get("reason"),
            hint="load the same data again: what is entered is not entered twice",
        ) from error  # fmt: skip


def _entered(nodes: Nodes, body: dict[str, Any], at: Mapping[str, str]) -> Response:
    """The primary's answer to a load, for the list of nodes that it has."""

    def post(node: Connection) -> Response:
        # A node of an earlier release knows of no epoch, and its list has none.
        sent = body | ({"epoch": nodes.epoch} if nodes.epoch else {})
        return node.request("POST", "/v1/loads", query=at, json=sent, repeatable=True)

    changes = 0
    while True:
        try:
            return nodes.on_primary(post, repeatable=True)
        except Conflict as error:
            changes += 1
            if error.kind != "nodes_changed" or changes > LISTS_MAX or not nodes.relearn():
                raise


def _everywhere(
    nodes: Nodes, response: dict[str, Any], clock: Clock, maps: Sequence[str], *, there: str, synchronise: bool
) -> None:
    outcomes = come_up_to(
        nodes, response["position"], clock, applied=synchronise, maps=maps, there=there, patient=not nodes.majority,
        chain=response.get("chain"),
    )  # fmt: skip
    failed = [outcome for outcome in outcomes if outcome.error is not None]
    for outcome in failed:
        if outcome.error is not None and outcome.error.kind == "part_quarantined":
            raise outcome.error
    if failed and _enough(nodes, outcomes):
        lagging = {"position": response["position"], "without": [outcome.node for outcome in failed]}
        ask_primary(nodes, "POST", "/v1/log/acknowledgement", json=lagging, timeout=ACKNOWLEDGED_SECONDS, question=True)
    elif failed:
        entered = ", ".join(outcome.node for outcome in outcomes if outcome.error is None)
        raise Unavailable(
            "the load is entered, but not every node has it yet", kind="load_behind", load=response["load"],
            entered=entered or nodes.primary().url, failed=_reasons(failed),
            hint="the named nodes will replicate it by themselves; loading the same data again is safe",
        )  # fmt: skip
