"""Starts of pipelines: any name of a function, and parameters that are looked at before a run begins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from littlehorse.model import (
    RunWfRequest,
    ScheduleWfRequest,
    SearchWfRunRequest,
    TaskAttempt,
    TaskDefId,
    TaskRun,
    Variable,
    VariableId,
    VariableValue,
    VarNameAndVal,
)

from millpond.errors import Invalid
from millpond.json_forms import to_json
from millpond.pipelines import pipeline, sql
from millpond.pipelines.programs import pipelines_of, read_program
from millpond.pipelines.values import filled
from millpond.server.workflows.reads import READS
from millpond.testing import temporary_pond
from millpond.testing.pipelines import PipelineRuns
from millpond.workflows.engine.pipeline_starts import checked_parameters
from millpond.workflows.engine.start_inputs import inputs_of
from millpond.workflows.engine.values.conversions import value_of
from millpond.workflows.engine.values.masks import shown
from millpond.workflows.named import filters_of, spec_of
from millpond.workflows.processor import read_rows
from millpond.workflows.tasks.inputs import inputs_of_task

DAILY = """
from datetime import date

from millpond.pipelines import pipeline, python


def twice(n):
    return 2 * n


@pipeline
def daily_load(n: int, day: date = "2026-01-01", password: int = 1):
    python(twice, n)
