"""Fields that come, go and come back: as known at a moment, a map is what it was in the commit of then.

What the commit of a moment showed is the model: its fields under the names, and in the types, of now; a field that it
lacked shows its default, though rows from before it was dropped have it.
"""

from __future__ import annotations

import tempfile
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import millpond
from millpond.clock import ManualClock
from millpond.errors import Invalid, MillpondError
from millpond.maps.model.definition import ScalarType, ValueType
from millpond.maps.model.one_value import SCALARS, python_value
from tests.harness import strategies
from tests.harness.models import bits_of
from tests.models.test_fields_model import changes
from tests.rings.sampling import examples

if TYPE_CHECKING:
    from millpond import Map, MapDefinition

BEGAN = 1_700_000_000_000
AT = BEGAN - 1_000
NUMBERS = range(4)
INSTANT = pa.timestamp("ms", "UTC")
ACTS = ("load", "load", "change", "restore", "revert", "compact")


class Known(NamedTuple):
    """The answers of the commit that was the head from a moment on to all questions, and its definition."""

    since: int
    commit: str
    definition: MapDefinition
    answers: list[Any]


def keys_of(kind: str) -> list[Any]:
    return [number if "ranged" in kind else f"k{number}" for number in NUMBERS]


def rows_of(data: st.DataObject, kind: str, value: ValueType) -> dict[str, Any]:
    numbers = data.draw(st.lists(st.sampled_from(NUMBERS), min_size=1, max_size=3, unique=True))
    keys = {"key_start": numbers, "key_end": numbers} if "ranged" in kind else {"key": [f"k{n}" for n in numbers]}
    times = {"effective_time": pa.array([AT] * len(numbers), INSTANT)} if "temporal" in kind else {}
    drawn: list[Any] = [data.draw(strategies.values(value)) for _ in numbers]
    columns = {
        name: pa.array([None if row is None else row[name] for row in drawn], _ARROW.get(scalar))
        for name, scalar in value.fields
    }
    return {**keys, **times, **columns}


_ARROW = {
    ScalarType.BOOLEAN: pa.bool_(), ScalarType.DOUBLE: pa.float64(), ScalarType.LONG: pa.int64(),
    ScalarType.TIMESTAMP: pa.timestamp("us", "UTC"), ScalarType.STRING: pa.string(), ScalarType.BINARY: pa.binary(),
    ScalarType.JSON: pa.string(),
}  # fmt: skip


def answers_of(opened: Any, kind: str, **known: Any) -> list[Any]:
    times = {"at": AT} if "temporal" in kind else {}
    answers: list[Any] = opened.lookup(keys_of(kind), **times, **known).to_pylist()
    return answers


