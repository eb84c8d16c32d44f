"""Talking to nodes: HTTP over connections that are kept, and what to do when they break.

Two things can go wrong, and they are never confused:

* a **refusal** is any answer of a node that is not a success. It is raised as the error it was, and is final: nothing
  is tried again, and no other node is asked. A node that is busy for a moment (429 or 503 with a small Retry-After) is
  asked again, as often as after lost connections; one that is not the primary is asked no more, the primary is; one
  that is not ready, or has too much to do, says nothing of the data, and readers go on to the next node;
* a **lost connection** is no answer, or half of one: refused, reset, timed out, cut short. It is tried again up to
  `client.attempts` times, `client.retry_delay` apart (at once, when a kept connection was cut), and then is
  `Unavailable`, kind `node_unreachable`. Readers go on to the next node instead. Of a **change** that can have arrived
  it is `Uncertain`, kind `answer_lost`: a change is sent again only where its caller says that it is `repeatable`.

Connections and nodes may be pickled and survive a fork: sockets are opened by the process that uses them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar
from urllib.parse import urlencode, urlsplit

import urllib3

from millpond.client.body import Body
from millpond.client.connections import (
    Broken,
    Busy,
    Sockets,
    answer_lost,
    answers_nothing,
    breaking,
    check_headers,
    may_have_token,
    node_urls,
    request_span,
    unreachable,
    way_out,
)
from millpond.client.moments import Moments
from millpond.client.request_values import encoded
from millpond.client.response import Response
from millpond.client.stopping import Interrupt
from millpond.client.wire_errors import from_wire
from millpond.clock import Clock, SystemClock
from millpond.errors import Conflict, Denied, MillpondError, Unavailable, Uncertain
from millpond.json_forms import stable_json
from millpond.retry import retry
from millpond.tracing import trace_headers

if TYPE_CHECKING:
    from millpond.settings import Settings

__all__ = ("Body", "Connection", "Nodes", "Outcome", "Response")

T = TypeVar("T")

BUSY = (429, 503)
"""Statuses of a node that answers later, when it says so in Retry-After."""
_NOT_HANDED_ON = 503
"""The status of a gateway that has no node; with others, the node may have had the request."""
BUSY_SECONDS_MAX = 10.0
"""A node that asks for more patience than this is not waited for."""
AVOIDED_SECONDS = 10.0
"""The time for which readers prefer the other nodes after one could not be reached."""

Sent = bytes | memoryview | Iterable[bytes] | None


class Connection:
    """The connection to one node. Threads may share it.

    When `stop` is set nothing is tried again; when it is an `Interrupt`, what is being asked is broken off, too.
    """

    def __init__(
        self, url: str, settings: Settings, *, stop: threading.Event | None = None, clock: Clock | None = None,
        named: bool = True, moments: Moments | None = None,
    ) -> None:  # fmt: skip
        """`named`: the user named this host, so that it may have the token. `moments` are those of its pond."""
        self.url, self.settings, self.clock = url, settings, clock or SystemClock()
        self.attempts = max(1, settings.client.attempts)
        self._sockets = Sockets(url, settings, stop if isinstance(stop, Interrupt) else None)
        self._prefix, self._moments = urlsplit(url).path, moments or Moments()
        self._headers = {"User-Agent": "millpond"}
        self.withheld = bool(settings.client.token) and not named
        if settings.client.token and named:
            self._headers["Authorization"] = settings.client.authorization
        self._stop = stop

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_stop": None}

    def _copy(self, **changed: Any) -> Connection:
        copy = Connection.__new__(Connection)
        copy.__dict__.update(self.__dict__ | changed)
        return copy

    @property
    def once(self) -> Connection:
        """The same connection, without retries."""
        return self if self.attempts == 1 else self._copy(attempts=1)

    def until(self, stop: threading.Event) -> Connection:
        """The same connection, given up when an event is set."""
        return self._copy(_stop=stop)

    def close(self) -> None:
        """Close idle connections; they are opened again when something is asked."""
        self._sockets.close()

    def request(
        self, method: str, path: str, *, query: Mapping[str, Any] | None = None, json: Any = None, body: Sent = None,
        headers: Mapping[str, str] | None = None, timeout: float | None = None, repeatable: bool = False,
        question: bool = False,
    ) -> Response:  # fmt: skip
        """Ask, and read the whole answer; 304 is an answer like any other.

        What is no GET is a change, unless it is a `question`. A change that is not `repeatable` is not sent again once
        it can have arrived; it goes out on a connection of its own, for a kept one may have been closed at the other
        end. `body` as an iterator can be sent once only.

        Raises: the node's own error; `Unavailable` kind `node_unreachable`; `Uncertain` kind `answer_lost` for a
        change that may have been made.
        """
        changes = method != "GET" and not question
        again = repeatable or not changes
        return self.persist(
            lambda: self.ask(
                method, path, query=query, json=json, body=body, headers=headers, timeout=timeout, fresh=not again
            ),
            repeatable=again, changes=changes,
        )  # fmt: skip

    def ask(
        self, method: str, path: str, *, query: Mapping[str, Any] | None = None, json: Any = None, body: Sent = None,
        headers: Mapping[str, str] | None = None, timeout: float | None = None, fresh: bool = False,
    ) -> Response:  # fmt: skip
        """Send one request, within `persist`: a lost connection raises `Broken`."""
        with request_span(method, self.url, self._prefix + path):
            arguments = self._arguments(method, path, query, json, body, headers, timeout)
            pool = self._sockets.fresh() if fresh else self._sockets.pool()
            try:
                with breaking(self.settings):
                    answer = pool.urlopen(**arguments)
                    check_headers(answer)
                    response = Response(self.url, answer.status, answer.headers, answer.data)
                    self._moments.see(answer.headers)
            finally:
                if fresh:
                    pool.close()
            return response if _well(answer.status) else self._refused(response)

    def stream(
        self, method: str, path: str, *, query: Mapping[str, Any] | None = None, json: Any = None, body: Sent = None,
        headers: Mapping[str, str] | None = None, timeout: float | None = None,
    ) -> Body:  # fmt: skip
        """Ask, and read the answer as it comes.

        Raises: as `request`, also while it is read.
        """

        def ask() -> Body:
            with request_span(method, self.url, self._prefix + path), breaking(self.settings):
                arguments = self._arguments(method, path, query, json, body, headers, timeout)
                answer = self._sockets.pool().urlopen(**arguments, preload_content=False)
                check_headers(answer)
                self._moments.see(answer.headers)
                if not _well(answer.status):
                    self._refused(Response(self.url, answer.status, answer.headers, answer.read()))
                return Body(self.url, answer, self.settings)

        return self.persist(ask)

    def _arguments(
        self, method: str, path: str, query: Mapping[str, Any] | None, json: Any, body: Sent,
        headers: Mapping[str, str] | None, timeout: float | None,
    ) -> dict[str, Any]:  # fmt: skip
        if self.withheld:
            raise Denied(
                "the token is sent only to nodes that you named", kind="node_not_named", node=self.url,
                hint="name all nodes of the pond: https://n1:7433,https://n2:7433, or `nodes.urls` in millpond.toml",
            )  # fmt: skip
        sent = {**self._headers, **self._moments.headers(), **trace_headers(), **(headers or {})}
        if json is not None:
            # In ASCII, so that any text can be sent: a node refuses what is no UTF-8, and names it.
            body = encoded(json, stable_json)
            sent = {**sent, "Content-Type": "application/json"}
        if query:
            path += "?" + urlencode(query, doseq=True)
        arguments: dict[str, Any] = {
            "method": method, "url": self._prefix + path, "body": body, "headers": sent, "retries": False,
            "redirect": False,
        }  # fmt: skip
        if timeout is not None:
            arguments["timeout"] = urllib3.Timeout(connect=self.settings.client.connect_timeout / 1000, read=timeout)
        return arguments

    def _refused(self, response: Response) -> NoReturn:
        error = from_wire(self.url, response.status, response.data)
        if error is None:
            raise Broken(f"a gateway answered {response.status}", sent=response.status != _NOT_HANDED_ON)
        patience = response.headers.get("Retry-After", "")
        if response.status in BUSY and patience.isdigit() and int(patience) <= BUSY_SECONDS_MAX:
            raise Busy(error, float(patience))
        raise error

    def persist(
        self, ask: Callable[[], T], *, repeatable: bool = True, changes: bool = False,
        enough: Callable[[int], bool] | None = None,
    ) -> T:  # fmt: skip
        """Do what asks this node until it answers, as often as is allowed; `enough` is called with the number of tries.

        Raises: as `request`.
        """
        attempts, arrived = 0, False

        def counted() -> T:
            nonlocal attempts, arrived
            attempts += 1
            try:
                return ask()
            except Broken as error:
                arrived = arrived or error.sent
                raise

        def pause(error: Exception, failures: int, _chance: float) -> float | None:
            if enough(attempts) if enough else attempts >= self.attempts:
                return None
            return self._pause_after(error, failures, repeatable=repeatable)

        try:
            return retry(counted, pause, self.clock, stop=self._stop)
        except (Busy, Broken) as error:
            if changes and arrived:
                raise answer_lost(self.url, error, repeatable=repeatable) from None
            if isinstance(error, Busy):
                raise error.error from None
            raise unreachable(self.url, error, attempts=attempts, hint=way_out(self.url, error)) from None

    def _pause_after(self, error: Exception, failures: int, *, repeatable: bool) -> float | None:
        if isinstance(error, Busy):
            return error.seconds
        if not isinstance(error, Broken) or error.lasting or (error.sent and not repeatable):
            return None
        return 0.0 if error.cut and failures == 1 else self.settings.client.retry_delay / 1000


def _well(status: int) -> bool:
    return 200 <= status < 300 or status == 304


# -- all nodes ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Outcome(Generic[T]):
    """The outcome of a request to one of several nodes: a value, or an error."""

    node: str
    value: T | None
    error: MillpondError | None


class _NoneReachable(Exception):
    """No node could be reached this time."""


class Nodes:
    """The nodes of a pond, the primary first. Threads may share it.

    A node may name others. The token goes to those only whose host the user named, in `urls` or in the setting
    `nodes.urls`, and never without encryption where the user named the host with it.

    The list of nodes may change while a client works. It is taken anew when the primary says that it is another one, or
    that another node is the primary; a list of an earlier epoch is that of a node that has not heard yet.
    """

    def __init__(self, urls: str | Iterable[str], settings: Settings, *, clock: Clock | None = None) -> None:
        self.settings, self.clock = settings, clock or SystemClock()
        named = node_urls(urls)
        self._moments = Moments()
        self._named = (*named, *settings.nodes.urls)
        self.connections = [self._connection(url) for url in named]
        self._spares: list[Connection] = []
        self._avoided: dict[str, float] = {}
        self.majority = settings.nodes.write_to == "majority"
        self.epoch, self.take_whole_loads = 0, True

    def _connection(self, url: str) -> Connection:
        named = may_have_token(url, self._named)
        return Connection(url, self.settings, clock=self.clock, named=named, moments=self._moments)

    @property
    def urls(self) -> tuple[str, ...]:
        """Their addresses."""
        return tuple(connection.url for connection in self.connections)

    @property
    def where(self) -> str:
        """The addresses as one text, to open the pond from elsewhere: there, all of them are named."""
        return ",".join(node.url for node in (*self.connections, *self._spares) if not node.withheld)

    def learn(self) -> dict[str, Any]:
        """Take the list of nodes that the first reachable one has; what it says of itself.

        Raises: `Unavailable` naming each, when none is reachable.
        """
        status: dict[str, Any] = self.first(lambda node: node.request("GET", "/v1/node")).json()
        self._take(status)
        return status

    def relearn(self) -> bool:
        """Ask all nodes for the list, and take the latest; True when it is of a later epoch than before."""
        outcomes = self.all(lambda node: node.once.request("GET", "/v1/node").json())
        lists = [outcome.value for outcome in outcomes if outcome.value is not None]
        latest = max(lists, key=lambda status: int(status.get("epoch", 0)), default=None)
        later = latest is not None and int(latest.get("epoch", 0)) > self.epoch
        if latest is not None and later:
            self._take(latest)
        return later

    def _take(self, status: Mapping[str, Any]) -> None:
        """Take the list of nodes that a node has, unless it is of an earlier epoch than the known one."""
        epoch = status.get("epoch", 0)
        if not isinstance(epoch, int) or epoch < self.epoch:
            return
        if status.get("role") == "equal":
            # Each of them is as good as all: one is used, and the others stand by.
            self.connections, self._spares = self.connections[:1], [*self.connections[1:], *self._spares]
            return
        self.epoch = epoch
        if "write_to" in status:
            self.majority = status["write_to"] == "majority"
        urls = node_urls(status.get("nodes") or ()) if status.get("nodes") else (self.urls[0],)
        by_url = {connection.url: connection for connection in self.connections}
        self.connections = [by_url.get(url) or self._connection(url) for url in urls]

    def close(self) -> None:
        """Close idle connections."""
        for connection in (*self.connections, *self._spares):
            connection.close()

    def _at_any(self, act: Callable[[], T], *, repeatable: bool) -> T:
        """The result of what asks the node in use; of equal nodes, of the next when that one answers nothing. Where an
        answer was lost, what is `repeatable` is done again: there, it is not done twice.
        """
        for _ in self._spares:
            node = self.connections[0]
            try:
                return act()
            except Unavailable as error:
                if not answers_nothing(error) or (isinstance(error, Uncertain) and not repeatable):
                    raise
                self.leave(node)
        return act()

    def leave(self, node: Connection) -> bool:
        """Use another of equal nodes than this one, from now on; False when there is none."""
        if self._spares and self.connections[0] is node:
            self.connections, self._spares = [self._spares[0]], [*self._spares[1:], node]
        return bool(self._spares)

    # -- reading: one is enough -----------------------------------------------------------------------

    def first(self, ask: Callable[[Connection], T]) -> T:
        """The answer of the first node that is ready, in order; those that lately were not come last.

        All are tried before any is tried again. What a ready node answers is final, also when it refuses.

        Raises: what the node answers; `Unavailable` naming every node when none can be reached.
        """
        first = self.connections[0]
        if len(self.connections) == 1:
            return self._at_any(lambda: ask(self.connections[0]), repeatable=True)
        failed: dict[str, Unavailable] = {}
        pause = self.settings.client.retry_delay / 1000
        try:
            return retry(
                lambda: self._first(ask, failed),
                lambda error, failures, _: (
                    pause if isinstance(error, _NoneReachable) and failures < first.attempts else None
                ),
                self.clock,
            )
        except _NoneReachable:
            raise _none_reachable(failed, first.attempts) from None

    def _first(self, ask: Callable[[Connection], T], failed: dict[str, Unavailable]) -> T:
        for node in self._by_hope():
            try:
                answer = ask(node.once)
            except Unavailable as error:
                if not answers_nothing(error):
                    raise
                failed[node.url] = error
                self._avoided[node.url] = self.clock.monotonic() + AVOIDED_SECONDS
            else:
                if self._avoided:
                    self._avoided.pop(node.url, None)
                return answer
        raise _NoneReachable

    def _by_hope(self) -> Sequence[Connection]:
        if not self._avoided:
            return self.readable
        now = self.clock.monotonic()
        return sorted(self.readable, key=lambda node: self._avoided.get(node.url, 0.0) > now)

    @property
    def readable(self) -> Sequence[Connection]:
        """The nodes that may have the token, or all when none may: then the error names one."""
        return [node for node in self.connections if not node.withheld] or self.connections

    # -- writing: the primary, or all of them ---------------------------------------------------------

    def primary(self) -> Connection:
        """The node that is first in the list."""
        return self.connections[0]

    def on_primary(self, ask: Callable[[Connection], T], *, repeatable: bool = False) -> T:
        """The answer of the primary, or of one of equal nodes. A node that is not the primary names it, and is believed
        once.

        When it cannot be reached, the list is taken anew; a request that is `repeatable` goes to the new primary, then.

        Raises: what it answers; `Unavailable` when it cannot be reached.
        """
        return self._at_any(lambda: self._on_primary(ask, repeatable), repeatable=repeatable)

    def _on_primary(self, ask: Callable[[Connection], T], repeatable: bool) -> T:
        first = self.primary()
        try:
            return ask(first)
        except Unavailable as error:
            moved = answers_nothing(error) and self.relearn() and self.primary().url != first.url
            if not (moved and repeatable):
                raise
            return ask(self.primary())
        except Conflict as error:
            named = error.values.get("primary")
            if error.kind != "not_primary" or not isinstance(named, str) or (named == first.url and not self.epoch):
                raise
            if error.values.get("epoch"):
                self._take(error.values)
        return self._on_named(named, ask)

    def _on_named(self, url: str, ask: Callable[[Connection], T]) -> T:
        """The answer of a node that was named as the primary. It may not have heard yet that it is."""
        (url,) = node_urls(url)
        by_url = {connection.url: connection for connection in self.connections}
        node, pause = by_url.get(url) or self._connection(url), self.settings.client.retry_delay / 1000

        def policy(error: Exception, failures: int, _chance: float) -> float | None:
            unsettled = isinstance(error, Conflict) and error.kind == "not_primary" and self.epoch > 0
            return pause if unsettled and failures < node.attempts else None

        try:
            return retry(lambda: ask(node), policy, self.clock)
        except Conflict as error:
            if error.kind != "not_primary" or not self.epoch:
                raise
            self.relearn()
            message = "the nodes do not agree yet which of them is the primary"
            raise Unavailable(message, kind="primary_unsettled", node=url, hint="ask again in a moment") from error

    def all(self, ask: Callable[[Connection], T], *, stop: threading.Event | None = None) -> list[Outcome[T]]:
        """The answers of all nodes, requested concurrently, in order; `stop` is set when the caller is interrupted."""
        if self._spares:
            return [_outcome(self.connections[0], lambda _: self.first(ask))]
        if len(self.connections) == 1:
            return [_outcome(self.connections[0], ask)]
        with ThreadPoolExecutor(len(self.connections), thread_name_prefix="node") as threads:
            try:
                return list(threads.map(lambda node: _outcome(node, ask), self.connections))
            except BaseException:
                if stop is not None:
                    stop.set()
                raise


def _outcome(node: Connection, ask: Callable[[Connection], T]) -> Outcome[T]:
    try:
        return Outcome(node.url, ask(node), None)
    except MillpondError as error:
        return Outcome(node.url, None, error)


def _none_reachable(failed: Mapping[str, Unavailable], attempts: int) -> Unavailable:
    reasons = "; ".join(f"{node}: {error.values.get('reason', error)}" for node, error in failed.items())
    unready = [error for error in failed.values() if error.kind != "node_unreachable"]
    if unready:
        hint = "a node becomes ready by itself when its reason is gone"
        return Unavailable("no node is ready", kind=unready[0].kind, node=", ".join(failed), reason=reasons, hint=hint)
    return unreachable(
        ", ".join(failed), reasons, attempts=attempts, hint="no node answers: is 'millpond serve' running?"
    )