"""


def test_a_pipeline_has_the_name_of_its_function_and_looks_at_parameters_when_it_starts(tmp_path: Path) -> None:
    file = tmp_path / "daily.py"
    file.write_text(DAILY)
    with temporary_pond() as pond:
        runs = PipelineRuns(pond)
        runs.deploy(file)
        run = runs.run("daily_load", n="4")
        assert runs.outputs(run)["twice"] == {"value": 8}
        for inputs, words in (
            ({"n": "abc"}, "parameter=n type=int value=abc"),
            ({"n": 1, "day": "notadate"}, "parameter=day type=date value=notadate"),
            ({"n": 1, "day": 3}, "parameter=day type=date value=3"),
            ({"day": "2026-01-01"}, "parameter=n type=int"),
            ({"n": 1, "m": 2}, "its parameters: n, day, password"),
            ({"n": 1, "password": "hunter22"}, r"value=\\*\\*\\*"),
        ):
            variables = {"parameters": value_of(inputs)}
            for request in (
                RunWfRequest(wf_spec_name="daily-load", id="wrong", variables=variables),
                ScheduleWfRequest(wf_spec_name="daily-load", cron_expression="0 3 * * *", variables=variables),
            ):
                with pytest.raises(Invalid, match=words):
                    runs.send(request)
        assert runs.start("daily-load", "wrong", parameters={"n": 1}) == "wrong"  # none has begun of this id


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("int", True), ("int", "1.5"), ("float", "nan"), ("float", float("inf")), ("bool", "yes"), ("bool", 1),
        ("list", "{}"), ("list", "["), ("list", "[1],[2]"), ("dict", "[1]"), ("datetime", "now"), ("str", 3),
        ("date", None), ("int", str(2**63)), ("int", -(2**63) - 1), ("float", 10**30),
    ],
)  # fmt: skip
def test_values_of_another_type_are_refused(kind: str, value: Any) -> None:
    with pytest.raises(Invalid, match=f"parameter=a type={kind}"):
        checked_parameters([{"name": "a", "type": kind, "required": False}], {"a": value})


@pytest.mark.parametrize("name", ["nightly_", "_nightly", "night-ly"])
def test_a_name_that_no_engine_could_have_is_refused_when_it_is_declared(name: str) -> None:
    with pytest.raises(Invalid, match="inner _"):
        pipeline(lambda: sql("select 1"), name=name)


def test_a_schedule_needs_the_defaults_of_all_parameters() -> None:
    def body(day: str) -> None:
        sql("select {day} as day", day=day)

    with pytest.raises(Invalid, match=r"parameter=day.*default"):
        pipeline(body, name="nightly", schedule="0 3 * * *")


def test_two_pipelines_of_a_file_have_two_names(tmp_path: Path) -> None:
    file = tmp_path / "two.py"
    file.write_text(f"{DAILY}\nother = pipeline(lambda: python(twice, 1), name='daily_load')\n")
    with pytest.raises(Invalid, match="pipeline=daily_load"):
        pipelines_of(read_program(file))
    file.write_text(f"{DAILY}\nsame = daily_load\n")
    assert list(pipelines_of(read_program(file))) == ["daily_load"]


@pytest.mark.parametrize(
    ("stored", "seen"),
    [
        ('{"day":"2026-01-01","api_key":"k-123456"}', '{"day":"2026-01-01","api_key":"*****"}'),
        ('{"load":{"rows":3,"password":7,"secrets":{"token":"t"}},"a":[{"TOKEN":"t"}]}',
         '{"load":{"rows":3,"password":"*****","secrets":{"token":"*****"}},"a":[{"TOKEN":"*****"}]}'),
        ('{"tokens":["a",1],"secrets":{"db":"b"},"count_tokens":{"path":"c","rows":1}}',
         '{"tokens":["*****","*****"],"secrets":{"db":"*****"},"count_tokens":{"path":"c","rows":1}}'),
        ('{"api_token":"hunter22","call":{"said":"with hunter22","hunter22":[1]},"pin_token":"123"}',
         '{"api_token":"*****","call":{"said":"with *****","*****":[1]},"pin_token":"*****"}'),
        ('{"text":"the token is lost"}', '{"text":"the token is lost"}'),
        ('["token"]', '["token"]'),
    ],
)  # fmt: skip
def test_secrets_among_parameters_are_not_shown_with_a_run(stored: str, seen: str) -> None:
    value = VariableValue(json_obj=stored)
    for name in ("parameters", "values"):
        assert shown(Variable(id=VariableId(name=name), value=value)).value.json_obj == seen
    assert shown(Variable(id=VariableId(name="other"), value=value)).value.json_obj == stored
    inputs, attempts = [VarNameAndVal(var_name="values", value=value)], [TaskAttempt(output=value)]
    for task, there in (("step", seen), ("other", stored)):
        row = shown(TaskRun(task_def_id=TaskDefId(name=task), input_variables=inputs, attempts=attempts))
        assert row.input_variables[0].value.json_obj == row.attempts[0].output.json_obj == there


def test_the_output_of_a_step_tells_no_secret_of_its_inputs() -> None:
    values = VariableValue(json_obj='{"api_token":"hunter22"}')
    program, output = VariableValue(json_obj='{"source":"hunter"}'), VariableValue(json_obj='{"output":"TOK=hunter22"}')
    task = TaskRun(
        task_def_id=TaskDefId(name="step"), attempts=[TaskAttempt(output=output)],
        input_variables=[VarNameAndVal(value=program), VarNameAndVal(value=values)],
    )  # fmt: skip
    row = shown(task)
    assert row.attempts[0].output.json_obj == '{"output":"TOK=*****"}'
    assert row.input_variables[0].value == program


@pytest.mark.parametrize(
    "template",
    [
        "raw", 7, None, ["a", {"b": [1]}], {"$value": ["day"]}, {"$value": ["loaded", "rows"]}, {"$value": ["loaded"]},
        {"$value": ["day"], "format": "%Y"}, {"$value": ["rows"], "format": ",.2f"},
        {"$text": ["raw/", {"$value": ["day"], "format": "%Y/%m"}, "/", {"$value": ["rows"]}, ".csv"]},
        [{"$text": [{"$value": ["loaded", "map"]}, "!"]}],
    ],
)  # fmt: skip
def test_a_step_shows_the_inputs_that_it_was_given(template: Any) -> None:
    values = {"day": "2026-01-03", "rows": 1_234, "loaded": {"map": "weather", "rows": 3}}
    given = filled(template, values)
    shown_as = given if isinstance(given, str) else to_json(given).decode()
    assert inputs_of_task(step_task({"kind": "sql", "inputs": {"own": template}}, values)) == {"own": shown_as}


def step_task(planned: dict[str, Any], values: dict[str, Any]) -> TaskRun:
    inputs = {"step": planned, "values": values, "program": {"source": "text of the file"}}
    variables = [VarNameAndVal(var_name=name, value=value_of(value)) for name, value in inputs.items()]
    return TaskRun(task_def_id=TaskDefId(name="step"), input_variables=variables)


def test_the_inputs_of_a_step_are_bounded_and_tell_no_secret() -> None:
    values = {"api_token": "hunter22", "rows": 3, "day": "no day"}
    planned = {
        "kind": "shell", "over": [1, 2], "when": {"$test": [">", {"$value": ["rows"]}, 2]},
        "inputs": {"words": ["echo", {"$value": ["api_token"]}, {"$value": ["item"]}, {"$value": ["no", "step"]}],
                   "env": {"PASSWORD": "swordfish"}, "day": {"$value": ["day"], "format": "%Y"}, "text": "x" * 2_000},
    }  # fmt: skip
    inputs = inputs_of_task(shown(step_task(planned, values)))
    assert inputs.pop("text") == "x" * 1_000 + "… and 1,000 more letters"
    assert inputs == {
        "words": '["echo","*****","{item}","{no.step}"]', "env": '{"PASSWORD":"*****"}', "day": "no day",
        "over": "[1,2]", "when": "3 > 2",
    }  # fmt: skip
    assert inputs_of_task(shown(step_task({"kind": "parameters"}, values)))["api_token"] == "*****"
    other = TaskRun(
        task_def_id=TaskDefId(name="greet"), input_variables=[VarNameAndVal(var_name="n", value=value_of(1))]
    )
    assert inputs_of_task(other) == {"n": "1"}


TAGGED = """
from datetime import date

