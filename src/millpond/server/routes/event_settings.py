"""Rules about the ages at which events are compressed and dropped, for a queue or a job set.

| route | does |
|---|---|
| `GET /v1/events/settings?queue` | lists the rules that the caller may see |
| `PUT /v1/events/settings` | sets one: `queue`, `job_set`, `compress_after`, `retention` |
| `DELETE /v1/events/settings?queue&job_set` | removes one |

A rule for a job set takes `admin` on it, one for a queue `admin` on all of its job sets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field

from millpond.events.names import StreamName
from millpond.server.access import RequestCaller, note_change
from millpond.server.limits import GuardedRoute
from millpond.server.stream_rights import may_see_queue, may_stream, need_queue, need_stream
from millpond.server.threads import in_thread
from millpond.server.wire import RequestBody

if TYPE_CHECKING:
    from millpond.events.ages import AgeRule
    from millpond.nodes.node import Node
    from millpond.nodes.tokens import Caller

__all__ = ("AgeRuleRequest", "AgeRuleResponse", "AgeRulesResponse", "routes")

_JOB_SET = "the job set; null: all job sets of the queue that have no rule"


class AgeRuleRequest(RequestBody):
    """A rule to set."""

    queue: str
    job_set: str | None = Field(None, description=_JOB_SET)
    compress_after: str | int | None = Field(None, description="such as `12h`, milliseconds, or `off`")
    retention: str | int | None = Field(None, description="such as `30d`, milliseconds, or `off`")


class AgeRuleResponse(BaseModel):
    """A rule."""

    queue: str
    job_set: str | None = Field(description=_JOB_SET)
    compress_after: str | None = Field(description="null: the age of what is less specific")
    retention: str | None = Field(description="null: the age of what is less specific")


class AgeRulesResponse(BaseModel):
    """Rules, ordered by queue and job set."""

    rules: list[AgeRuleResponse]


def routes(node: Node) -> APIRouter:
    """The routes of rules."""
    router = APIRouter(route_class=GuardedRoute, prefix="/v1/events/settings", tags=["events"])
    settings = node.pond.events.settings

    @router.get("", summary="The ages of queues and job sets", response_model=AgeRulesResponse)
    def list_rules(caller: RequestCaller, queue: str | None = None) -> dict[str, Any]:
        return {"rules": [rule.shown() for rule in settings.rules(queue) if _may_see(caller, rule)]}

    def put(wanted: AgeRuleRequest) -> dict[str, Any]:
        node.need_primary()
        ages = {"compress_after": wanted.compress_after, "retention": wanted.retention}
        return settings.set(wanted.queue, wanted.job_set, **ages).shown()

    @router.put("", summary="Set the ages of a queue or a job set", response_model=AgeRuleResponse)
    async def set_rule(request: Request, caller: RequestCaller, wanted: AgeRuleRequest) -> dict[str, Any]:
        """It takes the place of the rule that was there; an age that is left out is that of what is less specific."""
        _need(caller, wanted.queue, wanted.job_set)
        rule = await in_thread(request, put, wanted)
        note_change(request, **rule)
        return rule

    def drop(queue: str, job_set: str | None) -> None:
        node.need_primary()
        settings.remove(queue, job_set)

    @router.delete("", summary="Remove the ages of a queue or a job set", status_code=204)
    async def remove_rule(request: Request, caller: RequestCaller, queue: str, job_set: str | None = None) -> None:
        _need(caller, queue, job_set)
        await in_thread(request, drop, queue, job_set)
        note_change(request, queue=queue, job_set=job_set)

    return router


def _may_see(caller: Caller, rule: AgeRule) -> bool:
    if rule.job_set is None:
        return may_see_queue(caller, rule.queue)
    return may_stream(caller, "read", StreamName(rule.queue, rule.job_set))


def _need(caller: Caller, queue: str, job_set: str | None) -> None:
    if job_set is None:
        need_queue(caller, "admin", queue)
    else:
        need_stream(caller, "admin", StreamName(queue, job_set))
