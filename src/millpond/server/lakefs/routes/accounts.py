"""The caller: its name, its login; and the set-up of the installation, which is done.

A login gives a token that is shown as `Authorization: Bearer …` until it expires, or its pair is revoked.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, NoReturn

import msgspec
from msgspec import Meta

from millpond.errors import Denied
from millpond.server.lakefs.access import login_token
from millpond.server.lakefs.call import Call
from millpond.server.lakefs.dialect import operations
from millpond.server.lakefs.errors import ApiError
from millpond.server.lakefs.models import AMOUNT, Amount, Listing, Text, listing
from millpond.server.lakefs.needs import ANYBODY, PAIR, REPOSITORY, read
from millpond.server.routes.table import ORDER_BYTES_MAX

__all__ = (
    "AuthenticationToken", "CurrentUser", "LoginInformation", "Setup", "SetupState", "Statistics", "StatisticsEvent",
    "UsageReport", "User", "routes",
)  # fmt: skip

_LOGIN_MS = 12 * 3_600_000
_RUNS = f"{REPOSITORY}/actions/runs"
_WITH_BODY = replace(ANYBODY, body_bytes_max=ORDER_BYTES_MAX)
routes = operations("accounts")


class LoginInformation(msgspec.Struct):
    """A pair."""

    access_key_id: str
    secret_access_key: str


class AuthenticationToken(msgspec.Struct):
    """The token of a login."""

    token: str
    token_expiration: int


class User(msgspec.Struct):
    """A caller, by the name of its pair."""

    id: str
    creation_date: int
    friendly_name: str


class CurrentUser(msgspec.Struct):
    """The caller."""

    user: User


class SetupState(msgspec.Struct):
    """The state of the set-up, and how to log in."""

    state: str
    comm_prefs_missing: bool
    login_config: dict[str, Any]


class Setup(msgspec.Struct):
    """The first user of an installation."""

    username: Text


class UsageReport(msgspec.Struct):
    """Reports of use: none is made."""

    installation_id: str
    reports: list[dict[str, Any]]


class StatisticsEvent(msgspec.Struct, rename={"class_": "class"}):
    """A use of a client."""

    class_: Text
    name: Text
    count: Annotated[int, Meta(ge=0)]


class Statistics(msgspec.Struct):
    """Uses of a client."""

    events: list[StatisticsEvent]


@routes.get("/user", PAIR)
def _get_user(call: Call) -> CurrentUser:
    return CurrentUser(User(call.committer(), 0, call.committer()))


@routes.post("/auth/login", _WITH_BODY)
def _log_in(call: Call, pair: LoginInformation) -> AuthenticationToken:
    try:
        call.node.tokens.caller_of_pair(pair.access_key_id, pair.secret_access_key)
    except Denied as error:
        raise ApiError(401, "error authenticating request") from error
    expires = (call.node.clock.now_ms() + _LOGIN_MS) // 1000
    return AuthenticationToken(login_token(call.node.pond.repositories.signer, pair.access_key_id, expires), expires)


@routes.get("/setup_lakefs", ANYBODY)
async def _get_setup() -> SetupState:
    login = {
        "RBAC": "none", "login_url": "", "login_url_method": "none", "login_cookie_names": [], "logout_url": "",
        "login_failed_message": "The access key or its secret is wrong.",
    }  # fmt: skip
    return SetupState("initialized", comm_prefs_missing=False, login_config=login)


@routes.post("/setup_lakefs", _WITH_BODY, status=204)
async def _set_up(setup: Setup) -> NoReturn:
    raise ApiError(409, "lakeFS already initialized")


@routes.get("/usage-report/summary", PAIR)
def _get_usage(call: Call) -> UsageReport:
    return UsageReport(call.node.pond.log.pond_id, [])


@routes.post("/statistics", replace(PAIR, body_bytes_max=ORDER_BYTES_MAX), status=204)
async def _take_statistics(reported: Statistics) -> None:
    """Clients report what they are used for; nothing is stored."""


@routes.get(_RUNS, read())
def _list_runs(
    call: Call, after: str = "", amount: Amount = AMOUNT, branch: str = "", commit: str = ""
) -> Listing[dict[str, str]]:
    """Runs of actions: there are none."""
    call.check_repository()
    if branch and commit:
        raise ApiError(400, "parameters conflict: of branch and commit one is given")
    return listing([])


@routes.get(f"{_RUNS}/{{run_id}}", read())
@routes.get(f"{_RUNS}/{{run_id}}/hooks", read())
@routes.get(f"{_RUNS}/{{run_id}}/hooks/{{hook_run_id}}/output", read())
def _find_run(call: Call) -> NoReturn:
    call.check_repository()
    raise ApiError(404, "not found")