from millpond.pipelines import pipeline, python


def twice(n):
    return 2 * n


@pipeline
def tagged(n: int, day: date = "2026-01-01", share: float = 2, hot: bool = False, name: str = None, api_key: str = "x",
           more: list = [1], values: str = "own"):
    python(twice, n)
"""


def test_the_parameters_of_a_run_are_tags(tmp_path: Path) -> None:
    file = tmp_path / "tagged.py"
    file.write_text(TAGGED)
    with temporary_pond() as pond:
        runs = PipelineRuns(pond)
        runs.deploy(file)
        first, second = runs.run("tagged", n=1, share="0.5"), runs.run("tagged", n="2", day="2026-01-02", hot="true")

        def call(method: str, request: Any) -> Any:
            return read_rows(runs._processor, "default", lambda rows: READS[type(request)](rows, request))

        def found(*tags: str) -> set[str]:
            request = SearchWfRunRequest(wf_spec_name="tagged", variable_filters=filters_of(call, "tagged", tags))
            return {row.id for row in call("SearchWfRun", request).results}

        assert found("day=2026-01-01") == found("n=1") == found("hot=false") == found("share=0.5") == {first}
        assert found("day=2026-01-02", "share=2", "n=2", "hot=true") == {second} and found("n=1", "hot=true") == set()
        for other in ("api_key=x", "more=[1]", "values=own", "m=1"):
            with pytest.raises(Invalid, match="write NAME=VALUE of a searchable variable: day, hot, n, name, share"):
                found(other)
        spec = spec_of(call, "tagged")
        assert inputs_of(spec, {"n": "3", "day": "2026-01-03"}).keys() == {"parameters"}
        with pytest.raises(Invalid, match="one input"):
            inputs = {"day": value_of("x"), "parameters": value_of({"n": 1})}
            runs.send(RunWfRequest(wf_spec_name="tagged", variables=inputs))
