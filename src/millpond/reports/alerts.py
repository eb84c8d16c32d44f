"""Alerts as events: in the stream `alerts/MAP` of the queue `millpond`.

An event of kind `alert` has the headers `map`, `rule`, `key` and `bucket`, and as its payload JSON with the condition,
the values `before` and `after`, and the position of the change in the log. One of kind `alerts_omitted` says by its
headers `rule` and `alerts` how many more a change made.

Invariants:
* an event is told once, see `maps/alerts/alerted.py`: it is stored with the position of its change as that of a source;
* several processes may tell the same: it is stored once, whoever is first, and in order;
* work never fails for its alerts: what cannot be told waits for the next change, the jobs `merge` and `events` of a
  node, or for the next who may write and opens the pond.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from millpond.errors import Denied, MillpondError, NotFound
from millpond.events.event import EventBatch, NewEvent
from millpond.events.ids import format_id, parse_id
from millpond.events.interface import EventsLike
from millpond.events.names import OWN_QUEUE, StreamName
from millpond.json_forms import parse_object, to_json
from millpond.kernel.space import Space
from millpond.kernel.steps import step
from millpond.maps.alerts.alerted import Alerted, next_alerted, remove_alerted
from millpond.reports.reporter import Appends, reason_of

__all__ = ("alert_stream", "read_alert", "tell_alerts")

SOURCE = "alerts"
KEY_CHARS_MAX = 200
"""A longer key is cut in the header; the payload has all of it."""
_CROSSINGS = 1 << 32
"""More than one change makes: positions of events count changes by it."""
_LOG = logging.getLogger(__name__)


def alert_stream(name: str) -> StreamName:
    """The stream of a map's alerts."""
    return StreamName(OWN_QUEUE, f"alerts/{name}")


def read_alert(events: EventsLike, name: str, id_: str) -> dict[str, Any]:
    """The alert of a map whose event has this id: its `map`, `rule`, `key`, `bucket`, and what the payload tells.

    Raises: `NotFound` when the event is stored no more.
    """
    event = next(events.read(*alert_stream(name), format_id(parse_id(id_) - 1)), None)
    if event is None or event.id != id_:
        raise NotFound("the event of the alert is gone", kind="alert_not_found", map=name, event=id_,
                       hint=f"give the queue {OWN_QUEUE} a longer retention")  # fmt: skip
    return {**event.headers, **parse_object(event.payload)}


def tell_alerts(
    space: Space, store: Callable[[], Appends], entered_ms: Callable[[], int | None] = lambda: None
) -> None:  # fmt: skip
    """Store the events of all that is to be told, in the order of the log; `entered_ms` as in `remove_alerted`."""
    try:
        while rows := next_alerted(space):
            store().append([_batch(alerted) for alerted in rows.values()])
            step("alerts.appended")
            remove_alerted(space, rows, entered_ms())
    except Denied:
        pass  # others tell it
    except MillpondError as error:
        _LOG.warning("alerts could not be told, and wait: %s", reason_of(error))


def _batch(alerted: Alerted) -> EventBatch:
    events = [
        NewEvent(
            alerted.stamp_ms,
            to_json({"when": crossing.when, "key": crossing.key, "before": crossing.before, "after": crossing.after,
                     "position": alerted.position}),
            "alert",
            {"map": alerted.map, "rule": crossing.rule, "key": crossing.key[:KEY_CHARS_MAX], "bucket": crossing.bucket},
        )
        for crossing in alerted.crossings
    ]  # fmt: skip
    for rule, count in alerted.omitted.items():
        headers = {"map": alerted.map, "rule": rule, "alerts": str(count)}
        events.append(NewEvent(alerted.stamp_ms, b"", "alerts_omitted", headers))
    first = alerted.position * _CROSSINGS + alerted.first
    return EventBatch(alert_stream(alerted.map), events, SOURCE, range(first, first + len(events)))
