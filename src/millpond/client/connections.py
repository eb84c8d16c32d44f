"""Lines to nodes: their addresses, the sockets that are kept open, and what it is called when they break."""

from __future__ import annotations

import os
import ssl
import threading
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from http.client import HTTPException
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import urllib3
import urllib3.connection
from urllib3.exceptions import (
    ConnectTimeoutError,
    HTTPError,
    NameResolutionError,
    NewConnectionError,
    ReadTimeoutError,
    SSLError,
)

from millpond.client.stopping import Interrupt
from millpond.error_values import shown_address
from millpond.errors import Invalid, MillpondError, Unavailable, Uncertain
from millpond.tracing import Kind, span

if TYPE_CHECKING:
    from millpond.settings import Settings

__all__ = (
    "Broken", "Busy", "Sockets", "answer_lost", "answers_nothing", "breaking", "check_headers",
    "may_have_token", "node_urls", "request_span", "unreachable", "way_out",
)  # fmt: skip

IDLE_CONNECTIONS_MAX = 8
"""Idle connections to one node that a process keeps; more may be open at once."""


def node_urls(addresses: str | Iterable[str]) -> tuple[str, ...]:
    """The addresses of nodes, from text with commas or from several.

    >>> node_urls("http://n1:7433, http://n2:7433/")
    ('http://n1:7433', 'http://n2:7433')

    Raises: `Invalid` for what is no address.
    """
    pieces = addresses.split(",") if isinstance(addresses, str) else list(addresses)
    urls = tuple(dict.fromkeys(_checked(piece.strip().rstrip("/")) for piece in pieces if piece.strip()))
    if not urls:
        raise Invalid("no node is named", kind="node_url", hint="name one or more, such as http://localhost:7433")
    return urls


def request_span(method: str, url: str, path: str) -> AbstractContextManager[object]:
    """The span of a request that is sent once, to its answer, or to the head of one that is read as it comes."""
    about = {"http.request.method": method, "server.address": urlsplit(url).netloc, "url.path": path}
    return span(method, Kind.CLIENT, "", about)


def may_have_token(url: str, named: Iterable[str]) -> bool:
    """True when a node may be sent the token: its host is that of a named node, and the token stays encrypted.

    >>> may_have_token("https://n1:7434", ["https://n1:7433"])
    True
    >>> may_have_token("http://n1:7433", ["https://n1:7433"]), may_have_token("https://evil", ["https://n1:7433"])
    (False, False)
    """
    node = urlsplit(url)
    return any(
        node.hostname == parts.hostname and (node.scheme == "https" or parts.scheme == "http")
        for parts in map(urlsplit, named)
    )


def _checked(url: str) -> str:
    try:
        parts = urlsplit(url)
        named = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        named = False
    if not named or parts.query or parts.fragment:
        raise Invalid(
            "the address of a node is not understood", kind="node_url", url=shown_address(url),
            hint="such as http://localhost:7433",
        )  # fmt: skip
    if "@" in parts.netloc:
        # It would be sent to no node, and shown by every log, plan and error that names the pond.
        raise Invalid(
            "the address of a node holds credentials", kind="node_url", url=shown_address(url),
            hint="name the token by client.token or MILLPOND_CLIENT_TOKEN, in Spark by spark.millpond.token",
        )  # fmt: skip
    return url


ELSEWHERE = (
    "node_unreachable", "answer_lost", "node_not_ready", "node_starting", "node_stopping", "connections_full",
    "address_connections_full", "objects_unavailable", "request_memory_full", "request_queue_full",
    "request_queue_slow",
)  # fmt: skip
"""The kinds of error after which a reader asks the next node: this one says nothing of the data."""


class Broken(Exception):
    """A lost connection: why, and whether what was sent can have arrived.

    `lasting`: it will be so the next time. `cut`: it was open, so the other end may only have tired of a connection
    that was kept.
    """

    def __init__(self, reason: str, *, sent: bool, lasting: bool = False, cut: bool = False) -> None:
        super().__init__(reason)
        self.sent, self.lasting, self.cut = sent, lasting, cut


class Busy(Exception):
    """A node asks for a moment."""

    def __init__(self, error: MillpondError, seconds: float) -> None:
        super().__init__(str(error))
        self.error, self.seconds = error, seconds


def answers_nothing(error: Exception) -> bool:
    """True for a node that cannot be reached or is not ready: a reader goes on to the next one."""
    return isinstance(error, Unavailable) and error.kind in ELSEWHERE


def unreachable(node: str, reason: object, *, attempts: int = 1, hint: str | None = None) -> Unavailable:
    """The error for a node that does not answer."""
    return Unavailable(
        f"the node cannot be reached after {attempts} {'attempt' if attempts == 1 else 'attempts'}",
        kind="node_unreachable", node=node, reason=str(reason), hint=hint,
    )  # fmt: skip


def answer_lost(node: str, reason: object, *, repeatable: bool) -> Uncertain:
    """The error for a change that was sent, and whose answer never came."""
    again = "ask again: what was done is not done twice"
    return Uncertain(
        "the node's answer was lost", kind="answer_lost", node=node, reason=str(reason),
        hint=again if repeatable else "it may have been done: look before you ask again",
    )  # fmt: skip


