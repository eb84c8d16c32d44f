"""Redis servers: one, or the primaries of a cluster; their connections, and calls that find their server.

Calls are made here and not by redis-py's own clients, for these send a call again when its answer is lost, and an
append without a source would be there twice.

Invariants:
* a call that may have reached a server is sent again only when it may be repeated; else the loss is `Uncertain`;
* a call that a server declined without a deed (moved, starting, unknown script) is sent again, to its server by then;
* a server that evicts keys is not used.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NamedTuple

import redis
from redis.backoff import NoBackoff
from redis.crc import key_slot
from redis.retry import Retry

from millpond.clock import Clock
from millpond.errors import Closed, Invalid, MillpondError, Unavailable, Uncertain
from millpond.events.protocol import Losses
from millpond.events.redis.address import Address, Location
from millpond.events.redis.connections import Argument, Connections, Line
from millpond.events.redis.errors import is_passing, is_unmarked, translated
from millpond.events.redis.keys import PondKeys
from millpond.events.redis.scripts import Script
from millpond.kernel.steps import step

__all__ = ("Call", "Servers", "script_call", "script_command")

CONNECT_SECONDS = 5
SILENCE_SECONDS = 30
"""A server that answers nothing for so long counts as lost."""
PATIENCE_SECONDS = 10.0
"""For how long a cluster may be without a primary for a key, or a server may be starting, before a call fails."""
PAUSE_SECONDS = 0.1
FLIGHT_CALLS = 500
"""Calls that are sent before their answers are read."""
SCAN_KEYS = 500
REDIS_MAJOR = 7
CHECK_SECONDS = 60.0
"""A server is asked so often if it is still set as it must be."""
REPLICAS_MS = 1_000
"""Replicas have so long to say that they have an append."""

_NO_ANSWER = object()
_NETWORK = (redis.exceptions.ConnectionError, redis.exceptions.TimeoutError, OSError)


def _as_it_is(answer: Any) -> Any:
    return answer


class Call(NamedTuple):
    """A command about keys of one shard, which may be made when it is sent; the script that it runs, if it does.

    `parsed` makes of the answer what the caller gets, while the server works on the calls behind; it raises nothing.
    """

    shard: int
    command: tuple[Argument, ...] | Callable[[], tuple[Argument, ...]]
    script: Script | None = None
    parsed: Callable[[Any], Any] = _as_it_is

    def made(self) -> tuple[Argument, ...]:
        """The command."""
        return self.command if isinstance(self.command, tuple) else self.command()


def script_call(script: Script, shard: int, keys: Sequence[bytes], arguments: Sequence[Argument]) -> Call:
    """A call of a script."""
    return Call(shard, script_command(script, keys, arguments), script)


def script_command(script: Script, keys: Sequence[bytes], arguments: Sequence[Argument]) -> tuple[Argument, ...]:
    """The command that runs a script."""
    return (b"EVALSHA", script.sha, len(keys), *keys, *arguments)


@dataclass(slots=True)
class _Attempt:
    """The outcome of sending calls once: which of them to send again, at once or later, and what went wrong."""

    again: list[int] = field(default_factory=list)
    waits: bool = False
    moved: bool = False
    unmarked: bool = False
    lost: Exception | None = None
    lacking: int = 0
    failed: Exception | None = None
    reason: Exception | None = None


class Servers:
    """The servers behind a URL, reached with the first call; safe to share between threads."""

    def __init__(self, location: Location, pond_keys: PondKeys, clock: Clock) -> None:
        self.location = location
        self._keys = pond_keys
        self._clock = clock
        self._slots = [key_slot(tag.encode()) for tag in pond_keys.tags]
        self._lock = threading.Lock()
        self._connections: dict[Address, Connections] = {}
        self._checked: set[Address] = set()
        self._check_due = 0.0
        self.losses = Losses()
        self.settle: Callable[[], None] = lambda: None
        """Makes what is missing in the place: called now and then, and when a script misses it."""
        self._routes: list[Address | None] = [None] * len(self._slots)
        self._is_known = False
        self._is_cluster = False
        self.closed = threading.Event()

    def address_of(self, shard: int) -> Address | None:
        """The server of a shard, as far as it is known."""
        return self._routes[shard]

    def is_cluster(self) -> bool:
        """True when shards are spread over the servers of a cluster.

        Raises: as `refresh`.
        """
        if not self._is_known:
            self.discover()
        return self._is_cluster

    def options(self, address: Address) -> dict[str, Any]:
        """The options of a connection to a server, as redis-py takes them.

        Raises:
            Closed: the store was closed.
        """
        self._check_open()
        return {
            **self.location.options, "host": address.host, "port": address.port, "socket_timeout": SILENCE_SECONDS,
            "socket_connect_timeout": CONNECT_SECONDS, "retry": Retry(NoBackoff(), 0), "protocol": 2,
            "client_name": "millpond",
        }  # fmt: skip

    def _connections_to(self, address: Address) -> Connections:
        if (connections := self._connections.get(address)) is not None:
            return connections
        with self._lock:
            connections = self._connections.get(address)
            if connections is None:
                connections = self._connections[address] = Connections(self.options(address))
            return connections

    def run(self, calls: Sequence[Call], *, repeat: bool, too_few: list[Uncertain] | None = None) -> list[Any]:
        """The answers to calls, in their order; calls to one shard are made in their order.

        Where too few replicas have what was done, `too_few` takes that error, if it is given.

        Raises:
            Unavailable: no call was made. `Uncertain`: some were, or may have been; never with `repeat`.
            Corrupt, Invalid: a script found damage, or rows of another version; a server evicts keys, or is too old.
        """
        replies: dict[int, Any] = {}
        lacking = 0
        self.discover()
        if len(calls) == 1 and (answer := self._answer(calls[0], repeat=repeat)) is not _NO_ANSWER:
            return [answer]
        for start in range(0, len(calls), FLIGHT_CALLS):
            try:
                flight = range(start, min(start + FLIGHT_CALLS, len(calls)))
                lacking = self._run_flight(calls, flight, replies, lacking, repeat=repeat)
            except Unavailable as error:
                if repeat or not replies or isinstance(error, Uncertain):
                    raise
                raise self._uncertain() from error
        if lacking:
            lacked = Uncertain(
                "the events are stored, but too few replicas have them", kind="redis_replicas",
                place=self.location.shown, lacking=lacking, replicas=self.location.replicas,
                hint="deliver the events again: with a source, those that are stored are left out",
            )  # fmt: skip
            if too_few is None:
                raise lacked
            too_few.append(lacked)
        return [replies[position] for position in range(len(calls))]

    def scan(self, pattern: bytes) -> Iterator[list[bytes]]:
        """The keys of all servers that a pattern fits, page by page; a key may come twice.

        Raises: as `refresh`.
        """
        self.discover()
        for address in sorted({address for address in self._routes if address is not None}):
            cursor = b"0"
            while True:
                try:
                    cursor, page = self._command(address, "SCAN", cursor, "MATCH", pattern, "COUNT", SCAN_KEYS)
                except (redis.exceptions.RedisError, OSError) as error:
                    raise translated(error, self.location.shown) from error
                yield page
                if cursor == b"0":
                    break

    def run_quietly(self, call: Call) -> None:
        """Make a call that tidies up; it does not matter much when it fails."""
        with suppress(MillpondError):
            self.run([call], repeat=True)

    def _answer(self, call: Call, *, repeat: bool) -> Any:
        """The answer to a lone call, or `_NO_ANSWER`: nothing was done yet, and there is more to do than to send it."""
        address = self._routes[call.shard]
        if address is None or (self.location.replicas and not repeat):
            return _NO_ANSWER
        free = self._connections_to(address)
        try:
            line = free.take()
        except _NETWORK:
            return _NO_ANSWER
        try:
            line.send_one(call.made())
            step("events.redis_sent")
            return call.parsed(line.receive())
        except (redis.exceptions.NoScriptError, redis.exceptions.MovedError, redis.exceptions.AskError):
            return _NO_ANSWER
        except (redis.exceptions.RedisError, OSError) as error:
            if is_passing(error) or is_unmarked(error) or (repeat and self._is_cluster):
                return _NO_ANSWER
            if isinstance(error, _NETWORK) and not repeat:
                raise self._uncertain() from error
            raise translated(error, self.location.shown) from error
        finally:
            free.give_back(line)

    def _run_flight(
        self, calls: Sequence[Call], flight: range, replies: dict[int, Any], lacking: int, *, repeat: bool
    ) -> int:
        """Make calls; how many replicas lacked one. Where some are known to lack, no more are waited for."""
        pending, due, moves = list(flight), self._clock.monotonic() + PATIENCE_SECONDS, 0
        while pending:
            attempt = self._attempt(calls, pending, replies, 0 if repeat or lacking else self.location.replicas)
            if attempt.failed is not None:
                raise translated(attempt.failed, self.location.shown) from attempt.failed
            if attempt.lost is not None and not repeat:
                raise self._uncertain() from attempt.lost
            lacking = max(lacking, attempt.lacking)
            if attempt.unmarked:
                self.settle()
            pending = attempt.again
            moves += attempt.moved
            # Servers that disagree who has a slot are given a moment.
            if attempt.waits or (attempt.moved and moves > 1):
                assert attempt.reason is not None
                if self._clock.monotonic() >= due or not (self._is_cluster or is_passing(attempt.reason)):
                    raise translated(attempt.reason, self.location.shown) from attempt.reason
                self._clock.wait(self.closed, self._clock.monotonic() + PAUSE_SECONDS)
            if attempt.moved or attempt.waits:
                self._refresh_quietly()
        return lacking

    def _uncertain(self) -> Uncertain:
        return Uncertain(
            "the answer of Redis was lost", kind="uncertain", place=self.location.shown,
            hint="deliver the events again: with a source, those that are stored are left out",
        )  # fmt: skip

    def _attempt(
        self, calls: Sequence[Call], pending: Sequence[int], replies: dict[int, Any], replicas: int
    ) -> _Attempt:
        attempt = _Attempt()
        waits = [("WAIT", replicas, REPLICAS_MS)] if replicas else []
        groups: dict[Address, list[int]] = {}
        for position in pending:
            if (address := self._routes[calls[position].shard]) is None:
                _later(attempt, [position], redis.exceptions.ClusterDownError("no server has the slot"))
            else:
                groups.setdefault(address, []).append(position)
        sent = [
            (address, free, line, members) for address, members in groups.items()
            if (line := self._send(free := self._connections_to(address), calls, members, attempt, waits)) is not None
        ]  # fmt: skip
        step("events.redis_sent")
        for address, free, line, members in sent:
            try:
                self._receive(line, address, calls, members, attempt, replies, replicas)
            finally:
                free.give_back(line)
        return attempt

    def _send(
        self, free: Connections, calls: Sequence[Call], members: list[int], attempt: _Attempt,
        waits: Sequence[tuple[Argument, ...]],
    ) -> Line | None:  # fmt: skip
        """Send calls to a server; None when they did not all go."""
        try:
            line = free.take()
        except _NETWORK as error:
            if isinstance(error, redis.exceptions.AuthenticationError):
                attempt.failed = error
            _later(attempt, members, error)
            return None
        try:
            line.send(chain((calls[position].made() for position in members), waits))
        except _NETWORK as error:
            line.close()
            attempt.lost = error
            _later(attempt, members, error)
            return None
        return line

    def _receive(
        self, line: Line, address: Address, calls: Sequence[Call], members: list[int], attempt: _Attempt,
        replies: dict[int, Any], replicas: int,
    ) -> None:  # fmt: skip
        unknown: dict[bytes, Script] = {}
        for at, position in enumerate(members):
            try:
                replies[position] = calls[position].parsed(line.receive())
            except redis.exceptions.NoScriptError:
                script = calls[position].script
                assert script is not None
                unknown[script.sha] = script
                attempt.again.append(position)
            except redis.exceptions.MovedError as error:
                attempt.again.append(position)
                attempt.moved, attempt.reason = True, error
            except redis.exceptions.AskError as error:
                self._ask(Address(error.host, error.port), calls, position, attempt, replies)
            except redis.exceptions.ResponseError as error:
                _refused(attempt, position, error)
            except _NETWORK as error:
                if not is_passing(error):
                    attempt.lost = error
                _later(attempt, members[at:], error)
                return
        if replicas:
            try:
                lacking = replicas - int(line.receive())
                if any(position in replies for position in members):  # else nothing was made that they could have
                    attempt.lacking = max(attempt.lacking, lacking)
            except _NETWORK as error:
                attempt.lost = error
                return
        for script in unknown.values():
            try:
                line.call("SCRIPT", "LOAD", script.source)
            except redis.exceptions.ResponseError as error:
                attempt.failed = error
            except _NETWORK:
                return  # the call fails too, when it is made again

    def _ask(
        self, address: Address, calls: Sequence[Call], position: int, attempt: _Attempt, replies: dict[int, Any]
    ) -> None:
        """Make a call at the server that a slot is being moved to."""
        call = calls[position]
        free = self._connections_to(address)
        try:
            line = free.take()
        except _NETWORK as error:
            _later(attempt, [position], error)
            return
        try:
            if call.script is not None:
                line.call("SCRIPT", "LOAD", call.script.source)
            line.send([("ASKING",), call.made()])
            line.receive()
            replies[position] = call.parsed(line.receive())
        except redis.exceptions.ResponseError as error:
            _refused(attempt, position, error)
        except _NETWORK as error:
            attempt.lost = error
            _later(attempt, [position], error)
        finally:
            free.give_back(line)

    # --- which server has what

    def discover(self) -> None:
        """Find the servers, when that has not been done, or not lately: their settings may have changed.

        Raises: as `refresh`.
        """
        if not self._is_known or self._clock.monotonic() >= self._check_due:
            self._checked.clear()
            self.refresh()
            self._check_due = self._clock.monotonic() + CHECK_SECONDS
            self.settle()

    def refresh(self) -> None:
        """Find out which server has which shard.

        Raises:
            Unavailable: no server can be reached, or it does not let the user in.
            Invalid: a server evicts keys, or is too old.
        """
        error: Exception | None = None
        addresses = [address for address in dict.fromkeys(self._routes) if address is not None]
        for address in dict.fromkeys([*addresses, *self.location.seeds]):
            try:
                routes = self._routes_by(address)
            except (redis.exceptions.RedisError, OSError) as failure:
                error = failure
                continue
            self._routes, self._is_known = routes, True
            return
        assert error is not None
        raise translated(error, self.location.shown) from error

    def _refresh_quietly(self) -> None:
        with suppress(MillpondError):
            self.refresh()

    def _routes_by(self, address: Address) -> list[Address | None]:
        about = self._check(address)
        self._is_cluster = about.get("redis_mode") == "cluster"
        if not self._is_cluster:
            return [address] * len(self._slots)
        owners: dict[int, Address] = {}
        for first, last, (host, port, *_), *_ in self._command(address, "CLUSTER", "SLOTS"):
            owner = Address(host.decode() or address.host, port)
            owners |= {slot: owner for slot in self._slots if first <= slot <= last}
        for owner in set(owners.values()):
            if owner not in self._checked:
                with suppress(redis.exceptions.RedisError, OSError):
                    self._check(owner)
        return [owners.get(slot) for slot in self._slots]

    def _check(self, address: Address) -> dict[str, str]:
        """The server's own account of itself.

        Raises:
            Invalid: it cannot be used.
        """
        lines = self._command(address, "INFO").decode("utf-8", "replace").splitlines()
        about = dict(line.split(":", 1) for line in lines if ":" in line)
        policy, version = about.get("maxmemory_policy", "noeviction"), about.get("redis_version", "0")
        self.losses.evicting.discard(str(address))
        if policy != "noeviction":
            self.losses.evicting.add(str(address))
            raise Invalid(
                "Redis is set to evict keys when its memory is full, and events would vanish", kind="redis_evicts",
                server=str(address), maxmemory_policy=policy, hint="set its maxmemory-policy to noeviction",
            )  # fmt: skip
        if int(version.split(".")[0]) < REDIS_MAJOR:
            raise Invalid(
                "this Redis is too old", kind="redis_version", server=str(address), version=version,
                hint=f"use Redis {REDIS_MAJOR} or later",
            )  # fmt: skip
        self._checked.add(address)
        return about

    def _command(self, address: Address, *command: Argument) -> Any:
        free = self._connections_to(address)
        line = free.take()
        try:
            return line.call(*command)
        finally:
            free.give_back(line)

    def close(self) -> None:
        """Close the connections."""
        with self._lock:
            self.closed.set()
            held, self._connections = list(self._connections.values()), {}
        for connections in held:
            connections.close()

    def _check_open(self) -> None:
        if self.closed.is_set():
            raise Closed("the streams are closed", kind="events_closed")


def _refused(attempt: _Attempt, position: int, error: redis.exceptions.ResponseError) -> None:
    if is_passing(error) or isinstance(error, redis.exceptions.AskError):
        _later(attempt, [position], error)
    elif is_unmarked(error):
        attempt.again.append(position)
        attempt.unmarked = True
    else:
        attempt.failed = error


def _later(attempt: _Attempt, positions: Sequence[int], reason: Exception) -> None:
    attempt.again.extend(positions)
    attempt.waits, attempt.reason = True, reason
