"""The decision about a call: the pair it shows, and the right that its route needs.

    Authorization: Basic <access key:secret>   or   Bearer <token of auth/login>   ─▶   caller   ─▶   right

A pattern is `repo:repository` or `repo:repository/branch`, of the shell: `repo:flights`, `repo:flights/fix-*`, `*`.
Without a branch it is all of them.

Invariants:
* whoever has a right on one branch of a repository may read the repository: its branches share their commits;
* any other right on a repository is one on all its branches;
* on a node that wants no tokens, any pair is accepted, and none is needed;
* a token without an access key opens repositories when it names some, or has `admin` on everything.
"""

from __future__ import annotations

import base64
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl

from millpond.errors import Denied
from millpond.nodes.tokens import ANYBODY, NOBODY, Caller, split_pattern
from millpond.server.access import pair_in, put_caller, take_turn
from millpond.server.routes.table import On, RouteNeeds, Work
from millpond.versions.objects.signing import SignedAccess, Signer

if TYPE_CHECKING:
    from starlette.requests import Request

    from millpond.nodes.node import Node

__all__ = ("admit_call", "login_token", "may", "need", "pair_of")

_LOGIN = "LOGIN"
"""The method of the access that a login signs: that of no request."""


def login_token(signer: Signer, access_key: str, expires: int) -> str:
    """The token of a login, until so many seconds since 1970."""
    return base64.urlsafe_b64encode(signer.query(SignedAccess(_LOGIN, "", access_key, expires)).encode()).decode()


def _logged_in(signer: Signer, token: str) -> str | None:
    """The access key of a login; None for a token of another kind."""
    try:
        signed = dict(parse_qsl(base64.urlsafe_b64decode(token).decode("ascii"), keep_blank_values=True))
        access = signer.access("", signed)
    except (ValueError, Denied):
        return None
    return access.address if access.method == _LOGIN else None


def pair_of(request: Request) -> tuple[str, str] | None:
    """The access key and the secret that a request shows; None when it shows none, or none that can be read."""
    return pair_in(*_authorization(request))


def _authorization(request: Request) -> tuple[str, str]:
    """The scheme of the first `Authorization`, and what it carries."""
    for name, value in request.scope["headers"]:
        if name == b"authorization":
            scheme, _, credentials = value.decode("latin-1").partition(" ")
            return scheme, credentials
    return "", ""


def admit_call(request: Request, needs: RouteNeeds) -> None:
    """Check the right that a route needs; nothing of the body is read.

    Raises: `Denied`; `Unavailable` for a pair that sends too much.
    """
    node: Node = request.app.state.node
    if needs.right is None:
        signed = needs.work is not Work.ADMINISTRATION and node.tokens.required()
        put_caller(request, NOBODY if signed else ANYBODY)
        return
    caller = _caller(request, node)
    put_caller(request, caller)
    if needs.work is not Work.ADMINISTRATION:
        take_turn(request.scope, caller, node.rate_limits)
    names = request.path_params
    match needs.on:
        case On.REPOSITORY:
            need(caller, needs.right, names["repository"])
        case On.BRANCH:
            need(caller, needs.right, names["repository"], names.get("branch") or names["destinationBranch"])
        case On.BODY_BRANCH:
            patterns = map(split_pattern, caller.patterns(needs.right, "repo"))
            if not any(fnmatchcase(names["repository"], repositories) for repositories, _ in patterns):
                raise _denied(caller, needs.right, names["repository"])
        case _:
            caller.need_somewhere(needs.right, "repo")


def _caller(request: Request, node: Node) -> Caller:
    scheme, credentials = _authorization(request)
    if scheme.lower() == "bearer" and node.tokens.required():
        return _bearer(node, credentials)
    access_key, secret = pair_in(scheme, credentials) or (None, "")
    return node.tokens.caller_of_pair(access_key, secret)


def _bearer(node: Node, token: str) -> Caller:
    """The caller of a login, or a token that names repositories, or has `admin` on everything."""
    access_key = _logged_in(node.pond.repositories.signer, token)
    if access_key is not None:
        return node.tokens.caller_of_key(access_key)
    caller = node.tokens.caller(token)
    if not (caller.may("admin") or caller.names("repo")):
        raise Denied(
            "this token opens no repositories", kind="token_unknown", token=caller.name,
            hint="use a pair: millpond token add --versions prints one; or name repo:… in the token",
        )  # fmt: skip
    return caller


def may(caller: Caller, right: str, repository: str, branch: str | None = None) -> bool:
    """True when a caller has a right: on a branch, or, without one, on the repository.

    >>> from millpond.nodes.tokens import Caller
    >>> etl = Caller("etl", {"write": ("repo:flights/fix-*",)})
    >>> may(etl, "write", "flights", "fix-1"), may(etl, "write", "flights"), may(etl, "read", "flights")
    (True, False, True)
    """
    return _allowed(tuple(caller.patterns(right, "repo")), right == "read", repository, branch)


@lru_cache(maxsize=4_096)  # the same few pairs ask for the same branches, again and again
def _allowed(patterns: tuple[str, ...], reads: bool, repository: str, branch: str | None) -> bool:
    for repositories, branches in map(split_pattern, patterns):
        if not fnmatchcase(repository, repositories):
            continue
        if reads or branches == "*" or (branch is not None and fnmatchcase(branch, branches)):
            return True
    return False


def need(caller: Caller, right: str, repository: str, branch: str | None = None) -> None:
    """Insist on a right.

    Raises: `Denied`.
    """
    if not may(caller, right, repository, branch):
        raise _denied(caller, right, repository if branch is None else f"{repository}/{branch}")


def _denied(caller: Caller, right: str, what: str) -> Denied:
    return Denied(
        "the pair does not carry this right", kind="right_missing", token=caller.name, right=right, on=what,
        hint="use a pair that does, or ask who runs the node: millpond token add --versions",
    )  # fmt: skip
