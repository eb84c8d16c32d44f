"""The rules about the ages of events, on a node."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from millpond.errors import Invalid
from millpond.events.age_settings import AgeSettings
from millpond.events.ages import AgeRule, age_of

if TYPE_CHECKING:
    from millpond.client.transport import Nodes

__all__ = ("RemoteAges",)

_PATH = "/v1/events/settings"


class RemoteAges(AgeSettings):
    """The rules of a pond on nodes, as `events.age_settings.StoredAges` has them in a folder."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes

    def rules(self, queue: str | None = None) -> list[AgeRule]:
        """As `AgeSettings.rules`: those that the token may see."""
        query = {} if queue is None else {"queue": queue}
        rules = self._nodes.on_primary(lambda node: node.request("GET", _PATH, query=query), repeatable=True).json()
        try:
            return [
                AgeRule(rule["queue"], rule["job_set"], age_of(rule["compress_after"]), age_of(rule["retention"]))
                for rule in rules["rules"]
            ]
        except (KeyError, TypeError) as error:
            raise Invalid("these are no rules about the ages of events", kind="event_ages") from error

    def _put(self, rule: AgeRule) -> None:
        self._change("PUT", json=rule.shown())

    def _drop(self, queue: str, job_set: str | None) -> None:
        self._change("DELETE", query={"queue": queue} | ({} if job_set is None else {"job_set": job_set}))

    def _change(self, method: str, **about: Any) -> None:
        again = method == "PUT"  # what was removed is not there to be removed again
        self._nodes.on_primary(lambda node: node.request(method, _PATH, repeatable=again, **about), repeatable=again)
