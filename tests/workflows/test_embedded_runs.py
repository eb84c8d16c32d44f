"""Runs of pipelines in one process: out of time, stopped, failed; each says what it came to."""

from __future__ import annotations

from pathlib import Path

import pytest
from littlehorse.model import StopWfRunRequest, WfRunId

import millpond
from millpond.errors import Invalid
from millpond.pipelines.embedded import embedded
from millpond.pipelines.programs import pipelines_of, read_program

OWN = """
from millpond.pipelines import pipeline, python


def one():
    return 1


@pipeline
def own():
    python(one)
"""


@pytest.mark.usefixtures("process")
def test_a_step_that_is_out_of_time_is_tried_as_often_as_it_says(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        "from millpond.pipelines import pipeline, shell\n\n\n@pipeline\ndef own():\n"
        "    shell(['sleep', '1000'], timeout=1.1, retries=0)\n"
    )
    program, said = read_program(tmp_path / "own.py"), list[str]()
    with millpond.open(tmp_path / "pond", create=True) as pond, embedded(pond, "here", said.append) as runs:
        with pytest.raises(Invalid, match=r"timeout of the step is over\. seconds=1\.1"):
            runs.run(pipelines_of(program)["own"], program, {}, "r")
        assert [line.partition(":")[0] for line in said] == ["shell"]


def test_a_run_that_was_stopped_goes_on_by_the_same_command(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    program = read_program(tmp_path / "own.py")
    own = pipelines_of(program)["own"]
    with millpond.open(tmp_path / "pond", create=True) as pond, embedded(pond, "here", str) as runs:
        runs.define(own, program)
        runs.begin("own", "r", {})
        runs._send(StopWfRunRequest(wf_run_id=WfRunId(id="r")))
        assert runs.status("r") == "HALTED"
        assert runs.run(own, program, {}, "r").values["one"] == {"value": 1}


FAILING = """
from millpond.pipelines import notify, pipeline, python, shell

def tried(place):
    with open(place, "a") as lines:
        lines.write("x")
        first = lines.tell() == 1
    raise ConnectionError("the first one") if first else ValueError("the second one")

def told():
    raise ValueError("another step")

def tell(failure):
    python(told, name="told", retries=0)

@pipeline(on_failure=tell)
def failing(place: str):
    python(tried, place, backoff=0)

@pipeline
def other():
    shell(["sh", "-c", "echo another run; exit 3"], retries=0)
"""


@pytest.mark.usefixtures("process")
def test_the_reason_of_a_run_is_its_own(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(FAILING)
    program = read_program(tmp_path / "own.py")
    pipelines = pipelines_of(program)
    inputs = {"place": str(tmp_path / "tries")}
    with millpond.open(tmp_path / "pond", create=True) as pond:
        for _ in range(2):  # when it fails, and when it has failed
            with embedded(pond, "here", str) as runs:
                runs.define(pipelines["other"], program)
                runs.begin("other", "o", {})
                with pytest.raises(Invalid, match=r"run=r reason=.*tried attempt 1: .*ValueError: the second one"):
                    runs.run(pipelines["failing"], program, inputs, "r")
                with pytest.raises(Invalid, match=r"run=o reason=.*shell: .*line=another run"):
                    runs.run(pipelines["other"], program, {}, "o")


def test_a_run_that_is_stopped_meanwhile_ends_with_that(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(f"{OWN}    python(one, name='two')\n    python(one, name='three')\n")
    program = read_program(tmp_path / "own.py")

    def stop(line: str) -> None:
        if line.startswith("one: "):
            runs._send(StopWfRunRequest(wf_run_id=WfRunId(id="r")))

    with millpond.open(tmp_path / "pond", create=True) as pond, embedded(pond, "here", stop) as runs:
        with pytest.raises(Invalid, match=r"stopped, or deleted.*status=HALT"):
            runs.run(pipelines_of(program)["own"], program, {}, "r")
        assert runs.run(pipelines_of(program)["own"], program, {}, "r").status == "COMPLETED"
