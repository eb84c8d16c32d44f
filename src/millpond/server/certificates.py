"""The certificate of a node, read again when its files change; and the authorities whose clients may connect.

    a client connects ─▶ did a file change? ─▶ read all, and try them together ─▶ they fit: from this connection on
                                                                              └─ they do not: as before, and a warning

Certificates are renewed every few weeks or days, by a program that writes new files. A node reads them without a
restart. A pair of which one file is new and one is old does not fit, and is passed over until the other is there.
"""

from __future__ import annotations

import logging
import ssl
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from millpond.errors import Invalid

if TYPE_CHECKING:
    import grpc

    from millpond.settings import Settings

__all__ = ("Certificates",)

_LOG = logging.getLogger("millpond.server")


@dataclass(frozen=True, slots=True)
class _Read:
    """The files as they were read together."""

    context: ssl.SSLContext
    key: bytes
    chain: bytes
    authorities: bytes | None


class Certificates:
    """The files that `tls.cert`, `tls.key` and `tls.client_ca` name. Threads may share it."""

    def __init__(self, settings: Settings) -> None:
        """Read the files.

        Raises: `Invalid`, kind `tls_files`, when they cannot be read or do not fit together.
        """
        self._settings = settings
        self._lock = threading.Lock()
        self._stamps = self._stamped()
        self._read = self._fitting()

    def context(self) -> ssl.SSLContext:
        """A context for a server, each of whose connections has the newest certificate."""
        tls = _NewestContext(ssl.PROTOCOL_TLS_SERVER)
        tls.certificates = self
        return tls

    def newest(self) -> _Read:
        """The files as they are, or as they were when they fitted together last."""
        with self._lock:
            stamps = self._stamped()
            if stamps != self._stamps:
                self._stamps = stamps
                try:
                    self._read = self._fitting()
                    _LOG.info("the certificate was read again: %s", self._settings.tls.cert)
                except Invalid as error:
                    _LOG.warning("the certificate from before is used: %s", error)
            return self._read

    def grpc_credentials(self) -> grpc.ServerCredentials:
        """Credentials for a gRPC server, each of whose connections has the newest certificate."""
        import grpc

        shown = self.newest()

        def configured(read: _Read) -> Any:
            return grpc.ssl_server_certificate_configuration([(read.key, read.chain)], read.authorities)

        def changed() -> Any:
            nonlocal shown
            before, shown = shown, self.newest()
            return None if shown is before else configured(shown)

        return grpc.dynamic_ssl_server_credentials(
            configured(shown), changed, require_client_authentication=bool(self._settings.tls.client_ca)
        )

    def _stamped(self) -> list[tuple[int, int, int] | None]:
        """The versions of the files; None for one that is not there."""
        stamps: list[tuple[int, int, int] | None] = []
        for name in (self._settings.tls.cert, self._settings.tls.key, self._settings.tls.client_ca):
            try:
                file = Path(name).stat()
                stamps.append((file.st_ino, file.st_mtime_ns, file.st_size))
            except OSError:
                stamps.append(None)
        return stamps

    def _fitting(self) -> _Read:
        settings = self._settings
        try:
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            context.load_cert_chain(settings.tls.cert, settings.tls.key)
            authorities = None
            if settings.tls.client_ca:
                context.load_verify_locations(settings.tls.client_ca)
                context.verify_mode = ssl.CERT_REQUIRED
                authorities = Path(settings.tls.client_ca).read_bytes()
            return _Read(
                context, Path(settings.tls.key).read_bytes(), Path(settings.tls.cert).read_bytes(), authorities
            )
        except (OSError, ssl.SSLError) as error:
            raise Invalid(
                "the certificate or its key cannot be used", kind="tls_files", tls_cert=settings.tls.cert,
                tls_key=settings.tls.key, tls_client_ca=settings.tls.client_ca, reason=error.strerror or error,
                hint="all are files in PEM, and the key is that of the certificate",
            ) from error  # fmt: skip


class _NewestContext(ssl.SSLContext):
    """A context that wraps each connection as the newest one does."""

    certificates: Certificates

    def wrap_bio(self, *arguments: Any, **options: Any) -> ssl.SSLObject:
        return self.certificates.newest().context.wrap_bio(*arguments, **options)
