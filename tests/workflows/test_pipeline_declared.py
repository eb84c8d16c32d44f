"""Pipelines as they are declared: what cannot work is refused, with its step and line; the rest is a plan."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any, Optional, cast
from xml.etree import ElementTree

import pytest

from millpond.errors import Invalid, MillpondError
from millpond.pipelines import (
    branch,
    check,
    enrich,
    item,
    load,
    notify,
    pipeline,
    publish,
    python,
    retain,
    shell,
    spark,
    sql,
)  # fmt: skip
from millpond.pipelines.plan import drawn, drawn_svg, shown_plan
from millpond.pipelines.programs import call_function, pipelines_of, read_program
from millpond.pipelines.values import filled, template_of


def declared(body: Any) -> Any:
    return pipeline(body, name="declared")


async def awaited() -> None:
    sql("select 1")


def of_many(*days: str) -> None:
    sql("select 1")


def of_run(run: int = 3) -> None:
    python(abs, run)


def of_no_number(most: int = cast("int", "much")) -> None:
    python(template_of, most)


def later(value: Any) -> None:
    sql("select {a} as a", a=value)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (lambda: None, "no steps"),
        (lambda: sql("select a form b"), "not understood"),
        (lambda: sql("drop table a"), "one SELECT"),
        (lambda: sql("select * from {b}"), "input=b"),
        (lambda: sql("select 1", a=1), "input=a"),
        (lambda: sql(f"select {item}"), "stands in SQL"),
        (lambda: sql("select * from t where day = '{day}'", day=1), "in quotes.*input=day.*without quotes"),
        (lambda: check("select 'it''s {a}' as b", a=1), "in quotes.*input=a"),
        (lambda: sql("select e'\\'{a}' as b", a=1), "in quotes.*input=a "),
        (lambda: sql("select $x${a}$x$ as b", a=1), "in quotes.*input=a.*"),
        (lambda: sql('select "{a}" from b', a=1), "in quotes.*input=a."),
        (lambda: sql("select '\\'{a}'", a=1, engine="spark"), "in quotes.*input=a.."),
        (lambda: (sql("select 1", name="a"), sql("select 2", name="a")), "step=a"),
        (lambda: sql("select 1", name="run"), "step=run"),
        (lambda: sql("select 1", retry=3), "input=retry"),
        (lambda: load("a.csv", map="m", retry=3), "option=retry"),
        (lambda: shell("rm -rf $x"), "list of words"),
        (lambda: notify("ftp://a"), "place=ftp"),
        (lambda: python(3), "calls a function"),
        (lambda: load("a", map="a", kind="stat"), "kind is not known.*value=stat"),
        (lambda: load("a", map="a", kind="state", value="temp dubble"), "value type is not known"),
        (lambda: python(template_of), "does not take what its step gives it.*missing a required argument"),
        (lambda: spark(template_of, 2), "step=spark function=template_of"),
        (lambda: retain("m", timeout=0), "timeout"),
        (lambda: check("select 1") and None, "not there yet"),
        (lambda: shell(["a", object()]), "type=object"),
        (lambda: sql("select {a} as a", a=template_of), "type=function"),
        (lambda: python(template_of, item), "an item is there"),
        (lambda: python(template_of, item, over=[1], when=item > 0), "when is looked at once"),
        (lambda: python(template_of, needs=["a"]), "not the output of a step"),
        (lambda: python(template_of, retries=1.5), "retries and backoff are 0 or more.*retries=1.5"),
        (lambda: notify("stream:a/b", text=f"a{sql('select 1')}".upper()), "changed as text"),
        (lambda: notify("stream:a/b", text=sql("select 1").row), r"value=sql\.row fields=path, rows"),
        (lambda: notify("stream:a/b", text={"$text": 1}), r"name=\$text"),
        (lambda: sql("select {name} as a", name="b"), "name of an option.*input=name"),
        (lambda: notify("stream:abc"), "place=stream:abc"),
        (lambda: python(template_of, over="abc"), "over is a list"),
        (lambda: python(template_of, timeout="5m"), "timeout are numbers"),
        (lambda: python(template_of, retries=True), "retries, backoff"),
        (lambda: python(template_of, backoff=-1), "backoff=-1"),
        (lambda: python(template_of, retries=10**10), "retries and backoff are.*retries=10000000000.*limit="),
        (lambda: python(template_of, timeout=float("nan")), "retries and backoff are.*timeout=nan"),
        (lambda: python(template_of, backoff=float("inf")), "retries and backoff are.*backoff=inf"),
        (lambda: sql("select 1", when="warm.rows > 0"), "a condition is a value.*step=sql"),
        (lambda: sql("select 1", when=f"{sql('select 1').rows} > 0"), "a condition is a value.*step=sql2"),
        (lambda: python(template_of, item, over=[*range(10_001)]), "items=10001 limit=10000"),
        (lambda: load("a", map="m", format="excel"), "format is not known.*step=load"),
        (lambda: load("a", map="m", columns={"valeu": "b"}), "name=valeu step=load"),
        (lambda: load("a", map="m", max_rejects=-1), "max_rejects=-1 step=load"),
        (lambda: load("a", map="m", branch="ma in"), "not a name for a branch.*step=load"),
        (lambda: load("a", map="m").merge(), "on no branch.*load=load step=merge"),
        (lambda: branch("main"), "main is the pond itself.*step=branch"),
        (lambda: branch("b").merge(strategy="ours"), "invalid merge strategy.*step=merge"),
        (lambda: check(rows_min=1), "limits are of a map.*limits=rows_min step=check"),
        (lambda: retain("m", before="yesterda"), "time is not understood.*step=retain"),
        (lambda: enrich("a.csv", map="No Map", key="k"), "map name is not valid.*step=enrich"),
        (lambda: load(shell(["true"]), map="m"), "output=shell takes=path .*step=load"),
        (lambda: check(shell(["true"]), rows_min=1), "output=shell takes=map or path .*step=check"),
        (lambda: check(sql("select 1"), changes_max=1), "output=sql takes=map .*step=check .*changes on a branch"),
        (lambda: python(print, timeout=sql("select 1").rows), r"option=timeout value={sql\.rows} .*outright"),
        (lambda: python(print, backoff=f"{sql('select 1').rows}"), r"step=print option=backoff value={sql\.rows} "),
        (lambda: python(print, retries=sql("select 1").rows > 3), "step=print option=retries value={"),
        (lambda: python(print, name=f"a{sql('select 1').rows}"), r"step=a{sql\.rows} option=name "),
        (lambda: python(print, over=f"{sql('select 1').rows}"), r"over={sql\.rows} "),
        (lambda: publish(load("a", map="a"), checks=[check(rows_min=1, fails=False)]), "that fail the run.*step=check"),
        (awaited, "def without async"),
        (of_many, r"parameter=\*days"),
        (of_no_number, "parameter=most type=int value=much"),
        (of_run, "a parameter has a name of its own.*parameter=run"),
    ],
)
def test_what_cannot_work_is_refused_when_it_is_declared(body: Any, words: str) -> None:
    with pytest.raises(Invalid, match=words):
        declared(body)


def test_a_parameter_may_say_what_its_list_has_and_that_it_may_be_none() -> None:
    def body(names: list[str], day: date | None = None, more: Optional[dict[str, int]] = None) -> None:  # noqa: UP045
        python(template_of, item, over=range(3), needs=python(print, names, day, more))

    plan = pipeline(body).plan
    assert [(own.type, own.required) for own in plan.parameters] == [("list", True), ("date", False), ("dict", False)]
    assert plan.steps[1].over == [0, 1, 2]


def test_a_condition_may_be_a_constant_and_limits_may_be_of_a_named_map() -> None:
    declared(lambda: (sql("select 1", when=False), check("weather", rows_min=1), check(sql("select 1"), rows_max=2)))


def test_a_check_that_does_not_fail_is_a_value_to_branch_on() -> None:
    def body() -> None:
        found = check("select 1", fails=False)
        notify("stream:a/b", rows=found.rows, first=found.first, reason=found.reason, when=found.passed == False)  # noqa: E712

    assert declared(body).plan.steps[1].when == {"$test": ["==", {"$value": ["check", "passed"]}, False]}


def test_quotes_end() -> None:
    declared(lambda: sql("select '{', {a}, '}', \"b c\", 1 -- it's\n, {a} /* don't */, {a}, $${$$", a=1))
    declared(lambda: sql("select {at} as at, * from {order} limit {end}", at=1, order=2, end=3))
    declared(lambda: sql("select '\\'', {a}, '' || {a} || '{3}'", a=1, engine="spark"))


def test_a_step_takes_values_of_steps_before_it_alone() -> None:
    retained: list[Any] = []

    def body() -> None:
        if not retained:
            retained.append(sql("select 1 as a", name="first"))
        later(retained[0])

    declared(body)
    with pytest.raises(Invalid, match="takes=first"):
        declared(body)
    with pytest.raises(Invalid, match="function of a pipeline"):
        sql("select 1")
    with pytest.raises(MillpondError, match="not a cron expression"):
        pipeline(lambda: sql("select 1"), name="never", schedule="0 0 30 2 *")
    with pytest.raises(Invalid, match="no such time zone"):
        pipeline(lambda: sql("select 1"), name="mars", schedule="0 3 * * *", time_zone="Mars")
    with pytest.raises(Invalid, match=r"no such option\. option=shedule"):
        pipeline(lambda: sql("select 1"), name="own", shedule="0 3 * * *")
    with pytest.raises(Invalid, match="five fields alone"):
        pipeline(lambda: sql("select 1"), name="off", schedule="PAUSED=true 0 3 * * *")


def test_a_pipeline_within_another_joins_its_plan_and_is_drawn() -> None:
    inner = pipeline(lambda n=1: sql("select {n} as a", n=n, name="rows"), name="inner")

    def outer() -> None:
        rows = inner(2)
        sql("select * from {rows}", rows=rows, when=rows.rows > 0, name="last")

    def after(token: str = "hunter22") -> None:
        first = sql("select 1")
        python(template_of, token, needs=first, name="last")

    assert declared(after).plan.steps[1].needs == ("sql",) and "hunter22" not in next(drawn(declared(after).plan))
    assert "hunter22" not in str(shown_plan(declared(after).plan)) and "hunter22" in str(declared(after).plan)
    plan = declared(outer).plan
    assert [(step.name, step.takes()) for step in plan.steps] == [("inner_rows", ()), ("last", ("inner_rows",))]
    assert [line.strip() for line in drawn(plan)][-1] == "└─ last  [sql, if]  ◀ inner_rows"
    twice = declared(lambda: (inner(2), inner(3), inner(4))).plan
    assert [step.name for step in twice.steps] == ["inner_rows", "inner2_rows", "inner3_rows"]
    assert len(ElementTree.fromstring(drawn_svg(plan)).findall("{http://www.w3.org/2000/svg}rect")) == 2


def test_a_drawing_has_conditions_loops_and_the_steps_of_a_failure() -> None:
    def tell(failure: Any) -> None:
        shell(["true"], name="told", env={"step": failure.step})

    def body() -> None:
        rows = sql("select 1 as a", name="rows")
        shell(["true"], name="each_of_a_long_name_that_needs_room", over=[1, 2], when=rows.rows > 0)

    def once() -> None:
        sql("select 1 as a", name="rows")

    drawing = ElementTree.fromstring(drawn_svg(pipeline(body, name="own", on_failure=tell).plan))
    boxes, words, lines = (drawing.findall(f"{{http://www.w3.org/2000/svg}}{tag}") for tag in ("rect", "text", "path"))
    assert [text.text for text in words] == [
        "rows  [sql]", "each_of_a_long_name_that_needs_room  [shell, if, for each]", "told  [shell]", "on failure",
    ]  # fmt: skip
    assert [box.get("class") for box in boxes] == [None, None, "failure"] and len(lines) == 1
    tops = [int(box.get("y", "")) for box in boxes]
    assert tops == sorted(tops) and int(drawing.get("height", "")) >= tops[-1] + 32
    assert tops[1] + 32 < int(words[-1].get("y", "")) < tops[2]
    assert int(boxes[0].get("width", "")) > 400 and int(drawing.get("width", "")) > int(boxes[0].get("width", "")) + 60
    assert "failure" not in drawn_svg(declared(once).plan).partition("</style>")[2]


def test_a_file_that_does_not_import_names_its_line(tmp_path: Path) -> None:
    file = tmp_path / "broken.py"
    file.write_text("a = 1\nb = nothing\n")
    with pytest.raises(Invalid, match=r"line=2 reason=NameError"):
        pipelines_of(read_program(file))
    file.write_text("from millpond.pipelines import *\n\n@pipeline\ndef a():\n    sql('select 1', retries=-1)\n")
    with pytest.raises(Invalid, match=r"step=sql retries=-1.*line=5"):
        pipelines_of(read_program(file))
    file.write_text("import sys\nsys.exit(3)\n")
    with pytest.raises(Invalid, match=r"line=2 reason=SystemExit: 3"):
        pipelines_of(read_program(file))
    file.write_text("a = 1\n")
    with pytest.raises(Invalid, match="no pipeline"):
        pipelines_of(read_program(file))


TYPED = """
from datetime import date, datetime

