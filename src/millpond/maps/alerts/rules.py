"""The rules of alerts: rows beside the catalogue, of aggregates.

    ("maps", "alerts", map, rule)    the rule, as JSON

Invariants:
* a condition was read, and met the columns of its map, before it was stored; fields of aggregates never change;
* rules of a map that is dropped go, and those of one that is renamed or copied come along, in that write;
* a rule is about what is entered after it, on all nodes: who judges a load reads the rules again where the load is
  entered; who merges one takes those of an earlier `position` of the log, and for what comes late, out of quarantine,
  all. A rule that was removed tells nothing more;
* rules are entered by entries of the log, `alert`, but those that come along with a map.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import pyarrow as pa

from millpond.error_values import shown
from millpond.errors import Invalid
from millpond.json_forms import FormError, JsonForm
from millpond.kernel.space import ReadTransaction, Transaction
from millpond.maps.log.apply import record
from millpond.maps.model.catalogue import known_map
from millpond.maps.model.columns import askable_schema
from millpond.maps.model.definition import MapDefinition
from millpond.maps.model.keyspaces import ALERTS
from millpond.maps.predicates.predicate import Predicate, predicate
from millpond.maps.predicates.taken import filtered

__all__ = (
    "BUCKETS_MAX", "CONDITION_CHARS_MAX", "RULES_MAX", "AlertRule", "checked_rule", "enter_removal", "enter_rule",
    "forget_misfits", "rules_of",
)  # fmt: skip

RULES_MAX = 100
"""The rules of one map: each load meets them all."""
BUCKETS_MAX = 24
"""The buckets in which a condition must hold, one after another; so many on either side are looked at."""
CONDITION_CHARS_MAX = 4_096
_NAME = re.compile(r"[a-z][a-z0-9_]{0,62}")
_BUCKETS = re.compile(r"\s*+(\d{1,9})\s*+(?:buckets?)?\s*+")


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertRule:
    """A rule: its condition holds in so many buckets of a key, one after another; `position` is that of its entry."""

    name: str
    when: str
    buckets: int = 1
    added_ms: int = 0
    position: int = 0

    def condition(self, definition: MapDefinition) -> Predicate:
        """The condition, ready to use."""
        return predicate(definition, self.when)


_FORM = JsonForm(AlertRule, format=1)


def rules_of(tx: ReadTransaction, name: str) -> tuple[AlertRule, ...]:
    """The rules of a map, by name.

    Raises: `Corrupt`.
    """
    return tuple(
        _FORM.stored(
            row, "a rule of an alert cannot be read", kind="alert_damaged", map=name,
            hint="read it with the version that wrote it, or a newer one",
        ) for _, row in tx.scan(ALERTS[name].range())
    )  # fmt: skip


def enter_rule(tx: Transaction, definition: MapDefinition, rule: AlertRule, now_ms: int) -> AlertRule:
    """Enter a rule of a map into the log, and store it; the rule with its position."""
    body = {"incarnation": definition.incarnation, "add": _FORM.plain(rule)}
    return replace(rule, position=record(tx, "alert", (definition.name,), body, now_ms).position)


def enter_removal(tx: Transaction, definition: MapDefinition, name: str, now_ms: int) -> None:
    """Enter into the log that a rule is removed, and remove it."""
    record(tx, "alert", (definition.name,), {"incarnation": definition.incarnation, "remove": name}, now_ms)


def forget_misfits(tx: Transaction) -> None:
    """Remove the rules that their maps cannot meet: a pond as of before may have others of those names, or none."""
    for key, row in list(tx.scan(ALERTS.range())):
        definition = known_map(tx, str(ALERTS.unpack(key)[0]))
        try:
            rule = _FORM.decode(row)
            if definition is not None and definition.aggregation is not None:
                checked_rule(definition, rule.name, rule.when, rule.buckets)
                continue
        except (FormError, Invalid):
            pass
        tx.delete(key)


def checked_rule(
    definition: MapDefinition, name: object, when: object, buckets: int | str = 1, added_ms: int = 0
) -> AlertRule:  # fmt: skip
    """A rule that the map can meet.

    Raises: `Invalid` for a name, a condition or a number of buckets that is not understood, naming a column that the
    map does not have.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise Invalid(
            "the name of an alert is not understood", kind="alert_name", map=definition.name, name=shown(name),
            hint="a lower case letter, then letters, digits and underscores, 63 at most",
        )  # fmt: skip
    if not isinstance(when, str) or not when.strip() or len(when) > CONDITION_CHARS_MAX:
        raise Invalid(
            "an alert has a condition, as text", kind="alert_condition", map=definition.name, when=shown(when),
            characters_max=CONDITION_CHARS_MAX, hint="such as: flights > 100 and avg_delay > 60",
        )  # fmt: skip
    rule = AlertRule(name=name, when=when, buckets=_buckets(definition, buckets), added_ms=added_ms)
    condition, schema = rule.condition(definition), askable_schema(definition)
    columns = [schema.field(column) for column in condition.columns]
    filtered(pa.RecordBatch.from_pylist([], schema=pa.schema(columns)), condition)
    return rule


def _buckets(definition: MapDefinition, stated: int | str) -> int:
    match = _BUCKETS.fullmatch(str(stated))
    number = 0 if match is None or isinstance(stated, bool) else int(match[1])
    if not 1 <= number <= BUCKETS_MAX:
        raise Invalid(
            "the number of buckets is not understood", kind="alert_buckets", map=definition.name,
            buckets=shown(stated), buckets_max=BUCKETS_MAX, hint="write 3, or '3 buckets'",
        )  # fmt: skip
    assert definition.aggregation is not None, "only aggregates have rules"
    if number > 1 and definition.aggregation.resolution == "none":
        raise Invalid(
            "the map has one bucket of all times", kind="alert_buckets", map=definition.name, buckets=number,
            hint="leave it out, or make a map with a resolution",
        )  # fmt: skip
    return number
