"""Layered maps as they were known: every answer is that of a dictionary as it was at that moment."""

from __future__ import annotations

import tempfile
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import millpond
from millpond.clock import ManualClock
from millpond.errors import Invalid
from millpond.maps.layered.maintenance import collect_files, fold_due
from millpond.maps.snapshots import finder
from tests.rings.sampling import examples

if TYPE_CHECKING:
    from collections.abc import Callable

    from millpond import Map, Pond

BEGAN = 1_700_000_000_000
KINDS = ("state", "temporal_state", "ranged_state", "temporal_ranged_state", "session")
NUMBERS, TIMES = range(6), range(5)

ROW = st.tuples(st.sampled_from(NUMBERS), st.sampled_from(TIMES), st.integers(0, 3), st.integers(0, 99))
ACTS = st.lists(
    st.one_of(
        st.tuples(st.just("load"), st.lists(ROW, min_size=1, max_size=5)),
        st.tuples(st.sampled_from(["fold", "fold all", "condense", "collect"]), st.just([])),
    ),
    min_size=1,
    max_size=9,
)


def time(number: int) -> int:
    return BEGAN - 1_000_000 + number * 1000


def row_of(kind: str, row: tuple[int, int, int, int]) -> dict[str, Any]:
    number, at, length, value = row
    if kind == "session":
        return {"key": f"k{number}", "start": time(at), "end": time(at + length)}
    keys = {"key": f"k{number}"} if "ranged" not in kind else {"key_start": number, "key_end": number + length}
    return keys | ({"effective_time": time(at)} if "temporal" in kind else {}) | {"value": value}


def address_of(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(value for name, value in row.items() if name != "value")


def answer(kind: str, rows: dict[tuple[Any, ...], dict[str, Any]], number: int, at: int) -> Any:
    """The answer of rows to a key, or a number, at a time: by the rules of `docs/maps.md`, one row after another."""
    best: tuple[Any, Any] | None = None
    for row in rows.values():
        if "key" in row and row["key"] != f"k{number}":
            continue
        if "key_start" in row and not row["key_start"] <= number <= row["key_end"]:
            continue
        if row.get("effective_time", at) > at:
            continue
        if kind == "session":
            if not row["start"] <= at <= row["end"]:
                continue
            rank, said = (row["start"], -row["end"]), (row["start"], row["end"])
        else:
            width = row.get("key_end", 0) - row.get("key_start", 0)
            rank, said = (-width, row.get("key_start", 0), row.get("effective_time", 0)), row["value"]
        if best is None or rank > best[0]:
            best = rank, said
    return None if best is None else best[1]


def plain(kind: str, value: Any) -> Any:
    if kind != "session" or value is None:
        return value
    return tuple(int(value[name].timestamp() * 1000) for name in ("start", "end"))


def act(layered: Map, clock: ManualClock, what: str, rows: list[dict[str, Any]]) -> bool:
    """Do it; true when the map holds something else from then on."""
    layers, before = layered.rows.snapshots, layered.rows.version
    if what == "load":
        layered.load(rows, again=True)
    elif what == "condense":
        if layered.kind.timed:
            layered.condense(before=time(3))
    elif what == "collect":
        clock.advance(3_600_000)
        collect_files(layers)
    else:
        fold_due(layers, everything=what == "fold all")
    return layered.rows.version > before


@pytest.mark.sample(3)
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=examples(4, 10), suppress_health_check=list(HealthCheck))
@given(acts=ACTS, overwrite=st.booleans())
def test_every_answer_is_that_of_its_moment(kind: str, acts: list[tuple[str, list[Any]]], overwrite: bool) -> None:
    clock = ManualClock(now=BEGAN)
    value = None if kind == "session" else "long"
    with tempfile.TemporaryDirectory() as folder, millpond.open(folder, clock=clock) as pond:
        layered = pond.create_map("m", kind=kind, value=value, overwrite=overwrite, store="layers")
        rows: dict[tuple[Any, ...], dict[str, Any]] = {}
        known: list[tuple[int, Any]] = []
        for what, drawn in acts:
            clock.advance(1000)
            loaded = [row_of(kind, row) for row in drawn]
            if not act(layered, clock, what, loaded):
                continue
            for row in loaded:
                if overwrite or address_of(row) not in rows:
                    rows[address_of(row)] = row
            if what == "condense":  # what it leaves is what it says; that it says the same is tested elsewhere
                rows = {address_of(row): row for row in map(_as_loaded, layered.scan().read_all().to_pylist())}
            known.append((clock.now_ms(), dict(rows)))
        check(layered, kind, known)


def _as_loaded(row: dict[str, Any]) -> dict[str, Any]:
    return {
        name: int(value.timestamp() * 1000) if hasattr(value, "timestamp") else value
        for name, value in row.items() if name != "value_type" and value is not None
    }  # fmt: skip


