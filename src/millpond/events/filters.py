"""Filters of events: a reader names what it wants, and is given nothing else.

    kind=failed&kind=cancelled&job=17&header.team=etl

| filter | an event matches when |
|---|---|
| `kind` | its kind is one of the values; the empty value is an event without a kind |
| `job` | its header `job_id` is one of the values |
| `header.NAME` | it has the header NAME, with one of the values |

Invariants:
* values of one filter are alternatives, and an event matches all filters; texts are compared exactly, letter by letter;
* a filtered reader gives the events that match of those that a reader without filters gives, in the same order;
* the place of a reader moves on over events that do not match: it never reads them again, and holds none of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from operator import itemgetter
from typing import TypeAlias
from urllib.parse import parse_qsl

from millpond.error_values import shown
from millpond.errors import Invalid
from millpond.events.event import Event

__all__ = (
    "ALL", "FILTER_BYTES_MAX", "FILTER_VALUES_MAX", "EventFilter", "Filters", "filter_of", "filter_of_pairs",
    "filter_of_query", "is_filter",
)  # fmt: skip

FILTER_VALUES_MAX = 100
"""Values of all filters of one reader."""
FILTER_BYTES_MAX = 8 * 1024
"""Names and values of all filters of one reader: they travel in the address of a request."""
KIND, JOB, HEADER = "kind", "job", "header."
JOB_HEADER = "job_id"
_HINT = f"filters are {KIND}, {JOB} and {HEADER}NAME, each with texts, such as {KIND}=failed"

Filters: TypeAlias = Mapping[str, str | Iterable[str]]
"""Filters by name, each with a value or several."""


@dataclass(frozen=True, slots=True)
class EventFilter:
    """Filters that were understood: their names, and the values that are wanted of each."""

    values: tuple[tuple[str, frozenset[str]], ...] = ()

    def select(self, events: list[Event]) -> list[Event]:
        """The events that match, in their order.

        >>> failed = filter_of({"kind": ["failed", "lost"], "job": "7"})
        >>> some = [Event(1, 0, b"", "failed", {"job_id": "7"}), Event(2, 0, b"", "failed", {})]
        >>> [event.number for event in failed.select(some)], len(ALL.select(some))
        ([1], 2)
        """
        for name, values in self.values:
            if name == KIND:
                events = [event for event in events if event.kind in values]
            else:
                header = JOB_HEADER if name == JOB else name.removeprefix(HEADER)
                events = [event for event in events if event.headers.get(header) in values]
        return events

    @property
    def query(self) -> dict[str, list[str]]:
        """The filters by name, from which `filter_of` makes these again."""
        return {name: sorted(values) for name, values in self.values}


ALL = EventFilter()
"""The filter that every event matches."""


def is_filter(name: object) -> bool:
    """True for the name of a filter."""
    return isinstance(name, str) and (name in (KIND, JOB) or name.startswith(HEADER))


def filter_of(filters: Filters | None) -> EventFilter:
    """The filter that a mapping describes; None is `ALL`.

    >>> filter_of({"job": "7", "kind": ["failed"]}).query
    {'job': ['7'], 'kind': ['failed']}

    Raises:
        Invalid: a name or a value is not understood, or there are too many.
    """
    if not filters:
        return ALL
    if not isinstance(filters, Mapping):
        raise Invalid("filters are a mapping", kind="event_filter", filters=shown(filters), hint=_HINT)
    parsed: dict[str, frozenset[str]] = {}
    for name, values in filters.items():
        if not is_filter(name):
            raise Invalid("there is no such filter of events", kind="event_filter", filter=shown(name), hint=_HINT)
        parsed[name] = _values(name, values)
    _check_size(parsed)
    return EventFilter(tuple(sorted(parsed.items(), key=itemgetter(0))))


def _values(name: str, texts: str | Iterable[str]) -> frozenset[str]:
    try:
        values = frozenset((texts,) if isinstance(texts, str) else texts)
        f"{name}{''.join(values)}".encode()
    except (TypeError, ValueError):
        values = frozenset()
    if not values:
        raise Invalid(
            "a filter of events has a text, or several", kind="event_filter", filter=shown(name), value=shown(texts),
            hint=_HINT,
        )  # fmt: skip
    return values


def _check_size(filters: Mapping[str, frozenset[str]]) -> None:
    count = sum(map(len, filters.values()))
    size = sum(len(text.encode()) for name, values in filters.items() for text in (name, *values))
    if count > FILTER_VALUES_MAX or size > FILTER_BYTES_MAX:
        raise Invalid(
            "the filters of events are too many, or too long", kind="event_filter", values=count,
            values_max=FILTER_VALUES_MAX, bytes=size, bytes_max=FILTER_BYTES_MAX,
            hint="begin several readers, or filter what they give",
        )  # fmt: skip


def filter_of_pairs(pairs: Iterable[tuple[str, str]]) -> EventFilter:
    """The filter of names and values; a name may come again with another value.

    Raises: as `filter_of`.
    """
    filters: dict[str, list[str]] = {}
    for name, value in pairs:
        filters.setdefault(name, []).append(value)
    return filter_of(filters)


def filter_of_query(text: str) -> EventFilter:
    """The filter of a text such as `kind=failed&kind=lost&header.team=etl`, as in the address of a request.

    >>> filter_of_query("kind=failed&kind=lost&header.team=a%26b").query
    {'header.team': ['a&b'], 'kind': ['failed', 'lost']}

    Raises: as `filter_of`.
    """
    try:
        pairs = parse_qsl(text, keep_blank_values=True, strict_parsing=True, errors="strict") if text.strip() else []
    except ValueError as error:
        raise Invalid(
            "the filters of events are not understood", kind="event_filter", filters=shown(text), hint=_HINT
        ) from error
    return filter_of_pairs(pairs)