def way_out(node: str, broken: Broken) -> str:
    """Advice for a connection that was lost before the request was handled."""
    if broken.lasting and "WRONG_VERSION_NUMBER" in str(broken):
        return f"it speaks no TLS: is it http{node.removeprefix('https')}?"
    if broken.lasting:
        return "name the certificates to trust: tls.ca in millpond.toml, or MILLPOND_TLS_CA"
    if broken.cut and node.startswith("http:"):
        return f"does it speak TLS? then it is https{node.removeprefix('http')}"
    return "is 'millpond serve' running there, and is this its address?"


def check_headers(answer: urllib3.BaseHTTPResponse) -> None:
    """Check that the headers came whole: Python takes the end of a connection for the end of the headers.

    A node says how long its answer is, or sends it in chunks, but for an answer that has no body.

    Raises: `Broken`.
    """
    headers, may_have_body = answer.headers, answer.version == 11 and answer.status not in (204, 304)
    if may_have_body and "Content-Length" not in headers and "Transfer-Encoding" not in headers:
        raise Broken("the connection was cut (within the headers)", sent=True, cut=True)


class _Watched:
    """Makes a connection one that is broken off when an interrupt is set: its socket is watched once it is open."""

    def __init__(self, *args: Any, interrupt: Interrupt | None = None, **options: Any) -> None:
        super().__init__(*args, **options)
        self._interrupt = interrupt

    def connect(self) -> None:
        super().connect()  # type: ignore[misc]  # of the connection it is mixed into
        if self._interrupt is not None:
            self._interrupt.watch(self.sock)  # type: ignore[attr-defined]


class _Connection(_Watched, urllib3.connection.HTTPConnection):
    pass


class _TlsConnection(_Watched, urllib3.connection.HTTPSConnection):
    pass


class _Pool(urllib3.HTTPConnectionPool):
    ConnectionCls = _Connection


class _TlsPool(urllib3.HTTPSConnectionPool):
    ConnectionCls = _TlsConnection


class Sockets:
    """The open connections of this process to one node."""

    def __init__(self, url: str, settings: Settings, interrupt: Interrupt | None = None) -> None:
        self.url, self.settings = url, settings
        self._interrupt = interrupt
        self._pool: tuple[int, urllib3.HTTPConnectionPool] | None = None
        self._lock = threading.Lock()

    def __getstate__(self) -> tuple[str, Settings]:
        return self.url, self.settings

    def __setstate__(self, state: tuple[str, Settings]) -> None:
        self.__init__(*state)  # type: ignore[misc]  # sockets stay where they were opened

    def pool(self) -> urllib3.HTTPConnectionPool:
        """This process's own: a fork that wrote to its parent's sockets would mix up two conversations."""
        pool = self._pool
        if pool is not None and pool[0] == os.getpid():
            return pool[1]
        with self._lock:
            if self._pool is None or self._pool[0] != os.getpid():
                self._pool = (os.getpid(), self.fresh())
            return self._pool[1]

    def fresh(self) -> urllib3.HTTPConnectionPool:
        """Connections that nobody has used."""
        parts, settings = urlsplit(self.url), self.settings
        assert parts.hostname is not None
        client = settings.client
        options: dict[str, Any] = {
            "maxsize": IDLE_CONNECTIONS_MAX, "retries": False,
            "timeout": urllib3.Timeout(connect=client.connect_timeout / 1000, read=client.read_timeout / 1000),
        }  # fmt: skip
        if parts.scheme == "http":
            return _Pool(parts.hostname, parts.port, interrupt=self._interrupt, **options)
        tls = settings.tls
        for name, file in (("ca", tls.ca), ("cert", tls.cert), ("key", tls.key)):
            if file and not Path(file).is_file():
                raise Invalid(
                    "there is no file of certificates there", kind="tls_files", **{f"tls_{name}": file},
                    hint=f"the setting tls.{name} names a file in PEM",
                )  # fmt: skip
        return _TlsPool(
            parts.hostname, parts.port, interrupt=self._interrupt, ca_certs=tls.ca or None,
            cert_file=tls.cert or None, key_file=tls.key or None, **options,
        )  # fmt: skip

    def close(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None and pool[0] == os.getpid():
            pool[1].close()


@contextmanager
def breaking(settings: Settings) -> Iterator[None]:
    """Translate urllib3's errors about lost connections into `Unavailable`."""
    try:
        yield
    except NameResolutionError:
        raise Broken("no host has this name", sent=False) from None
    except NewConnectionError as error:
        raise Broken(_strerror(error), sent=False) from None
    except ConnectTimeoutError:
        raise Broken(f"no connection within {settings.client.connect_timeout / 1000:g} s", sent=False) from None
    except ReadTimeoutError:
        raise Broken("no answer in time", sent=True) from None
    except SSLError as error:
        if any(isinstance(cause, ssl.SSLEOFError | ssl.SSLZeroReturnError) for cause in error.args):
            raise Broken(f"the connection was cut ({_strerror(error)})", sent=True, cut=True) from None
        raise Broken(f"TLS: {_strerror(error)}", sent=False, lasting=True) from None
    except (HTTPError, HTTPException, OSError) as error:
        raise Broken(f"the connection was cut ({_strerror(error)})", sent=True, cut=True) from None


def _strerror(error: BaseException) -> str:
    """The cause beneath, as the system says it."""
    innermost = error
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, OSError) and seen.strerror:
            return seen.strerror
        innermost = seen
        seen = seen.__cause__ or seen.__context__ or _inner(seen)
    return str(innermost)


def _inner(error: BaseException) -> BaseException | None:
    return next((cause for cause in error.args if isinstance(cause, BaseException)), None)
