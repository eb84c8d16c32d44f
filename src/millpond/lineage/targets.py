"""The target of run events: a file of JSON lines, an address that takes POSTs, or a topic of Kafka.

    work ─▶ event ─▶ file
                 └─▶ those that wait ─▶ a thread ─▶ POST
                 └─▶ librdkafka's own queue ─▶ topic

Invariants:
* work waits for no address and no broker, and at its end for at most `END_SECONDS`;
* at most `WAITING_MAX` events wait; what is more, and what cannot be sent, is dropped with a warning.
"""

from __future__ import annotations

import atexit
import logging
import os
from collections import deque
from pathlib import Path
from threading import Condition
from typing import Any, Final, Protocol

from millpond.clock import Clock, SystemClock
from millpond.error_values import shown_address
from millpond.extras import need
from millpond.json_forms import to_json
from millpond.kernel.worker import begin_thread
from millpond.lineage.context import MASK
from millpond.stores.files import append_line
from millpond.workflows.logs.kafka_config import kafka_address

__all__ = ("END_SECONDS", "WAITING_MAX", "Lineage", "wait_sent")

END_SECONDS: Final = 3.0
WAITING_MAX: Final = 1_000
_LOG = logging.getLogger(__name__)
_CLOCK = SystemClock()
_LEFT_ALONE: dict[str, float] = {}
"""Targets that did not answer, each until when it is left alone."""
_SECONDS = 2.0
_PAUSE_SECONDS = 30.0
_PATH = "/api/v1/lineage"
_SENDERS: dict[tuple[int, str], _Sender] = {}
"""The senders of this process, and those of the one that it was forked from, of which no thread is left."""


class Lineage:
    """The lineage of the work on a pond; `namespace` names it. Threads may share it."""

    def __init__(self, target: str, namespace: str, clock: Clock) -> None:
        self.namespace, self.clock, self._target = namespace, clock, target

    def send(self, event: dict[str, Any]) -> None:
        """Send an event, without the secrets of the attempt that it is of; nothing is raised."""
        if _is_left_alone(self._target):
            return
        try:
            body = to_json(MASK.get()(event))
            if "://" in self._target:
                _sender(self._target).send(event["run"]["runId"], body)
            else:
                append_line(Path(self._target), body)
        except Exception as error:  # whatever it is, the work goes on
            _leave_alone(self._target, error)


def wait_sent(seconds: float = END_SECONDS) -> None:
    """Wait until no event of this process waits, or some seconds have passed."""
    for (process, _), sender in tuple(_SENDERS.items()):
        if process == os.getpid():
            sender.wait_sent(seconds)


atexit.register(wait_sent)


class _Sender(Protocol):
    def send(self, run: str, body: bytes) -> None: ...

    def wait_sent(self, seconds: float) -> None: ...


def _sender(target: str) -> _Sender:
    own = os.getpid(), target
    if own not in _SENDERS:
        _SENDERS.setdefault(own, _Topic(target) if target.startswith("kafka://") else _Address(target))
    return _SENDERS[own]


def _is_left_alone(target: str) -> bool:
    return _CLOCK.monotonic() < _LEFT_ALONE.get(target, 0.0)


def _leave_alone(target: str, reason: object) -> None:
    _LEFT_ALONE[target] = _CLOCK.monotonic() + _PAUSE_SECONDS
    shown = shown_address(target) if "://" in target else target
    _LOG.warning("run events are dropped for %g s. target=%s reason=%s", _PAUSE_SECONDS, shown, reason)


class _Address:
    """Posts events, one after another."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._changed = Condition()
        self._queue: deque[bytes] = deque()
        self._sends = False

    def send(self, run: str, body: bytes) -> None:
        with self._changed:
            if len(self._queue) >= WAITING_MAX:
                _leave_alone(self._target, f"{WAITING_MAX} events wait")
            if _is_left_alone(self._target):  # by the thread, a moment ago
                return
            self._queue.append(body)
            if not self._sends:
                self._sends = True
                begin_thread("run events", self._send_all)

    def wait_sent(self, seconds: float) -> None:
        with self._changed:
            _CLOCK.wait_for(self._changed, lambda: not self._sends, _CLOCK.monotonic() + seconds)

    def _send_all(self) -> None:
        while (body := self._next()) is not None:
            try:
                _post(self._target, body)
            except Exception as error:  # whatever it is, the work goes on
                with self._changed:
                    _leave_alone(self._target, error)
                    self._queue.clear()

    def _next(self) -> bytes | None:
        with self._changed:
            if self._queue:
                return self._queue.popleft()
            self._sends = False
            self._changed.notify_all()
            return None


def _post(target: str, body: bytes) -> None:
    import urllib3

    address = urllib3.util.parse_url(target)
    url = target if (address.path or "/") != "/" else target.rstrip("/") + _PATH
    headers = {"Content-Type": "application/json"}
    answer = urllib3.request("POST", url, body=body, headers=headers, timeout=_SECONDS, retries=False)
    if answer.status >= 300:
        raise ConnectionError(f"status {answer.status}")


class _Topic:
    """Produces events to `kafka://host:9092,host:9092/topic`, those of a run in their order."""

    def __init__(self, target: str) -> None:
        need("confluent_kafka")
        from confluent_kafka import Producer

        servers, self._topic, config = kafka_address(target)
        self._target = target
        self._producer = Producer({
            **config, "bootstrap.servers": servers, "log_level": 0, "enable.idempotence": True,
            "message.timeout.ms": round(1000 * _PAUSE_SECONDS),
            "queue.buffering.max.messages": WAITING_MAX, "on_delivery": self._delivered,
        })  # fmt: skip

    def send(self, run: str, body: bytes) -> None:
        self._producer.produce(self._topic, body, run)
        self._producer.poll(0)

    def wait_sent(self, seconds: float) -> None:
        if left := self._producer.flush(seconds):
            self._delivered(f"{left} events wait", None)

    def _delivered(self, error: object, message: object) -> None:
        if error is not None and not _is_left_alone(self._target):
            _leave_alone(self._target, error)
