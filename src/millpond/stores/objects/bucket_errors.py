"""Errors of buckets: answers of a server of S3, or of the network, as errors that name the way out.

An answer with a code that is known here is of that code's class, whatever its status is: an expired token has the
status 400, a clock that is wrong has that of a right that is missing. Of a conditional write, only an answer that
refuses it is sure; after any other it may have been done.
"""

from __future__ import annotations

import re
from typing import Final

from obstore.exceptions import AlreadyExistsError, NotFoundError, PreconditionError

from millpond.errors import Denied, Invalid, MillpondError, NotFound, Unavailable, Uncertain
from millpond.stores.objects.protocol import changed, not_found

__all__ = ("CREDENTIALS", "BehindTheEnd", "bucket_error", "message_of", "unreadable")

CREDENTIALS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
"""The environment variables that say who we are; the last is for credentials that expire."""

_XML: Final = re.compile(r"<\?xml.*?\?>")
_STATUS: Final = re.compile(r"status code: (\d{3})")
_CODE: Final = re.compile(r"<Code>(\w+)</Code>|\(code: (\w+)\)")
_ACT: Final = re.compile(
    r"performing (list|GET|HEAD|PUT|POST|DELETE)\b( \S+\?delete\b)?|(DeleteObjects) request failed for key (.*?): "
)
_READING: Final = "s3:GetObject, s3:ListBucket"
"""Without the right to list, a bucket refuses to say that there is no such object."""
_RIGHTS: Final = {
    "list": "s3:ListBucket", "GET": _READING, "HEAD": _READING, "PUT": "s3:PutObject", "POST": "s3:PutObject",
    "DELETE": "s3:DeleteObject",
}  # fmt: skip
_STRANGE: Final = re.compile(r'object with invalid path: .*?Path "(.*?)"[ :]', re.DOTALL)
"""A name in a listing that the client does not take, in its words: somebody else put the object there."""
_ROLE_PATH = "/latest/api/token"
"""The path at which a machine of Amazon learns its role, when the environment has no credentials."""
_CREDENTIAL_CODES: Final = frozenset(
    ("AccessDenied", "ExpiredToken", "InvalidToken", "TokenRefreshRequired", "InvalidAccessKeyId")
)
_REGION_CODES: Final = frozenset(
    ("AuthorizationHeaderMalformed", "PermanentRedirect", "IllegalLocationConstraintException")
)
_FULL_CODES: Final = frozenset(("QuotaExceeded", "XMinioStorageFull", "InsufficientStorage", "EntityTooLarge"))
_BUSY_STATUSES: Final = frozenset((408, 409, 425, 429))
"""Refusals that pass: the same request may be sent again."""


class BehindTheEnd(Exception):
    """A range that begins behind the end of an object."""

    kind = ""


def bucket_error(
    name: str, where: str, bucket: str, error: Exception, *, conditional: bool
) -> MillpondError | BehindTheEnd:
    """The error of ours for one of the client of buckets; `conditional` of a write that is one request."""
    reason = message_of(error)
    code, status = _code(reason), _status(reason)
    values = ({"object": name} if name else {}) | {"where": where, "bucket": bucket}
    if code == "NoSuchBucket":
        return NotFound("there is no such bucket", kind="bucket_not_found", hint="make it, or name another", **values)
    if conditional and isinstance(error, AlreadyExistsError | PreconditionError):
        return changed(name, where)
    # A body that is read again after a cut may meet a missing object: an error of no class.
    if code == "NoSuchKey" or (isinstance(error, FileNotFoundError | NotFoundError) and code != "NoSuchUpload"):
        return not_found(name, where)
    strange = _STRANGE.search(str(error))
    if strange is not None:
        return unreadable(strange[1], where, reason="a listing has it")
    if _ROLE_PATH in reason:
        return _denied("there are no credentials for the bucket", "", values | {"reason": "NoCredentials"})
    if status == 416:
        return BehindTheEnd()
    if code in _REGION_CODES or "redirect without LOCATION" in reason:
        return Invalid("the bucket is in another region", kind="objects_config", hint="set AWS_REGION", **values)
    refused = _refusal(code, status, isinstance(error, PermissionError), reason, values)
    if refused is not None:
        return refused
    values |= {"reason": reason}
    if conditional:
        return Uncertain(
            "the bucket's answer was lost", kind="objects_uncertain",
            hint="read the object: it is the new one, or the old one still", **values,
        )  # fmt: skip
    return Unavailable(
        "the bucket does not answer", kind="objects_unavailable",
        hint="check AWS_ENDPOINT_URL and the network, then try again", **values,
    )  # fmt: skip


