"""Names of streams: a queue and a job set, of any characters.

Keys hold the names as they are, or the hash of a long one:

    (queue, job set)        both short
    (queue, bytes32)        a long job set: SHA-256 of its UTF-8; its name stands in the stream's head

Invariants:
* no two pairs share a key: texts and hashes are of different types, and the parts of a key are never joined;
* the key of a stream fits into LMDB's own keys, with whatever follows it.
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple

from millpond.error_values import shown
from millpond.errors import Invalid
from millpond.kernel.keys import encode

__all__ = (
    "JOB_SET_CHARS_MAX",
    "OWN_QUEUE",
    "QUEUE_CHARS_MAX",
    "StreamName",
    "is_unicode",
    "job_set_part",
    "queue_part",
)

OWN_QUEUE = "millpond"
"""The queue of Millpond's own job sets."""
QUEUE_CHARS_MAX = 255
JOB_SET_CHARS_MAX = 1023
PLAIN_BYTES_MAX = 160
"""Names with a longer code are hashed: two of them, and a source or a date, stay below the 510 bytes of LMDB."""


class StreamName(NamedTuple):
    """The queue and the job set that a stream belongs to.

    >>> StreamName("etl", "nightly/2026-11-22").check()
    StreamName(queue='etl', job_set='nightly/2026-11-22')
    """

    queue: str
    job_set: str

    def __str__(self) -> str:
        return f"{shown(self.queue)} {shown(self.job_set)}"

    def check(self) -> StreamName:
        """The name itself.

        Raises:
            Invalid: a part is too long, or no Unicode text.
        """
        parts: tuple[tuple[str, object, int], ...] = (
            ("queue", self.queue, QUEUE_CHARS_MAX), ("job set", self.job_set, JOB_SET_CHARS_MAX),
        )  # fmt: skip
        for what, text, chars_max in parts:
            if not isinstance(text, str) or len(text) > chars_max or not (text.isascii() or is_unicode(text)):
                raise Invalid(
                    f"the name of a {what} is not understood", kind="stream_name", name=shown(text),
                    chars_max=chars_max, hint="a text of Unicode characters",
                )  # fmt: skip
        return self


def queue_part(queue: str) -> str | bytes:
    """The part of a key that stands for a queue."""
    return _part(queue)


def job_set_part(job_set: str) -> str | bytes:
    """The part of a key that stands for a job set."""
    return _part(job_set)


def _part(name: str) -> str | bytes:
    if len(name) <= PLAIN_BYTES_MAX // 4 or len(encode((name,))) <= PLAIN_BYTES_MAX:
        return name
    return hashlib.sha256(name.encode()).digest()


def is_unicode(text: str) -> bool:
    """True for text that UTF-8 can say: not with half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
