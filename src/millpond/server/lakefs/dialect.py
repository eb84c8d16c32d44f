"""The dialect of lakeFS: pairs, errors as `{"message": …}`, and the answer where no route is."""

from __future__ import annotations

from collections.abc import Collection

import msgspec
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from millpond.server.dialect import Dialect
from millpond.server.dispatch import Routes
from millpond.server.lakefs.absent import not_offered
from millpond.server.lakefs.access import admit_call
from millpond.server.lakefs.call import Call
from millpond.server.lakefs.errors import HEADERS, failure
from millpond.server.lakefs.needs import PREFIX

__all__ = ("Error", "LAKEFS", "LISTING", "operations")

LISTING = ".*/repositories$"
"""The call by which `lakectl doctor` tries an address, at whatever path that has."""


class Error(msgspec.Struct):
    """Any answer that is no success."""

    message: str


def _unrouted(request: Request, _methods: Collection[str]) -> Response:
    path: bytes = request.scope.get("raw_path") or request.scope["path"].encode()
    if f"{request.scope['path']}/".startswith(f"{PREFIX}/"):
        return failure(request, not_offered(request.method, path.decode("latin-1").removeprefix(PREFIX)))
    # To a client whose address is wrong. It is no JSON: that is how `lakectl doctor` knows it.
    return PlainTextResponse(f"there is no API here: the address of a client ends with {PREFIX}\n", 404)


LAKEFS = Dialect(
    title="Millpond node: versions",
    about=(
        "Repositories of objects: branches, staging, commits, merges. The clients of lakeFS use these routes as they "
        "are, and `millpond.open` those besides. Where tokens are on, each request carries an access key and its "
        "secret, or a token with `admin` on everything. [The routes of maps and nodes](/docs)."
    ),
    tags={
        "installation": "", "accounts": "", "repositories": "", "branches": "", "resets": "", "commits": "",
        "diffs": "", "merges": "", "settings": "", "maintenance": "", "dumps": "", "objects": "", "object writes": "",
        "links": "", "imports": "", "bulk": "", "signed": "", "plumbing": "",
    },
    security={"pair": {"type": "http", "scheme": "basic"}, "token": {"type": "http", "scheme": "bearer"}},
    error=Error,
    admit=admit_call,
    failed=failure,
    unrouted=_unrouted,
    headers=HEADERS,
    values={Call: Call},
    blank_is_default=True,
)  # fmt: skip


def operations(tag: str) -> Routes:
    """The routes of a module."""
    return Routes(PREFIX, tag, LAKEFS)
