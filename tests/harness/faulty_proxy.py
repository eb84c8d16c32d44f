"""A faulty proxy: a TCP relay on the loopback that breaks connections when a test says so.

    with FaultyProxy(port_of_the_node) as proxy:
        proxy.trouble(Trouble("cut", match=b"PUT /v1/parts/", after=100_000))
        …                                   # a client of proxy.port loses the connection in mid-upload, once

Invariants:
* bytes pass in order and unchanged, but for what a trouble does;
* a trouble waits for the first connection whose request holds `match`, then for `after` bytes in its direction,
  counted from the match on; it strikes `times` times and is over;
* a proxy that is down refuses new connections, and has reset those it carried.
"""

from __future__ import annotations

import socket
import struct
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ("FaultyProxy", "Trouble")

CHUNK_BYTES = 64 << 10


@dataclass(slots=True)
class Trouble:
    """A fault of a connection, once or more often.

    `act`: `cut` resets it, `flip` changes one byte, `hold` keeps back what follows until the proxy is mended or cut.
    `down`: the bytes that answer are meant, not those that ask.
    """

    act: str
    match: bytes = b""
    after: int = 0
    down: bool = False
    times: int = 1
    struck: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        assert self.act in ("cut", "flip", "hold"), self.act


class _Call:
    """One connection through the proxy: two sockets, two threads that pump."""

    def __init__(self, proxy: FaultyProxy, near: socket.socket, far: socket.socket) -> None:
        self.proxy, self.near, self.far = proxy, near, far
        self.sent = b""
        self.trouble: Trouble | None = None
        self.mended: threading.Event | None = None
        self.left = 0
        self.lock = threading.Lock()

    def start(self) -> None:
        for source, target, down in ((self.near, self.far, False), (self.far, self.near, True)):
            threading.Thread(target=self._pump, args=(source, target, down), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket, down: bool) -> None:
        try:
            while data := source.recv(CHUNK_BYTES):
                if not self._pass(data, target, down):
                    return
            target.shutdown(socket.SHUT_WR)
        except OSError:
            self.reset()
        finally:
            self.proxy.ended(self, down)

    def _pass(self, data: bytes, target: socket.socket, down: bool) -> bool:
        """Hand bytes on, as far as the trouble lets them; False when the connection is over."""
        self.proxy.delay()
        if down:
            self.proxy.bytes_down += len(data)
        else:
            self.proxy.bytes_up += len(data)
        seen = 0 if down else self._notice(data)
        with self.lock:
            trouble = self.trouble
            strikes = trouble is not None and trouble.down == down and len(data) - seen > self.left
            if trouble is not None and trouble.down == down and not strikes:
                self.left -= len(data) - seen
            at = seen + self.left
            if strikes:
                self.trouble = None
        if not strikes or trouble is None:
            target.sendall(data)
            return True
        if trouble.act == "flip":
            data = data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :]
            trouble.struck.set()
            target.sendall(data)
            return True
        target.sendall(data[:at])
        trouble.struck.set()
        if trouble.act == "hold":
            self.proxy.held.wait()
            target.sendall(data[at:])
            return True
        self.reset()
        return False

    def _notice(self, data: bytes) -> int:
        """Look for what a trouble waits for; how many bytes of `data` come before its end."""
        if self.trouble is not None:
            return 0
        known = len(self.sent)
        whole = self.sent + data
        self.sent = whole[-256:]
        trouble, end = self.proxy.claim(whole)
        if trouble is None:
            return 0
        with self.lock:
            self.trouble, self.left, self.mended = trouble, trouble.after, self.proxy.held
        self.sent = b""
        return max(0, end - known)

    def reset(self) -> None:
        """End both sides at once, so that neither takes it for a proper end."""
        for end in (self.near, self.far):
            with suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            with suppress(OSError):
                end.close()


class FaultyProxy:
    """A relay from a port of its own to the port of a node on this machine. Close it, or use it as a context."""

    def __init__(self, target: int, *, port: int = 0) -> None:
        self.target = target
        self.bytes_up = self.bytes_down = 0  # roughly, when several connections carry at once
        self._troubles: list[Trouble] = []
        self._calls: set[_Call] = set()
        self._lock = threading.Lock()
        self.held = threading.Event()
        self._down = False
        self._delay_seconds = 0.0
        self._listener: socket.socket | None = None
        self._listen(port)

    def _listen(self, port: int) -> None:
        listener = socket.create_server(("127.0.0.1", port), backlog=256)
        self.port: int = listener.getsockname()[1]
        self._listener = listener
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()

    @property
    def url(self) -> str:
        """The URL of the node through this proxy."""
        return f"http://127.0.0.1:{self.port}"

    def trouble(self, trouble: Trouble) -> Trouble:
        """Let something happen to what passes from now on; its `struck` is set when it has."""
        with self._lock:
            self._troubles.append(trouble)
        return trouble

    def cut(self) -> None:
        """Reset every connection and refuse new ones until the proxy is mended."""
        with self._lock:
            self._down = True
        self._reset_all()

    def slow(self, seconds: float) -> None:
        """Let bytes wait so long before they pass, each time that some come, until the proxy is mended."""
        self._delay_seconds = seconds

    def delay(self) -> None:
        """Wait as long as bytes have to."""
        if self._delay_seconds:
            self.held.wait(self._delay_seconds)

    def mend(self) -> None:
        """Carry everything again, and forget troubles that did not strike."""
        with self._lock:
            self._down = False
            self._delay_seconds = 0.0
            self._troubles.clear()
            held, self.held = self.held, threading.Event()
        held.set()

    def close(self) -> None:
        """End it all."""
        listener, self._listener = self._listener, None
        if listener is not None:
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)  # wakes who waits in accept
            listener.close()
        self.mend()
        self._reset_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _reset_all(self) -> None:
        with self._lock:
            calls = list(self._calls)
        for call in calls:
            call.reset()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                near, _ = listener.accept()
            except OSError:
                return
            far = None
            if not self._down:
                with suppress(OSError):
                    far = socket.create_connection(("127.0.0.1", self.target), timeout=10)
            if far is None:
                near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                near.close()
                continue
            far.settimeout(None)
            for end in (near, far):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            call = _Call(self, near, far)
            with self._lock:
                self._calls.add(call)
            call.start()

    def claim(self, data: bytes) -> tuple[Trouble | None, int]:
        """The first trouble that waits for what was asked, and where in it the match ends."""
        with self._lock:
            for trouble in self._troubles:
                at = data.find(trouble.match)
                if at >= 0:
                    trouble.times -= 1
                    if trouble.times <= 0:
                        self._troubles.remove(trouble)
                    return trouble, at + len(trouble.match)
        return None, 0

    def _give_back(self, call: _Call) -> None:
        """Leave a trouble to the next connection when this one ended before it struck, unless all was mended since."""
        with call.lock:
            trouble, call.trouble = call.trouble, None
        with self._lock:
            if trouble is not None and call.mended is self.held:
                trouble.times += 1
                if trouble not in self._troubles:
                    self._troubles.append(trouble)

    def ended(self, call: _Call, down: bool) -> None:
        self._give_back(call)
        if down:
            with suppress(OSError):
                call.near.close()
            with suppress(OSError):
                call.far.close()
            with self._lock:
                self._calls.discard(call)