def widened(value: Any, was: ScalarType, now: ScalarType) -> Any:
    if value is None or was is now:
        return value
    if now is ScalarType.DOUBLE:
        return float(value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def shown(now: MapDefinition, then: MapDefinition, value: Any) -> Any:
    """A value of then with the fields of now."""
    if value is None:
        return None
    assert now.value is not None and then.value is not None
    before = dict(zip(then.field_ids, then.value.fields, strict=True))
    defaults = {d.field: bytes.fromhex(d.value) for d in (now.fields.defaults if now.fields else ())}
    said = {}
    for id_, (name, scalar) in zip(now.field_ids, now.value.fields, strict=True):
        if id_ in before:
            was = before[id_]
            said[name] = widened(value[was[0]], was[1], scalar)
        else:
            default = defaults.get(id_)
            said[name] = default and widened(python_value(default, None), SCALARS[default[0]], scalar)
    return said


def narrower(now: MapDefinition, then: MapDefinition) -> bool:
    """True where a widening of then was taken back since: such values may have no answer."""
    assert now.value is not None and then.value is not None
    before = dict(zip(then.field_ids, (scalar for _, scalar in then.value.fields), strict=True))
    types = zip(now.field_ids, (scalar for _, scalar in now.value.fields), strict=True)
    return any(before.get(id_, scalar) in (ScalarType.DOUBLE, ScalarType.STRING) and before.get(id_, scalar) != scalar
               for id_, scalar in types)  # fmt: skip


def has_fields(answer: Any) -> bool:
    """A row is shown by `scan` where its value is null, too: as one whose fields all are."""
    return answer is not None and any(value is not None for value in answer.values())


@pytest.mark.usefixtures("processor", "process")
@pytest.mark.sample(2)
@pytest.mark.parametrize("kind", ["state", "temporal_state", "ranged_state", "temporal_ranged_state"])
@pytest.mark.parametrize("ref", ["main", "fix"])
@settings(max_examples=examples(5, 20), suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_moment_shows_what_its_commit_shows(kind: str, ref: str, data: st.DataObject) -> None:
    clock = ManualClock(now=BEGAN)
    with tempfile.TemporaryDirectory() as folder, millpond.open(folder, clock=clock) as pond:
        pond.create_map("m", kind=kind, value="a long, b boolean, c string", store="layers")
        place: Any = pond if ref == "main" else pond.branch(ref, source="main")
        known: list[Known] = []
        for number, what in enumerate(["load", *data.draw(st.lists(st.sampled_from(ACTS), min_size=2, max_size=8))]):
            clock.advance(1000)
            layered: Map = place.map("m")
            commits = list(dict.fromkeys(state.commit for state in known))
            with suppress(MillpondError):  # of what cannot be taken back, and of a number that has no double
                match what:
                    case "load":
                        assert layered.definition.value is not None
                        layered.load(rows_of(data, kind, layered.definition.value), again=True)
                    case "change":
                        place.alter_map("m", **data.draw(changes(layered.definition, number)).written)
                    case "compact":
                        pond.map("m").compact()
                    case _ if commits[1:]:  # the first brought the map
                        act = pond.refs.restore if what == "restore" else pond.refs.revert
                        act(data.draw(st.sampled_from(commits[1:])), ref)
            commit = pond.refs.resolve(ref)
            at = pond.at(commit).map("m")
            known.append(Known(clock.now_ms(), commit, at.definition, answers_of(at, kind)))
        for opened in (place, pond.at(ref)):
            check(opened, kind, known)


def check(opened: Any, kind: str, known: list[Known]) -> None:
    layered = opened.map("m")
    now = layered.definition
    assert now.value is not None
    sure = [state for state in known if not narrower(now, state.definition)]
    for state in sure:
        expected = [shown(now, state.definition, answer) for answer in state.answers]
        assert bits_of(answers_of(layered, kind, known_at=state.since)) == bits_of(expected), state
        one = {"at": AT} if "temporal" in kind else {}
        got = [layered.get(key, known_at=state.since, **one) for key in keys_of(kind)]
        assert bits_of(got) == bits_of(expected)
        there = {key: answer for key, answer in zip(keys_of(kind), expected, strict=True) if has_fields(answer)}
        queried = [opened.sql("select * from m", known_at=state.since)] if state is sure[-1] else []
        for rows in (layered.scan(known_at=state.since).read_all(), *queried):
            keys = rows[rows.column_names[0]].to_pylist()
            scanned = dict(zip(keys, rows.select([name for name, _ in now.value.fields]).to_pylist(), strict=True))
            assert bits_of({key: row for key, row in scanned.items() if has_fields(row)}) == bits_of(there)
    if not sure:
        return
    questions = [(key, state.since) for state in sure for key in keys_of(kind)]
    moments = pa.array([moment for _, moment in questions], INSTANT)
    times = {"at": pa.array([AT] * len(questions), INSTANT)} if "temporal" in kind else {}
    answers = layered.lookup([key for key, _ in questions], **times, known_at=moments).to_pylist()
    assert bits_of(answers) == bits_of(
        [shown(now, state.definition, answer) for state in sure for answer in state.answers]
    )
    for state in known:
        if narrower(now, state.definition):
            with suppress(Invalid):
                answers_of(layered, kind, known_at=state.since)