def check(layered: Map, kind: str, known: list[tuple[int, Any]]) -> None:
    if not known:
        assert layered.lookup([_key(kind, 0)], known_at=BEGAN).to_pylist() == [None]
        return
    moments = sorted({BEGAN, *(moment + step for moment, _ in known for step in (-1, 0, 1))})
    questions = [(number, at, moment) for moment in moments for number in NUMBERS for at in TIMES]
    expected = []
    for number, at, moment in questions:
        states = [rows for since, rows in known if since <= moment]
        expected.append(answer(kind, states[-1], number, time(at)) if states else None)
    keys = [_key(kind, number) for number, _, _ in questions]
    at = pa.array([time(at) for _, at, _ in questions], pa.timestamp("ms", "UTC"))
    moment_column = pa.array([moment for *_, moment in questions], pa.timestamp("ms", "UTC"))
    answers = layered.lookup(keys, at, known_at=moment_column).to_pylist()
    assert [plain(kind, said) for said in answers] == expected
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(finder, "order_bits", lambda *_: 3)  # few questions come in the order in which many do
        patch.setattr(finder, "BLOCK", 1)
        encoded = layered.lookup(
            pa.array(keys).dictionary_encode() if isinstance(keys[0], str) else keys, at, known_at=moment_column
        )
    assert encoded.to_pylist() == answers
    for moment in moments:
        places = [place for place, question in enumerate(questions) if question[2] == moment]
        some = [keys[place] for place in places]
        if moment < known[0][0]:
            with pytest.raises(Invalid, match="nothing was known"):
                layered.lookup(some, at.take(places), known_at=moment)
            continue
        assert layered.lookup(some, at.take(places), known_at=moment).to_pylist() == [
            answers[place] for place in places
        ]
        number, time_, _ = questions[places[7]]
        assert plain(kind, layered.get(_key(kind, number), time(time_), known_at=moment)) == expected[places[7]]
        state = next(rows for since, rows in reversed(known) if since <= moment)
        assert {address_of(_as_loaded(row)) for row in layered.scan(known_at=moment).read_all().to_pylist()} == set(
            state
        )


def _key(kind: str, number: int) -> Any:
    return number if "ranged" in kind else f"k{number}"


REF_ACTS = st.lists(
    st.tuples(
        st.sampled_from(["load main", "load fix", "stage fix", "commit fix", "to main", "to fix", "reset fix"]),
        st.lists(ROW, min_size=1, max_size=3), st.integers(1, 1500),
    ),
    min_size=1, max_size=10,
)  # fmt: skip


def act_at_ref(pond: Pond, what: str, rows: list[dict[str, Any]]) -> None:
    """Do it, if there is something to do."""
    fix = pond.branch("fix")
    acts: dict[str, Callable[[], object]] = {
        "load main": lambda: pond.map("m").load(rows, again=True),
        "load fix": lambda: fix.map("m").load(rows, again=True),
        "stage fix": lambda: fix.map("m").load(rows, again=True, commit=False),  # type: ignore[call-arg]
        "commit fix": fix.commit,
        "to main": lambda: fix.merge(strategy="source-wins"),
        "to fix": lambda: pond.refs.merge("main", "fix", strategy="source-wins"),
        "reset fix": lambda: pond.refs.reset("fix", "fix~1"),
    }
    try:
        acts[what]()
    except Invalid as error:
        if error.kind not in ("no_changes", "branch_dirty"):
            raise


@pytest.mark.parametrize("kind", ["temporal_state", "ranged_state"])
@settings(max_examples=8, suppress_health_check=list(HealthCheck))
@given(acts=REF_ACTS)
def test_a_ref_answers_as_its_commits_were(kind: str, acts: list[tuple[str, list[Any], int]]) -> None:
    """The model: what each head of a branch said while it was the head, along first parents."""
    clock = ManualClock(now=BEGAN)
    with tempfile.TemporaryDirectory() as folder, millpond.open(folder, clock=clock) as pond:
        pond.create_map("m", kind=kind, value="long", store="layers").load([row_of(kind, (1, 1, 1, 0))])
        pond.branch("fix", source="main")
        began = (pond.refs.states.resolve("main"), BEGAN, _answers(pond.at("main").map("m"), kind))
        lines = {"main": [began], "fix": [began]}
        for what, drawn, step in acts:
            clock.advance(step)
            if what == "reset fix" and len(lines["fix"]) == 1:
                continue  # it would leave the history that is modelled
            act_at_ref(pond, what, [row_of(kind, row) for row in drawn])
            for ref, line in lines.items():
                head = pond.refs.states.resolve(ref)
                known = [id_ for id_, *_ in line]
                if head in known:
                    del line[known.index(head) + 1 :]  # a reset
                else:
                    line.append((head, clock.now_ms(), _answers(pond.at(head).map("m"), kind)))
        moments = sorted({moment + step for line in lines.values() for _, moment, _ in line for step in (-1, 0, 1)})
        for ref, line in lines.items():
            for opened in (pond.at(ref), *([pond.branch(ref)] if ref != "main" else [])):
                check_at_ref(opened.map("m"), kind, line, moments)
            check_at_ref(pond.at(line[-1][0]).map("m"), kind, line, moments)
            check_at_ref(pond.at(line[0][0]).map("m"), kind, line[:1], moments)


def _answers(at_ref: Map, kind: str, **known: Any) -> list[Any]:
    keys, times = zip(*((_key(kind, number), time(at)) for number in NUMBERS for at in TIMES), strict=True)
    answers: list[Any] = at_ref.lookup(list(keys), None if kind == "ranged_state" else list(times), **known).to_pylist()
    return answers


def check_at_ref(at_ref: Map, kind: str, line: list[tuple[str, int, Any]], moments: list[int]) -> None:
    for moment in moments:
        said = [answers for _, since, answers in line if since <= moment]
        if said:
            assert _answers(at_ref, kind, known_at=moment) == said[-1]
        else:
            with pytest.raises(Invalid, match="nothing was known"):
                _answers(at_ref, kind, known_at=moment)
