"""The caller: its name, its login; and the set-up of the installation, which is done.

A login gives a token that is shown as `Authorization: Bearer …` until it expires, or its pair is revoked.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from starlette.responses import Response

from millpond.errors import Denied
from millpond.server.lakefs.access import login_token
from millpond.server.lakefs.bodies import takes
from millpond.server.lakefs.errors import ApiError, json_answer
from millpond.server.lakefs.models import listing

if TYPE_CHECKING:
    from millpond.server.lakefs.call import Call

__all__ = ("HANDLERS",)

_LOGIN_MS = 12 * 3_600_000
_RUNS = "/repositories/{repository}/actions/runs"


@dataclass(frozen=True, slots=True)
class _LoginInformation:
    access_key_id: str
    secret_access_key: str


def _get_user(call: Call) -> Response:
    return json_answer({"user": {"id": call.committer(), "creation_date": 0, "friendly_name": call.committer()}})


@takes(_LoginInformation)
def _log_in(call: Call) -> Response:
    pair = call.json(_LoginInformation)
    try:
        call.node.tokens.caller_of_pair(pair.access_key_id, pair.secret_access_key)
    except Denied as error:
        raise ApiError(401, "error authenticating request") from error
    expires = (call.node.clock.now_ms() + _LOGIN_MS) // 1000
    token = login_token(call.node.pond.repositories.signer, pair.access_key_id, expires)
    return json_answer({"token": token, "token_expiration": expires})


async def _get_setup(_call: Call) -> Response:
    login = {
        "RBAC": "none", "login_url": "", "login_url_method": "none", "login_cookie_names": [], "logout_url": "",
        "login_failed_message": "The access key or its secret is wrong.",
    }  # fmt: skip
    return json_answer({"state": "initialized", "comm_prefs_missing": False, "login_config": login})


async def _set_up(_call: Call) -> Response:
    raise ApiError(409, "lakeFS already initialized")


def _get_usage(call: Call) -> Response:
    return json_answer({"installation_id": call.node.pond.log.pond_id, "reports": []})


async def _take_statistics(_call: Call) -> Response:
    """Clients report what they are used for; nothing is stored."""
    return Response(status_code=204)


def _list_runs(call: Call) -> Response:
    """Runs of actions: there are none."""
    call.check_repository()
    call.query.amount()
    return json_answer(listing([]))


def _find_run(call: Call) -> Response:
    call.check_repository()
    raise ApiError(404, "not found")


HANDLERS = {
    ("GET", "/user"): _get_user,
    ("POST", "/auth/login"): _log_in,
    ("GET", "/setup_lakefs"): _get_setup,
    ("POST", "/setup_lakefs"): _set_up,
    ("GET", "/usage-report/summary"): _get_usage,
    ("POST", "/statistics"): _take_statistics,
    ("GET", _RUNS): _list_runs,
    ("GET", f"{_RUNS}/{{run_id}}"): _find_run,
    ("GET", f"{_RUNS}/{{run_id}}/hooks"): _find_run,
    ("GET", f"{_RUNS}/{{run_id}}/hooks/{{hook_run_id}}/output"): _find_run,
}
