"""One tree of errors, split by what the caller does next.

| class | the caller should |
|---|---|
| `Conflict` | refresh and try again |
| `Fenced` | stop, drop what was made, begin anew from what is there |
| `NotFound` | name something that exists |
| `AlreadyExists` | choose another name, or accept what is there |
| `Invalid` | correct the input; trying again cannot help |
| `Denied` | get the right to do it |
| `Closed` | open it again |
| `Unavailable` | wait, free the resource, try again |
| `Uncertain` | find out whether it was done, then try again if it was not |
| `Corrupt` | stop; restore or quarantine what is named |
| `Internal` | report it: it is our mistake |

Every error carries a stable `kind` code (append-only, see `docs/reference/errors.md`), the values it is about, and
where there is one, the way out as a `hint`.
"""

from __future__ import annotations

__all__ = (
    "AlreadyExists",
    "Closed",
    "Conflict",
    "Corrupt",
    "Denied",
    "Fenced",
    "Internal",
    "Invalid",
    "MillpondError",
    "NotFound",
    "Unavailable",
    "Uncertain",
)


class MillpondError(Exception):
    """The root of all errors.

    `kind` is a stable code, `message` a sentence, `values` the things it is about, `hint` the way out (or None);
    `str()` joins them: `message. name=value … (hint)`. The class says with which code the command line ends, and which
    status a node answers with, over HTTP and gRPC; `statuses.py` has the kinds that differ from their class.
    """

    kind: str = "internal"
    exit_code: int = 10
    http_status: int = 500
    grpc_status: str = "INTERNAL"

    def __init__(self, message: str, *, kind: str | None = None, hint: str | None = None, **values: object) -> None:
        super().__init__(message)
        self.message = message
        self.kind = kind or type(self).kind
        self.hint = hint
        self.values = values

    def __str__(self) -> str:
        text = self.message
        if self.values:
            text += ". " + " ".join(f"{name}={value}" for name, value in self.values.items())
        return f"{text} ({self.hint})" if self.hint else text

    def without(self, *names: str) -> MillpondError:
        """The same error without some of its values, such as a folder that a reader elsewhere does not have."""
        values = {name: value for name, value in self.values.items() if name not in names}
        return type(self)(self.message, kind=self.kind, hint=self.hint, **values)

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.message, self.kind, self.hint, self.values))


def _rebuild(
    cls: type[MillpondError], message: str, kind: str, hint: str | None, values: dict[str, object]
) -> MillpondError:
    return cls(message, kind=kind, hint=hint, **values)


class Conflict(MillpondError):
    """Another process changed it first: refresh, then try again."""

    kind = "conflict"
    exit_code, http_status = 6, 409
    grpc_status = "ABORTED"


class Fenced(Conflict):
    """Somebody else took over what you were changing: stop. What you made of it is lost; trying again cannot help.

    A processor that gets it ends itself. A `Conflict` that is not this is about one act, which may be tried again.
    """

    kind = "fenced"
    exit_code, http_status = 13, 409


class NotFound(MillpondError, KeyError):
    """The named thing does not exist. A key without a value is not an error: readers answer None."""

    kind = "not_found"
    exit_code, http_status = 3, 404
    grpc_status = "NOT_FOUND"

    __str__ = MillpondError.__str__


class AlreadyExists(MillpondError):
    """The name is taken by something different. Creating the same thing twice is not an error."""

    kind = "already_exists"
    exit_code, http_status = 4, 409
    grpc_status = "ALREADY_EXISTS"


class Invalid(MillpondError, ValueError):
    """The input cannot be accepted as it is: correct it; trying again cannot help."""

    kind = "invalid"
    exit_code, http_status = 5, 400
    grpc_status = "INVALID_ARGUMENT"


class Denied(MillpondError):
    """The token is missing or does not allow this: get one that does. The thing itself may well exist."""

    kind = "denied"
    exit_code, http_status = 11, 403
    grpc_status = "PERMISSION_DENIED"


class Closed(MillpondError):
    """The object was closed: open it again."""

    kind = "closed"
    exit_code, http_status = 8, 503
    grpc_status = "UNAVAILABLE"


class Unavailable(MillpondError):
    """A resource is missing for now (disk, lock, node): wait or free it, then try again. Nothing was lost."""

    kind = "unavailable"
    exit_code, http_status = 7, 503
    grpc_status = "UNAVAILABLE"


class Uncertain(Unavailable):
    """A commit whose answer was lost: all of it was done, or nothing. Find out which before you try again.

    Loads may always be repeated: the same data loads once. Any other `Unavailable` means that nothing was done.
    """

    kind = "uncertain"
    exit_code, http_status = 12, 503


class Corrupt(MillpondError):
    """Stored bytes differ from what was written: stop, and restore the file that is named."""

    kind = "corrupt"
    exit_code, http_status = 9, 500
    grpc_status = "DATA_LOSS"


class Internal(MillpondError):
    """A mistake in Millpond: please report it."""

    kind = "internal"
    exit_code, http_status = 10, 500
