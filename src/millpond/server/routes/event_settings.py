"""Rules about the ages at which events are compressed and dropped, for a queue or a job set.

| route | does |
|---|---|
| `GET /v1/events/settings?queue` | lists the rules that the caller may see |
| `PUT /v1/events/settings` | sets one: `queue`, `job_set`, `compress_after`, `retention` |
| `DELETE /v1/events/settings?queue&job_set` | removes one |

A rule for a job set takes `admin` on it, one for a queue `admin` on all of its job sets.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from millpond.events.ages import AgeRule
from millpond.events.names import StreamName
from millpond.nodes.node import Node
from millpond.nodes.tokens import Caller
from millpond.server.access import note_change
from millpond.server.dispatch import Routes
from millpond.server.routes.table import On, order, read
from millpond.server.stream_rights import may_see_queue, may_stream, need_queue, need_stream
from millpond.server.thread_limits import in_thread
from millpond.server.wire import RequestBody

__all__ = ("AgeRuleRequest", "AgeRuleResponse", "AgeRulesResponse", "routes")

JobSet: TypeAlias = Annotated[
    str | None, Meta(description="the job set; null: all job sets of the queue that have no rule")
]
Age: TypeAlias = Annotated[str | None, Meta(description="null: the age of what is less specific")]


class AgeRuleRequest(RequestBody):
    """A rule to set."""

    queue: str
    job_set: JobSet = None
    compress_after: Annotated[str | int | None, Meta(description="such as `12h`, milliseconds, or `off`")] = None
    retention: Annotated[str | int | None, Meta(description="such as `30d`, milliseconds, or `off`")] = None


class AgeRuleResponse(msgspec.Struct):
    """A rule."""

    queue: str
    job_set: JobSet
    compress_after: Age
    retention: Age


class AgeRulesResponse(msgspec.Struct):
    """Rules, ordered by queue and job set."""

    rules: list[AgeRuleResponse]


def routes(node: Node) -> Routes:
    """The routes of rules."""
    router = Routes(prefix="/v1/events/settings", tag="events")
    settings = node.events.settings

    @router.get("", read(On.ANY_STREAM), summary="The ages of queues and job sets", answer=AgeRulesResponse)
    def list_rules(caller: Caller, queue: str | None = None) -> dict[str, Any]:
        return {"rules": [rule.shown() for rule in settings.rules(queue) if _may_see(caller, rule)]}

    def put(rule: AgeRuleRequest) -> dict[str, Any]:
        node.need_primary()
        ages = {"compress_after": rule.compress_after, "retention": rule.retention}
        return settings.set(rule.queue, rule.job_set, **ages).shown()

    @router.put("", order(On.ANY_STREAM), summary="Set the ages of a queue or a job set", answer=AgeRuleResponse)
    async def set_rule(request: Request, caller: Caller, age_rule: AgeRuleRequest) -> dict[str, Any]:
        """It takes the place of the rule that was there; an age that is left out is that of what is less specific."""
        _need(caller, age_rule.queue, age_rule.job_set)
        rule = await in_thread(request, put, age_rule)
        note_change(request, **rule)
        return rule

    def drop(queue: str, job_set: str | None) -> None:
        node.need_primary()
        settings.remove(queue, job_set)

    @router.delete("", order(On.ANY_STREAM, 0), summary="Remove the ages of a queue or a job set", status=204)
    async def remove_rule(request: Request, caller: Caller, queue: str, job_set: str | None = None) -> Response:
        _need(caller, queue, job_set)
        await in_thread(request, drop, queue, job_set)
        note_change(request, queue=queue, job_set=job_set)
        return Response(status_code=204)

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
