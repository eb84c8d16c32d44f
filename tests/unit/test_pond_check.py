"""Plans held against a pond: what it would make fail is refused before anything runs, and nothing else is."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any, cast

import pytest

pytest.importorskip("littlehorse")

import millpond
from millpond.errors import Invalid, MillpondError
from millpond.pipelines import (
    alerted,
    branch,
    check,
    committed,
    condense,
    enrich,
    item,
    load,
    loaded,
    merge,
    notify,
    pipeline,
    publish,
    python,
    retain,
    sql,
    yesterday,
)
from millpond.pipelines.embedded import embedded
from millpond.pipelines.pond_check import check_pond
from millpond.pipelines.programs import pipelines_of, read_program
from millpond.pond import Pond

YESTERDAY = cast("date", yesterday)
READING = "select key, temp, '2026-01-01 00:00:00+00'::timestamptz as seen, 3 as n from {weather}"


@pytest.fixture(scope="module")
def pond(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pond]:
    with millpond.open(tmp_path_factory.mktemp("pond"), create=True) as opened:
        opened.create_map("weather", kind="temporal_state", value="temp double", store="layers")
        opened.create_map("zones", kind="ranged_state", value="string", store="layers", retain="30d")
        opened.create_map("sales", kind="aggregate", value="n long count", resolution="1 hour")
        opened.create_map("flat", kind="state", value="double", store="shard")
        opened.refs.create_branch("fix")
        opened.branch("fix").create_map("only", kind="state", value="double")
        yield opened


def made() -> None:
    """A function that a step calls."""


def read() -> Any:
    return sql(READING, weather=load("a.csv", map="weather"), name="read")


def checked(pond: Pond, body: Any, **options: Any) -> None:
    check_pond(pond, pipeline(body, name="declared", **options).plan)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (lambda: load("a.csv", map="wether"), r"no such map.*names a kind.*there is: weather"),
        (lambda: load("a.csv", map="weather", kind="state", value="temp double"), "temporal_state target=state"),
        (lambda: load("a.csv", map="weather", kind="temporal_state", value="temp long"), "map_value=temp double"),
        (lambda: (load("a", map="new", kind="state", value="a long"), load("a", map="new", kind="session")),
         "map_kind=state target=session"),
        (lambda: load("a.csv", map="flat", branch="own"), "a map with branches is in layers"),
        (lambda: load(read().path, map="weather", columns={"time": "seen", "value": {"temp": "tmp"}}), "column=tmp"),
        (lambda: load(read().path, map="weather", columns={"time": "seen"}), "no place for columns.*columns=n"),
        (lambda: check("weather", "select * from weather where tmep > 60"), r'"tmep" not found.*weather has key'),
        (lambda: check("wether", "select 1"), "no such map.*there is: weather"),
        (lambda: check(read(), "select * from read where tmep > 60"), r'"tmep" not found.*read has key'),
        (lambda: check("weather", changes_max=3), "changes are counted on a branch"),
        (lambda: sql("select * from weather"), "weather does not exist.*tables and maps are inputs"),
        (lambda: sql("select w.tmp from {w} w", w=load("a", map="weather")), "tmp.*w has key, effective_time, temp"),
        (lambda: sql("select {a} as b from {w} where c", a=1, w=read()), '"c" not found.*w has key, temp, seen, n'),
        (lambda: sql("select date_trunk('day', seen) as d from {w}", w=read()), "date_trunk.*does not exist"),
        (lambda: sql("select temp || 1 + seen as d from {w}", w=read()), "asks for what is not there"),
        (lambda: enrich(read(), map="weather", key="origin", at="seen"), "no such column.*origin.*key, temp, seen"),
        (lambda: enrich(read(), map="weather", key="key", at="time"), "column=time"),
        (lambda: enrich(sql("select 1 as key, now()::date as seen"), map="weather", key="key", at="seen"), "a zone"),
        (lambda: enrich(read(), map="zones", key="seen"), "cannot be read as keys.*map=zones.*column=seen"),
        (lambda: enrich(read(), map="weather", key="key", at="seen", into="Temp"), "there already.*column=Temp"),
        (lambda: sql("select a from {e}", e=enrich(read(), map="weather", key="key", into="w")), "e has key.*n, w"),
        (lambda: enrich("a.csv", map="wether", key="key"), "map=wether there|no such map"),
        (lambda: condense("sales", before="2026-01-01T00:00:00Z"), "an aggregate does not do this"),
        (lambda: retain("weather"), "no retain setting"),
        (lambda: retain("wether", before="2026-01-01T00:00:00Z"), "no such map.*wether"),
        (lambda: branch("own", from_="mian"), "from=|mian"),
        (lambda: merge("nowhere"), "nowhere"),
        (lambda: load("a", map="weather", branch="own").merge(into="mian"), "mian"),
        (lambda: publish(load("a", map="wether")), "no such map.*map=wether"),
        (lambda: publish(load("a", map="weather"), checks=["select * from weather where tmep > 60"]), "tmep. not"),
        (lambda: (load("a", map="new", kind="state", value="a long", branch="own"), check("new", "select a from new")),
         "no such map.*map=new"),
        (lambda: [load("a", map="only", branch="fix"), load("a", map="only")], "map=only"),
        (lambda: sql("select tmep from {w}", w=publish(load("a", map="weather"))), "tmep"),
    ],
)  # fmt: skip
def test_what_the_pond_would_make_fail_is_refused(pond: Pond, body: Any, words: str) -> None:
    with pytest.raises(MillpondError, match=words) as refused:
        checked(pond, body)
    assert refused.value.values["step"] and str(refused.value.values["line"]).startswith("test_pond_check.py:")
    assert refused.value.hint, "the way out is said"


@pytest.mark.parametrize(
    "body",
    [
        lambda: (load("a.csv", map="new", kind="state", value="a long"), check("new", "select a + 1 from new")),
        lambda: (python(made), load("a.csv", map="by_hand"), check("by_hand", "select anything from by_hand")),
        lambda: (sql("select {a}[1] as b", a=python(made).rows), sql("select x from {t}", t=python(made))),
        lambda: sql("select a from read_csv('nowhere.csv')"),
        lambda: sql("select x from {w}", w=sql("select x from read_csv('nowhere.csv')")),
        lambda: sql("select nowhere from a", engine="spark"),
        lambda: enrich("a.csv", map="weather", key="whatever", at="then"),
        lambda: enrich(sql("select a from b", engine="spark"), map="weather", key="whatever"),
        lambda: load("a.csv", map="only", branch="fix"),
        lambda: (load("a", map=item, kind="state", value="a long", over=["b", "c"]), check("b", "select a from b")),
        lambda: (load("a", map="weather", branch="own"), branch("two", from_="own"), merge("own", into="two")),
        lambda: retain("zones"),
        lambda: (load("a", map="new", kind="state", value="a long", branch="own").merge(), check("new", rows_min=1)),
        lambda: load("a", map="only", branch=f"{branch('own').branch}"),
        lambda: publish(load("a", map="new", kind="state", value="a long"), checks=["select a from new"]),
        lambda: publish(load("a", map="weather"), checks=[check(rows_min=1, changes_max=0.1)], branch="fix"),
        lambda: load(read().path, map="weather", columns={"time": "seen", "value": {"temp": "n"}}),
        lambda: enrich(enrich(read(), map="weather", key="key", at="seen"), map="zones", key="n"),
        lambda: sql("select key from {w} where temp > {a} and key in {b}", w=read(), a=python(made).a, b=["a"]),
    ],
    ids=str,
)  # fmt: skip
def test_what_a_run_may_find_is_not(pond: Pond, body: Any) -> None:
    checked(pond, body)


def test_parameters_are_known_when_a_run_begins(pond: Pond) -> None:
    def body(called: str = "wether", day: date = YESTERDAY) -> None:
        weather = load(f"{day}.csv", map=called)
        sql("select * from {w} where effective_time > {day} and key = {called}", w=weather, day=day, called=called)

    plan = pipeline(body, name="declared").plan
    check_pond(pond, plan)
    check_pond(pond, plan, {"called": "weather"})
    with pytest.raises(MillpondError, match=r"no such map.*there is: weather"):
        check_pond(pond, plan, {"called": "wether"})

    def published(day: str) -> None:
        publish(load(f"{day}.csv", map="wether"), branch=f"own-{day}")

    plan = pipeline(published, name="declared").plan
    check_pond(pond, plan)
    with pytest.raises(MillpondError, match=r"no such map.*there is: weather"):
        check_pond(pond, plan, {"day": "2026-01-01"})


def test_a_pipeline_waits_for_what_is_there(pond: Pond) -> None:
    checked(pond, lambda: notify("stream:a/b"), when=loaded("weather", "zones"))
    checked(pond, lambda: load("a", map="new", kind="state", value="a long"), when=loaded("new"))
    for when in (
        loaded("weather", "zoness"), alerted("saless", rule="a"), committed("pond", branch="mian"), committed("nowhere")
    ):  # fmt: skip
        with pytest.raises(MillpondError, match=r"(zoness|saless|mian|nowhere).* when="):
            checked(pond, lambda: notify("stream:a/b"), when=when)


def test_a_run_is_refused_before_anything_of_it_is_done(pond: Pond, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        "from millpond.pipelines import pipeline, python, retain\n\n\n@pipeline\ndef own(name: str):\n"
        "    retain(name, before='2026-01-01T00:00:00Z')\n    python(print, name)\n"
    )
    program, said = read_program(tmp_path / "own.py"), list[str]()
    own = pipelines_of(program)["own"]
    with embedded(pond, "here", said.append) as runs:
        with pytest.raises(MillpondError, match=r"map=wether step=retain line=own.py:6 .*there is: weather"):
            runs.run(own, program, {"name": "wether"}, "r")
        with pytest.raises(Invalid, match="parameter is missing"):
            runs.run(own, program, {}, "r")
        assert not said and not runs.status("r")
        assert runs.run(own, program, {"name": "weather"}, "r").status == "COMPLETED"
        pond.drop_map("weather")
        assert runs.run(own, program, {"name": "weather"}, "r").status == "COMPLETED", "what was done is done"