def _refusal(code: str, status: int, forbidden: bool, reason: str, values: dict[str, str]) -> MillpondError | None:
    """The error for an answer that refuses; None when there was none, or it may have been done in spite of it."""
    named = values | ({"reason": code} if code else {})
    if code == "RequestTimeTooSkewed":
        return Denied(
            "the clock of this machine is not that of the bucket", kind="objects_denied",
            hint="set the clock of this machine: requests are signed with its time", **named,
        )  # fmt: skip
    if code == "InvalidObjectState":
        return Denied(
            "the object is archived", kind="objects_denied",
            hint="restore it in the bucket, and keep what Millpond wrote in a class that can be read at once", **named,
        )  # fmt: skip
    if code in _FULL_CODES or status == 507:
        return Unavailable(
            "the bucket takes no more", kind="objects_unavailable",
            hint="make room in it, or raise what it may hold, then try again", **named,
        )  # fmt: skip
    if code == "NotImplemented" or status == 501:
        return Invalid(
            "the server does not know this request", kind="objects_unsupported",
            hint="use a server that has what S3 has, also conditional writes", **named,
        )  # fmt: skip
    if code in _CREDENTIAL_CODES or forbidden or status in (401, 403):
        act = _ACT.search(reason)
        if act is not None and act[4]:
            named["object"] = act[4]
        if act is None or code not in ("", "AccessDenied"):
            return _denied("the bucket refuses us", "", named)
        right = _RIGHTS["DELETE" if act[2] or act[3] else act[1]]
        return _denied("a right to the bucket is missing", right, {"verb": right, **named})
    if 400 <= status < 500 and status not in _BUSY_STATUSES:
        return Unavailable(
            "the bucket refuses the request", kind="objects_unavailable",
            hint="see what its reason names; check AWS_ENDPOINT_URL and AWS_REGION", **values | {"reason": reason},
        )  # fmt: skip
    return None


def _code(reason: str) -> str:
    code = _CODE.search(reason)
    return (code[1] or code[2]) if code else ""


def _status(reason: str) -> int:
    status = _STATUS.search(reason)
    return int(status[1]) if status else 0


def _denied(message: str, right: str, values: dict[str, str]) -> Denied:
    variables = f"{CREDENTIALS[0]} and {CREDENTIALS[1]} (and {CREDENTIALS[2]})"
    return Denied(
        message, kind="objects_denied",
        hint=f"set {variables} to credentials that may use the bucket" + (f": {right}" if right else ""), **values,
    )  # fmt: skip


def unreadable(name: str, where: str, *, reason: str = "a part of it is empty") -> Invalid:
    """The error for a name that objects of a bucket may have, and that the client of buckets does not take."""
    return Invalid(
        "objects of this name cannot be read from a bucket", kind="source_name", name=repr(name), where=where,
        reason=reason, hint="copy the object to a name without //, leading or trailing slash, and control characters",
    )  # fmt: skip


def message_of(error: Exception) -> str:
    """The message of an error of the client on one line, without the tree of its causes.

    It has the answer of the server, most of which begin with a line that says that they are XML.
    """
    return " ".join(_XML.sub("", str(error).partition("\n\n")[0]).split())
