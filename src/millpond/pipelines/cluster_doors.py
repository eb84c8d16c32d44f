"""The door of a driver that has one on the network: each side proves that it knows the driver's secret.

    driver ── nonce ──▶ worker
           ◀── nonce, proof of a worker ──
           ── proof of the driver ──▶

Invariants:
* the secret is not sent, and a proof is of use once: it is made of the nonces of both sides, and of who makes it;
* a stranger holds up nobody: it has `SECONDS` for its answer, and there are at most `STRANGERS_MAX` at a time.

Nothing is encrypted, as between the processes of Spark by default: see its settings `spark.network.crypto`.
"""

from __future__ import annotations

import hmac
import re
import socket
import struct
from contextlib import suppress
from threading import BoundedSemaphore
from typing import IO, Final

from millpond.clock import SystemClock

__all__ = ("STRANGERS_MAX", "Door", "admitted_by", "keep_alive")

STRANGERS_MAX: Final = 16
SECONDS: Final = 5
_LINE_BYTES_MAX: Final = 200
_IDLE_SECONDS, _PROBES = 10, 3
_WORKER, _DRIVER = "worker", "driver"


class Door:
    """The door of a driver. Threads may share it."""

    def __init__(self) -> None:
        self.secret = _drawn()
        self._strangers = BoundedSemaphore(STRANGERS_MAX)

    def admits(self, worker: socket.socket, lines: IO[bytes]) -> bool:
        """True for one that knows the secret; what it sends next is its first request."""
        if not self._strangers.acquire(blocking=False):
            return False
        try:
            _wait_at_most(worker, SECONDS)
            nonce = _drawn()
            worker.sendall(f"{nonce}\n".encode())
            theirs, _, proof = _line(lines).partition(" ")
            if not hmac.compare_digest(proof, _proof(self.secret, _WORKER, nonce, theirs)):
                return False
            worker.sendall(f"{_proof(self.secret, _DRIVER, theirs, nonce)}\n".encode())
            _wait_at_most(worker, 0)
        except OSError:
            return False
        finally:
            self._strangers.release()
        keep_alive(worker)
        return True


def admitted_by(driver: socket.socket, lines: IO[bytes], secret: str) -> bool:
    """True when a driver that knows the secret lets this worker in."""
    with suppress(OSError):
        nonce, own = _line(lines), _drawn()
        driver.sendall(f"{own} {_proof(secret, _WORKER, nonce, own)}\n".encode())
        return hmac.compare_digest(_line(lines), _proof(secret, _DRIVER, own, nonce))
    return False


def keep_alive(connection: socket.socket) -> None:
    """Let a connection break within a minute when the machine at its other end is gone."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name in ("TCP_KEEPIDLE", "TCP_KEEPINTVL"):
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), _IDLE_SECONDS)
    if hasattr(socket, "TCP_KEEPCNT"):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _PROBES)


def _drawn() -> str:
    """256 bits by chance."""
    return "".join(SystemClock().random_id() for _ in range(4))


def _wait_at_most(connection: socket.socket, seconds: int) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", seconds, 0))


def _line(lines: IO[bytes]) -> str:
    """A line of hexadecimal numbers; nothing for another one."""
    text = lines.readline(_LINE_BYTES_MAX).decode(errors="replace")
    return text[:-1] if re.fullmatch(r"[0-9a-f ]+\n", text) else ""


def _proof(secret: str, who: str, first: str, second: str) -> str:
    return hmac.new(secret.encode(), f"{who} {first} {second}".encode(), "sha256").hexdigest()
