"""Measures of rows against rules: pure, so that each rule can be tested without Spark.

Invariants:
* a rule that does not apply (a mean of no rows, a change against an empty map) holds, and its finding says so;
* the report names every rule that was looked at, also those that hold.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from millpond.pipelines.requests import ColumnRule, Drift, Rules

__all__ = ("ColumnMeasure", "Finding", "Measures", "judge", "summary")


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnMeasure:
    """A column of rows: how many are null, and of numbers the smallest, the largest and the mean."""

    nulls: int = 0
    min: float | None = None
    max: float | None = None
    mean: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Measures:
    """Measures of rows: their number, their columns, and how many of their keys a map answered."""

    rows: int
    columns: dict[str, ColumnMeasure] = field(default_factory=dict)
    keys_matched: int | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """One rule: what was found, the limit, and how it came out. Nothing was `found` where it does not apply."""

    rule: str
    found: float | None
    limit: float
    passed: bool


def judge(rules: Rules, measures: Measures, there: Measures | None = None) -> list[Finding]:
    """The outcome of every rule, in their order; `there` measures the rows of the map, for drift."""
    findings = [
        *_at_least("rows_min", measures.rows, rules.rows_min),
        *_at_most("rows_max", measures.rows, rules.rows_max),
    ]
    for name, rule in rules.columns.items():
        findings += _of_column(name, rule, measures)
    if rules.keys is not None:
        share = None if measures.keys_matched is None or not measures.rows else measures.keys_matched / measures.rows
        findings += _at_least("keys.found_share_min", share, rules.keys.found_share_min)
    if rules.drift is not None and there is not None:
        findings += _of_drift(rules.drift, measures, there)
    return findings


def summary(findings: list[Finding]) -> str:
    """One readable sentence about the rules that do not hold.

    >>> summary([Finding("rows_min", 3, 10, False), Finding("rows_max", 3, 20, True)])
    '1 of 2 rules does not hold: rows_min: found 3, limit 10'
    """
    broken = [finding for finding in findings if not finding.passed]
    named = "; ".join(
        f"{violation.rule}: found {_shown(violation.found)}, limit {_shown(violation.limit)}" for violation in broken
    )
    verb = "does" if len(broken) == 1 else "do"
    return f"{len(broken)} of {len(findings)} rules {verb} not hold: {named}"


def _of_column(name: str, rule: ColumnRule, measures: Measures) -> Iterator[Finding]:
    column = measures.columns[name]
    yield from _at_least(f"{name}.min", column.min, rule.min)
    yield from _at_most(f"{name}.max", column.max, rule.max)
    share = column.nulls / measures.rows if measures.rows else None
    yield from _at_most(f"{name}.null_share_max", share, rule.null_share_max)


def _of_drift(drift: Drift, measures: Measures, there: Measures) -> Iterator[Finding]:
    yield from _at_most("drift.rows_change_max", _change(measures.rows, there.rows), drift.rows_change_max)
    for name in _numbers_of_both(measures.columns, there.columns):
        change = _change(measures.columns[name].mean, there.columns[name].mean)
        yield from _at_most(f"drift.{name}.mean_change_max", change, drift.mean_change_max)


def _numbers_of_both(new: Mapping[str, ColumnMeasure], there: Mapping[str, ColumnMeasure]) -> list[str]:
    return [name for name, column in new.items() if column.mean is not None and name in there]


def _change(new: float | None, there: float | None) -> float | None:
    """The relative change; None where there is nothing to compare with."""
    return None if new is None or not there else abs(new - there) / abs(there)


def _at_least(rule: str, measured: float | None, limit: float | None) -> Iterator[Finding]:
    if limit is not None:
        yield Finding(rule, measured, limit, measured is None or measured >= limit)


def _at_most(rule: str, measured: float | None, limit: float | None) -> Iterator[Finding]:
    if limit is not None:
        yield Finding(rule, measured, limit, measured is None or measured <= limit)


def _shown(number: float | None) -> str:
    return "nothing" if number is None else f"{number:.6g}"
