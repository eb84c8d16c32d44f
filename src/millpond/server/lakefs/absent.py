"""The routes of lakeFS that a node does not offer: the clients of lakeFS can call them, and learn what to use instead.

    GET /auth/users     501: users, groups and policies are not offered: …

A path with an empty name is 400, one that is no route of lakeFS either 404. Pairs are not checked: the answer is the
same for all.
"""

from __future__ import annotations

from millpond.server.lakefs.errors import ApiError
from millpond.server.paths import Paths

__all__ = ("NOT_OFFERED", "not_offered")

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


def not_offered(method: str, path: str) -> ApiError:
    """The error for a request that no route takes; its path is that below the prefix.

    >>> [not_offered("GET", path).status for path in ("/auth/users", "/repositories//branches", "/nothing")]
    [501, 400, 404]
    """
    if "//" in path:
        return ApiError(400, "a name in the path is empty: validation error")
    reason = _PATHS.find(path)[0].get(method)
    return ApiError(404, "invalid API endpoint") if reason is None else ApiError(501, reason)
