"""Objects in a bucket of S3, or of a server that speaks its protocol, below a prefix.

* A write is one request, or a multipart upload that nobody sees before its last request. A writer that dies in the
  middle leaves parts that only the bucket's own rule for incomplete uploads removes.
* `swap` is one request with `If-None-Match: *` or `If-Match`; that it is atomic is the server's promise. It is not
  sent again by itself: a lost answer is `Uncertain`, so that `Conflict` always speaks of another writer.
* Credentials come from the environment (`AWS_ACCESS_KEY_ID` …), else a profile, or from what the machine's role gives.
"""

from __future__ import annotations

import os
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from datetime import timedelta
from itertools import chain
from queue import Full, Queue
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast
from urllib.parse import urlsplit

import pyarrow as pa
from obstore import sign
from obstore.exceptions import BaseError
from obstore.store import S3Store

from millpond.clock import SystemClock
from millpond.errors import Invalid, NotFound, Unavailable, Uncertain
from millpond.retry import Backoff, retry
from millpond.stores.objects.bucket_errors import CREDENTIALS, BehindTheEnd, bucket_error, message_of, unreadable
from millpond.stores.objects.profile import ENDPOINTS, profile_settings
from millpond.stores.objects.protocol import (
    Level,
    ObjectInfo,
    ObjectStore,
    TaggedObject,
    beginning_of,
    changed,
    check_name,
    folder_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from obstore import Bytes, GetResult

__all__ = ("CREDENTIALS", "BucketObjects", "credential_set", "endpoint_set", "unreadable")

T = TypeVar("T")

PART_BYTES = 8 << 20
LOOK_SECONDS = 0.5
"""The time after which a stream looks whether the thread that sends it has failed."""
PARTS_MAX = 4
"""Parts on their way at once: a large body takes about as much memory as these and one more."""

_CLIENT = {"connect_timeout": "5s", "timeout": "120s"}
_RETRIES = {"max_retries": 4, "retry_timeout": timedelta(seconds=30)}
_UNSIGNED = "AWS_UNSIGNED_PAYLOAD"
"""The variable of obstore that says whether requests are signed without their bodies."""
_LOOPBACK = ("127.0.0.1", "::1", "localhost")
_CUT = ("response body error", "NoSuchUpload")
"""An answer that ended early, in the words of the library, which tries others again. After that of an upload's end it
gives the upload up, which is no more.
"""
_PAUSES = Backoff(first_seconds=0.05, seconds_max=1.0, attempts_max=5)
_NO_PATH = "parse path"
"""A name that the library does not take, in its words."""


def endpoint_set() -> str:
    """The address of the S3 server that the environment names, or the profile; nothing is Amazon's."""
    stated = next((os.environ[name] for name in ENDPOINTS if os.environ.get(name)), "")
    return stated or profile_settings().get("endpoint", "")


def credential_set() -> str:
    """The id of the key that the environment names, or the profile; nothing is that of a role."""
    return os.environ.get("AWS_ACCESS_KEY_ID") or profile_settings().get("access_key_id", "")


class BucketObjects(ObjectStore):
    """The objects below `s3://bucket/prefix`."""

    in_blocks = True

    def __init__(self, where: str, config: dict[str, object] | None = None) -> None:
        self.where = where.rstrip("/")
        self.bucket = urlsplit(where).netloc
        self._config = dict(config or {})
        self._store = self._connect(_RETRIES)
        self._once = self._connect({**_RETRIES, "max_retries": 0})

    def _connect(self, retries: dict[str, object]) -> S3Store:
        settings = {"retry_config": retries, **self._profile(), **self._config}
        if _UNSIGNED not in os.environ and self._is_private(settings.get("endpoint")):
            settings.setdefault("unsigned_payload", True)
        client = _CLIENT | {"allow_http": self._plain_http(settings.pop("allow_http", None), settings.get("endpoint"))}
        try:
            return S3Store.from_url(self.where, client_options=cast(Any, client), **cast(Any, settings))
        except (BaseError, ValueError, TypeError) as error:
            raise Invalid(
                "objects cannot be opened", kind="objects_config", where=self.where, reason=message_of(error),
                hint="such as s3://bucket/prefix",
            ) from error  # fmt: skip

    def _profile(self) -> dict[str, str]:
        """The settings of the profile; no keys of it where the configuration has its own."""
        said = profile_settings()
        return {name: value for name, value in said.items()
                if "access_key_id" not in self._config or name in ("region", "endpoint")}  # fmt: skip

    def _is_private(self, endpoint: object) -> bool:
        """True where nobody on the way to the server can change a body: to hash it, for the signature, is in vain."""
        address = urlsplit(str(endpoint or endpoint_set()))
        return address.scheme != "http" or address.hostname in _LOOPBACK

    def _plain_http(self, allowed: object, endpoint: object) -> bool:
        """True when the server may be spoken to without TLS.

        Raises: `Invalid` when its address asks for that, and nobody allowed it.
        """
        if allowed is None:
            allowed = os.environ.get("AWS_ALLOW_HTTP", "").lower() in ("true", "1")
        address = str(endpoint or endpoint_set())
        if address.startswith("http://") and not allowed:
            raise Invalid(
                "the server is spoken to without encryption, which was not allowed", kind="objects_config",
                where=self.where, endpoint=address,
                hint="use an https:// address, or set AWS_ALLOW_HTTP=true for a trusted network",
            )  # fmt: skip
        return bool(allowed)

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.where, self._config))

    def _checked(self, name: str) -> str:
        """The name, when it is one of this place."""
        return check_name(name)

    # -- writing --------------------------------------------------------------------------------------

    def put(self, name: str, data: bytes | memoryview | pa.Buffer) -> None:
        """Store a whole object under its name, over what is there.

        Raises: `Unavailable` when the bucket cannot be reached, `Denied`.
        """
        with self._errors(self._checked(name)):
            _again(lambda: self._store.put(name, _bytes(data), chunk_size=PART_BYTES, max_concurrency=PARTS_MAX))

    def put_stream(self, name: str, chunks: Iterable[bytes | memoryview]) -> None:
        """Store an object of any size by a multipart upload, in memory for `PARTS_MAX` parts.

        Raises: as `put`; `Uncertain` when an answer was cut: the chunks are gone; what `chunks` raises.
        """
        rest, first, size = iter(chunks), list[bytes](), 0
        while size < PART_BYTES:
            chunk = next(rest, None)
            if chunk is None:
                self.put(name, b"".join(first))
                return
            first.append(bytes(chunk))
            size += len(chunk)
        stream = _Pieces(chain([b"".join(first)], map(bytes, rest)))
        try:
            with self._errors(self._checked(name)):
                stream.send(
                    lambda pieces: self._store.put(name, pieces, chunk_size=PART_BYTES, max_concurrency=PARTS_MAX)
                )
        except Unavailable as error:
            if not _is_cut(error.__cause__):
                raise
            raise Uncertain(
                "the bucket's answer was lost", kind="objects_uncertain",
                hint="store it again: it takes the place of what is there", **error.values,
            ) from error  # fmt: skip
        if stream.failed is not None:
            raise stream.failed  # as it is: not an error of the bucket

    def swap(self, name: str, data: bytes | memoryview | pa.Buffer, expected: str | None) -> str:
        """Store an object if the one there has the tag `expected`, or, with None, if there is none; the new tag.

        Raises: `Conflict`; `Uncertain` when the answer was lost; `Denied`.
        """
        condition: Any = "create" if expected is None else {"e_tag": expected}
        try:
            with self._errors(self._checked(name), conditional=True):
                put = self._once.put(name, _bytes(data), mode=condition, use_multipart=False)
                tag, self.versioned = put["e_tag"], put["version"] is not None
        except NotFound as error:
            if error.kind != "object_not_found":
                raise
            raise changed(name, self.where) from error
        if tag is None:
            raise Invalid(
                "the server gives its objects no tags", kind="objects_unsupported", operation="swap",
                where=self.where, hint="use a server with ETags",
            )  # fmt: skip
        return tag

    def delete(self, *names: str) -> None:
        """Remove objects, up to a thousand in a request; a missing one is not an error."""
        checked = [self._checked(name) for name in names]
        if checked:
            with self._errors(checked[0], missing=False):
                _again(lambda: self._store.delete(checked))

    def rename(self, name: str, target: str) -> None:
        """Give an object another name, over what has that name: a copy on the server, then a removal.

        Raises: `NotFound`.
        """
        with self._errors(self._checked(name)):
            _again(lambda: self._store.copy(name, self._checked(target)))
        self.delete(name)

    # -- reading --------------------------------------------------------------------------------------

    def get(self, name: str) -> pa.Buffer:
        """All bytes of an object.

        Raises: `NotFound`, `Denied`, `Unavailable`.
        """
        return self.get_tagged(name).data

    def get_tagged(self, name: str) -> TaggedObject:
        with self._errors(self._checked(name)):
            result, data = _again(lambda: _fetched(self._store.get(name)))
            return TaggedObject(pa.py_buffer(data), result.meta["e_tag"] or "")

    def get_range(self, name: str, start: int, stop: int | None = None) -> memoryview:
        """The bytes `[start, stop)` of an object; a negative `start` takes that many of the last ones.

        Raises: as `get`.
        """
        assert start >= 0 or stop is None, "the last bytes are taken whole"
        if stop is not None and stop <= start:
            self.size(name)
            return memoryview(b"")
        span: Any = {"suffix": -start} if start < 0 else {"offset": start} if stop is None else (start, stop)
        try:
            with self._errors(self._checked(name)):
                return memoryview(_again(lambda: _fetched(self._store.get(name, options={"range": span})))[1])
        except BehindTheEnd:
            return memoryview(b"")

    def size(self, name: str) -> int:
        with self._errors(self._checked(name)):
            return int(_again(lambda: self._store.head(name))["size"])

    def list(self, under: str = "", *, prefix: str = "", after: str = "") -> Iterator[ObjectInfo]:
        beginning = beginning_of(under, prefix)
        if beginning is None:
            return
        last, folder = "", folder_of(beginning)
        # Every name that begins so is greater than the beginning without its last letter.
        start = max(after, beginning[:-1].rstrip("/"))
        with self._errors(folder):
            for batch in self._listed(folder, start):
                for info in batch:
                    name = info["path"]
                    if name <= last:
                        raise Invalid(
                            "the bucket does not list its objects in order", kind="objects_unsupported",
                            operation="list", where=self.where, hint="use a general purpose bucket",
                        )  # fmt: skip
                    last = name
                    if name > after and name.startswith(beginning):
                        yield ObjectInfo(name, info["size"], int(info["last_modified"].timestamp() * 1000))
                    elif name > beginning and name > after:
                        return

    def _listed(self, folder: str, start: str) -> Iterator[Any]:
        """The pages of a listing, from behind `start` on."""
        failures = 0
        while True:
            try:
                for batch in self._store.list(folder or None, offset=start or None, chunk_size=1000):
                    yield batch
                    start, failures = batch[-1]["path"] if batch else start, 0
            except BaseError as error:
                failures += 1
                if _pause(error, failures, 0.0) is None:
                    raise
            else:
                return

    def level(self, folder: str = "") -> Level:
        """The objects and folders right in a folder."""
        with self._errors(folder):
            level = _again(lambda: self._store.list_with_delimiter(folder.strip("/") or None))
        objects = sorted((ObjectInfo(row["path"], row["size"]) for row in level["objects"]), key=lambda info: info.name)
        return Level(tuple(objects), tuple(sorted(f"{prefix}/" for prefix in level["common_prefixes"])))

    def presigned(self, name: str, seconds: int, method: Literal["GET", "PUT"] = "GET") -> str:
        """A URL by which anybody may read the object for so long, or write it.

        Raises: `Denied` when there are no credentials to sign it with.
        """
        with self._errors(self._checked(name)):
            return sign(self._store, method, name, timedelta(seconds=seconds))

    # -- errors ---------------------------------------------------------------------------------------

    @contextmanager
    def _errors(self, name: str, *, conditional: bool = False, missing: bool = True) -> Iterator[None]:
        """Turn what the server or the network says into our errors."""
        try:
            yield
        except ValueError as error:
            if _NO_PATH not in str(error):
                raise
            raise unreadable(name, self.where, reason=message_of(error)) from error
        except (BaseError, OSError) as error:
            translated = bucket_error(name, self.where, self.bucket, error, conditional=conditional)
            if missing or translated.kind != "object_not_found":
                raise translated from error