from millpond.pipelines import pipeline, python, spark


def told(session, day, at, text, most=1):
    return [session, type(day).__name__, type(at).__name__, type(text).__name__, most]


def noted(*values):
    return told("none", *values)


@pipeline
def typed(day: date, at: datetime, text: str = "2026-01-01"):
    spark(told, day, at, text)
    python(noted, day, at, text, {"day": day})
"""


def test_a_function_gets_days_and_instants_as_such(tmp_path: Path) -> None:
    (tmp_path / "typed.py").write_text(TYPED)
    program, values = read_program(tmp_path / "typed.py"), ["2026-01-01", "2026-01-01T06:00:00", "2026-01-01"]
    assert call_function(program, "typed", "told", values, session="one") == {
        "value": ["one", "date", "datetime", "str", 1]
    }
    said = call_function(program, "typed", "noted", [*values, {"day": "2026-01-01"}])
    assert said == {"value": ["none", "date", "datetime", "str", {"day": "2026-01-01"}]}


def test_values_stand_in_templates_as_what_they_are() -> None:
    values = {"step": {"rows": 3, "path": "a b"}, "day": "2026-01-01", "off": {"$skipped": True}}
    assert filled({"$value": ["step", "rows"]}, values) == 3
    for text, said in ((f"{item!r}", "4"), (f"{[item]}", "[4]"), (f"{item > 3}", "True"), (f"{item:>3}", "  4")):
        assert filled(template_of(text), {"item": 4}) == said
    for template in (template_of(f"{item:%Y}"), template_of(f"{item:d}"), template_of(item > 3)):
        with pytest.raises(Invalid, match=r"no such format|no order"):
            filled(template, {"item": "tomorrow"})
    assert filled(template_of([f"{item}"]), {"item": 4}) == ["4"]
    assert filled({"$text": ["x", {"$value": ["day"], "format": "%d"}]}, values) == "x01"
    for path in (["off", "rows"], ["off"]):
        with pytest.raises(Invalid, match="step=off"):
            filled({"$value": path}, values)
    with pytest.raises(Invalid, match=r"value=step\.size"):
        filled({"$value": ["step", "size"]}, values)
