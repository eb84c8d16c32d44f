"""Changes that pages ask for: each is a row of one table, which its form, its button and its route are made of.

    page ─▶ button, where `allowed` ─▶ POST ─▶ right ─▶ sent by a page of this node? ─▶ name typed? ─▶ act ─▶ page
                                                 │ missing       │ no                     │ no
                                                 ▼               ▼                        ▼
                                                403             403                      400, and nothing is changed

Invariants:
* a page has the button of an action when its route would let the caller in: both ask for the right of the same row;
* a form counts with the secret that this caller's pages have: nobody can make it without the token, or, of a user of a
  proxy and on a node that wants no token, without what the process drew when it began;
* each is a line of the audit log, with what it changed.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final
from urllib.parse import parse_qsl

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from millpond.errors import Denied, Invalid
from millpond.nodes.node import Node
from millpond.nodes.tokens import Caller, split_pattern
from millpond.server.access import bearer_of
from millpond.server.dispatch import Routes
from millpond.server.lakefs.access import may as may_repository
from millpond.server.routes.table import ORDER_BYTES_MAX, On, RouteNeeds, Work
from millpond.server.thread_limits import in_thread

__all__ = (
    "ACTIONS", "COOKIE", "PROXIED", "Action", "Form", "action", "actions_of", "allowed", "answer_of", "check_origin",
    "check_secret", "secret_of",
)  # fmt: skip

COOKIE: Final = "millpond_console"
PROXIED: Final = "millpond.proxied"
"""In the scope of a request: the name of the user that a proxy signed in."""
_SECRET = "secret"
_TENANT = ({"name": "tenant", "in": "query", "schema": {"type": "string", "default": "default"}},)
"""The parameter that names the tenant of an action on runs."""
_FIELDS_MAX = 1_000
Form = Mapping[str, str]
"""The fields of a form that are not empty."""
Act = Callable[[Request, Form], "str | Response"]
"""Makes a change; the page to go to, or the answer."""


@dataclass(frozen=True, slots=True)
class Action:
    """A row of the table: the path of the action, and its right on what the path names."""

    path: str
    right: str
    on: On
    summary: str
    typed: str = ""
    """The field of the path or of the form with a name that must be typed again, for what it names is lost."""
    method: str = ""
    """The method of workflows that it calls, which has a right and access lists of its own."""
    body_bytes_max: int | None = ORDER_BYTES_MAX

    @property
    def needs(self) -> RouteNeeds:
        """The needs of its route."""
        return RouteNeeds(self.right, self.on, Work.ADMINISTRATION, self.body_bytes_max, audited=True)


_MAP = "/console/maps/{name}"


_REPOSITORY = "/console/versions/{repository}"


def _of_repository(name: str, summary: str, on: On = On.BODY_BRANCH, typed: str = "") -> Action:
    return Action(f"{_REPOSITORY}/{name}", "write", on, summary, typed)


def _of_node(path: str, summary: str, typed: str = "") -> Action:
    return Action(f"/console/{path}", "admin", On.POND, summary, typed)


def _of_run(name: str, method: str, summary: str, under: str = "runs") -> Action:
    return Action(f"/console/{under}/{name}", "write", On.TENANT, summary, method=method)


ACTIONS: Mapping[str, Action] = {
    "create": Action("/console/maps", "admin", On.ANY_MAP, "Make a map"),
    "alter": Action(f"{_MAP}/alter", "admin", On.MAP, "Change the settings of a map"),
    "tend": Action(f"{_MAP}/tend", "admin", On.MAP, "Condense, retain or compact a map", typed="name"),
    "delete": Action(f"{_MAP}/delete", "admin", On.MAP, "Delete the rows of a key", typed="key"),
    "drop": Action(f"{_MAP}/drop", "admin", On.MAP, "Drop a map with all its rows", typed="name"),
    "copy": Action(f"{_MAP}/copy", "admin", On.MAP, "Copy a layered map, or rename it"),
    "restore": Action(f"{_MAP}/restore", "write", On.MAP, "Let a map be on a branch what it is at a ref"),
    "alert": Action(f"{_MAP}/alert", "admin", On.MAP, "Add a rule of alerts to a map"),
    "unalert": Action(f"{_MAP}/unalert", "admin", On.MAP, "Remove a rule of alerts", typed="alert"),
    "load": Action(f"{_MAP}/load", "write", On.MAP, "Load a file on a branch of its own", body_bytes_max=None),
    "publish": Action(f"{_MAP}/publish", "write", On.MAP, "Merge the branch of a load into main"),
    "discard": Action(f"{_MAP}/discard", "write", On.MAP, "Delete the branch of a load", typed="branch"),
    "branch": _of_repository("branch", "Make a branch"),
    "unbranch": _of_repository("unbranch", "Delete a branch with what is staged on it", typed="branch"),
    "commit": _of_repository("commit", "Commit what is staged on a branch"),
    "merge": _of_repository("merge", "Merge a ref into a branch"),
    "revert": _of_repository("revert", "Undo a commit by a new one"),
    "tag": _of_repository("tag", "Name a commit", On.REPOSITORY),
    "run-job": _of_node("jobs/run", "Run a job now"),
    "pause-job": _of_node("jobs/pause", "Do not run a job by itself"),
    "resume-job": _of_node("jobs/resume", "Run a job by itself again"),
    "retry-parts": _of_node("jobs/parts", "Merge once more what was quarantined"),
    "drain": _of_node("jobs/drain", "Take no new work, or take it again"),
    "repair": _of_node("jobs/repair", "Begin a repair"),
    "compress": _of_node("events/compress", "Compress old days now"),
    "expire": _of_node("events/expire", "Drop old days now", typed="age"),
    "start": _of_run("start", "RunWf", "Start a run"),
    "stop": _of_run("stop", "StopWfRun", "Stop a run until it is resumed"),
    "resume": _of_run("resume", "ResumeWfRun", "Let a run that was stopped go on"),
    "rescue": _of_run("rescue", "RescueThreadRun", "Let a thread that failed try its step again, or skip it"),
    "backfill": _of_run("backfill", "RunWf", "Start the runs of some partitions"),
    "pause-schedule": _of_run("pause", "ScheduleWf", "Switch a schedule off", "workflows"),
    "resume-schedule": _of_run("resume", "ScheduleWf", "Switch a schedule on again", "workflows"),
    "run-schedule": _of_run("run", "RunWf", "Start a run of a schedule now", "workflows"),
    "answer": _of_run("answer", "CompleteUserTaskRun", "Answer a question of a run"),
}  # fmt: skip


def allowed(caller: Caller, right: str, on: On, name: str) -> bool:
    """True for a caller that has a right on a thing of that name."""
    match on:
        case On.MAP:
            return caller.may(right, name)
        case On.POND:
            return caller.may(right)
        case On.TENANT:
            return caller.may_tenant(right, name)
        case On.REPOSITORY:
            return may_repository(caller, right, name)
        case On.BODY_BRANCH:
            return any(fnmatchcase(name, split_pattern(pattern)[0]) for pattern in caller.patterns(right, "repo"))
        case _:
            return bool(caller.patterns(right, "map"))


def actions_of(caller: Caller, on: On, name: str = "") -> list[str]:
    """The actions on a thing that a caller may press."""
    return [key for key, row in ACTIONS.items() if row.on is on and allowed(caller, row.right, on, name)]


def action(router: Routes, name: str) -> Callable[[Act], Act]:
    """Declare the function of an action, which runs in a thread once its form has been checked."""
    row = ACTIONS[name]
    about = _TENANT if row.on is On.TENANT else ()

    def declare(act: Act) -> Act:
        @router.post(row.path.removeprefix(router.prefix), row.needs, summary=row.summary, parameters=about)
        async def handler(request: Request) -> Response:
            check_origin(request)
            form = _fields(await request.body())
            check_secret(request, form.get(_SECRET, ""))
            if row.typed:
                expected = {**form, **request.path_params}.get(row.typed, "")
                _check_typed(row.typed, expected, form.get("typed", ""))
            return answer_of(await in_thread(request, act, request, form))

        return act

    return declare


def answer_of(content: str | Response) -> Response:
    """The answer after a change: itself, or the way to the page that shows it."""
    return RedirectResponse(content, 303, {"Cache-Control": "no-store"}) if isinstance(content, str) else content


def secret_of(request: Request) -> str:
    """The secret of the forms that the caller of a request gets."""
    node: Node = request.app.state.node
    token = bearer_of(request) or request.cookies.get(COOKIE, "") if node.tokens.required() else ""
    user = request.scope.get(PROXIED)
    drawn: str = request.app.state.form_key
    key = token or drawn if user is None else f"{drawn} {user}"
    return hmac.digest(key.encode(), b"millpond console", "sha256").hex()


def check_secret(request: Request, secret: str) -> None:
    """Insist that a form comes from a page that this caller got.

    Raises: `Denied`, kind `form_foreign`.
    """
    if not hmac.compare_digest(secret.encode(), secret_of(request).encode()):
        raise Denied(
            "the form does not come from a page that you were shown", kind="form_foreign",
            hint="open the page again, and send its form",
        )  # fmt: skip


def check_origin(request: Request) -> None:
    """Refuse a form that another site's page sends.

    Raises: `Denied`, kind `origin_foreign`.
    """
    origin, host = request.headers.get("origin"), request.headers.get("host")
    if origin is not None and origin.partition("://")[2] != host:
        raise Denied(
            "the request comes from a page of another site", kind="origin_foreign", origin=origin,
            hint="send it from a page of this node",
        )  # fmt: skip


def _check_typed(what: str, name: str, typed: str) -> None:
    if typed != name or not name:
        raise Invalid(
            f"the {what} that was typed is another one: nothing is deleted", kind="name_mistyped", typed=typed,
            expected=name, hint=f"type the {what} as the page shows it",
        )  # fmt: skip


def _fields(body: bytes) -> dict[str, str]:
    try:
        pairs = parse_qsl(body.decode("ascii"), errors="strict", max_num_fields=_FIELDS_MAX)
    except ValueError:
        raise Invalid(
            "the request is not understood", kind="request_invalid", where="form", reason="it is no form in UTF-8",
            hint="send the form of a page",
        ) from None  # fmt: skip
    return dict(pairs)