def _again(act: Callable[[], T]) -> T:
    """Do what may be done twice; again, where its answer was cut."""
    return retry(act, _pause, SystemClock())


def _pause(error: Exception, failures: int, chance: float) -> float | None:
    return _PAUSES(error, failures, chance) if _is_cut(error) else None


def _is_cut(error: BaseException | None) -> bool:
    """True when the answer to a request ended early."""
    return any(words in str(error) for words in _CUT)


def _fetched(result: GetResult) -> tuple[GetResult, Bytes]:
    return result, result.bytes()


class _Pieces:
    """The pieces of a stream, taken in this thread and sent in another.

    obstore pulls them within its runtime, where nothing that uses obstore itself may be called: an object that is made
    of others would fail. And the thread of a request is the one that may wait for its body.
    """

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._queue: Queue[bytes | None] = Queue(1)
        self.failed: BaseException | None = None
        """The error of the chunks, which ended the stream."""

    def send(self, put: Callable[[Iterator[bytes]], object]) -> None:
        """Let another thread put the pieces.

        Raises: what the other thread raises, unless the chunks failed.
        """
        with ThreadPoolExecutor(1, thread_name_prefix="put") as thread:
            sent = thread.submit(put, self._pulled())
            try:
                for chunk in self._chunks:
                    self._offer(chunk, sent)
            except BaseException as error:
                self.failed = error
            self._offer(None, sent)
            wait((sent,))
        if self.failed is None:
            sent.result()

    def _offer(self, piece: bytes | None, sent: Future[object]) -> None:
        while not sent.done():
            with suppress(Full):
                self._queue.put(piece, timeout=LOOK_SECONDS)
                return

    def _pulled(self) -> Iterator[bytes]:
        while (piece := self._queue.get()) is not None:
            yield piece
        if self.failed is not None:
            raise OSError("the stream ended early")


def _bytes(data: bytes | memoryview | pa.Buffer) -> memoryview:
    """Bytes as obstore takes them: unsigned, where Arrow says signed."""
    return memoryview(data).cast("B")
