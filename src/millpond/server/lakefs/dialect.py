"""The dialect of lakeFS: pairs, errors as `{"message": …}`, and the answer where no route is.

The clients of lakeFS can call its routes that a node does not offer, and learn what to use instead:

    GET /auth/users     501: users, groups and policies are not offered: …

A path with an empty name is 400, one that is no route of lakeFS either 404. Pairs are not checked: the answer is the
same for all.
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from millpond.server.dialect import Dialect
from millpond.server.dispatch import Routes
from millpond.server.lakefs.access import admit_call
from millpond.server.lakefs.call import Call
from millpond.server.lakefs.errors import HEADERS, ApiError, failure
from millpond.server.lakefs.needs import PREFIX
from millpond.server.paths import Paths

__all__ = ("Error", "LAKEFS", "LISTING", "NOT_OFFERED", "operations")

LISTING = ".*/repositories$"
"""The call by which `lakectl doctor` tries an address, at whatever path that has."""


class Error(msgspec.Struct):
    """Any answer that is no success."""

    message: str


def _unrouted(request: Request, _methods: Collection[str]) -> Response:
    path: bytes = request.scope.get("raw_path") or request.scope["path"].encode()
    if f"{request.scope['path']}/".startswith(f"{PREFIX}/"):
        return failure(request, _not_offered(request.method, path.decode("latin-1").removeprefix(PREFIX)))
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


_USERS = (
    "users, groups and policies are not offered: `millpond token add --versions` makes a pair with its rights, "
    "`millpond token revoke` ends it"
)
_EXTERNAL = "login by another service is not offered: `POST /auth/login` takes an access key and its secret"
_PULLS = "pull requests are not offered: compare with `GET …/refs/{left}/diff/{right}`, and merge"
_ASYNC = (
    "commits and merges in the background are not offered: leave out `/async`, and they are done when they are answered"
)
_REPOSITORY = "repositories/{}"
_PULL = f"{_REPOSITORY}/pulls/{{}}"
_USER, _GROUP, _POLICY = "auth/users/{}", "auth/groups/{}", "auth/policies/{}"

NOT_OFFERED: dict[str, tuple[str, str]] = {
    "auth/users": ("GET POST", _USERS),
    _USER: ("GET DELETE", _USERS),
    f"{_USER}/credentials": ("GET POST", _USERS),
    f"{_USER}/credentials/{{}}": ("GET DELETE", _USERS),
    f"{_USER}/groups": ("GET", _USERS),
    f"{_USER}/policies": ("GET", _USERS),
    f"{_USER}/policies/{{}}": ("PUT DELETE", _USERS),
    f"{_USER}/external/principals": ("POST DELETE", _EXTERNAL),
    f"{_USER}/external/principals/ls": ("GET", _EXTERNAL),
    "auth/groups": ("GET POST", _USERS),
    _GROUP: ("GET DELETE", _USERS),
    f"{_GROUP}/members": ("GET", _USERS),
    f"{_GROUP}/members/{{}}": ("PUT DELETE", _USERS),
    f"{_GROUP}/policies": ("GET", _USERS),
    f"{_GROUP}/policies/{{}}": ("PUT DELETE", _USERS),
    f"{_GROUP}/acl": ("GET POST", _USERS),
    "auth/policies": ("GET POST", _USERS),
    _POLICY: ("GET PUT DELETE", _USERS),
    f"{_POLICY}/acl": ("GET POST", _USERS),
    "auth/external/principals": ("GET", _EXTERNAL),
    "auth/external/principal/login": ("POST", _EXTERNAL),
    "sts/login": ("POST", _EXTERNAL),
    "oidc/callback": ("GET", _EXTERNAL),
    "setup_comm_prefs": ("POST", "preferences for messages are not offered: a node sends none"),
    f"{_REPOSITORY}/pulls": ("GET POST", _PULLS),
    _PULL: ("GET PATCH", _PULLS),
    f"{_PULL}/merge": ("PUT", _PULLS),
    f"{_REPOSITORY}/branches/{{}}/commits/async": ("POST", _ASYNC),
    f"{_REPOSITORY}/branches/{{}}/commits/async/{{}}/status": ("GET", _ASYNC),
    f"{_REPOSITORY}/refs/{{}}/merge/{{}}/async": ("POST", _ASYNC),
    f"{_REPOSITORY}/refs/{{}}/merge/{{}}/async/{{}}/status": ("GET", _ASYNC),
    f"{_REPOSITORY}/commits": (
        "POST", "records of commits are not written one by one: `…/refs/restore` takes those of a dump",
    ),
    f"{_REPOSITORY}/refs/{{}}/symlink": (
        "POST", "symlink files are not offered: read a ref through signed URLs, or with Spark's `millpond.objects`",
    ),
}  # fmt: skip
"""Templates of paths below the prefix, their methods, and the reason with the way out."""
_PATHS: Paths[str] = Paths()
for _template, (_methods, _reason) in NOT_OFFERED.items():
    _PATHS.at(f"/{_template}").update(dict.fromkeys(_methods.split(), _reason))


def _not_offered(method: str, path: str) -> ApiError:
    """The error for a request that no route takes; its path is that below the prefix.

    >>> [_not_offered("GET", path).status for path in ("/auth/users", "/repositories//branches", "/nothing")]
    [501, 400, 404]
    """
    if "//" in path:
        return ApiError(400, "a name in the path is empty: validation error")
    reason = _PATHS.find(path)[0].get(method)
    return ApiError(404, "invalid API endpoint") if reason is None else ApiError(501, reason)
