"""Steps of pipelines as they are carried out: stopped, tried again, answered, and their programs."""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest

pytest.importorskip("littlehorse")

from littlehorse.config import LHConfig
from littlehorse.exceptions import LHTaskException

import millpond
from millpond.cli.workflows.task_worker import TaskWorker
from millpond.errors import Closed, Invalid
from millpond.kernel.steps import listening
from millpond.maps.map import Map
from millpond.pipelines import tasks
from millpond.pipelines.attempt_logs import AttemptLog
from millpond.pipelines.attempt_threads import in_thread, while_it_lasts
from millpond.pipelines.embedded import embedded
from millpond.pipelines.kinds import _program_run
from millpond.pipelines.programs import Program, pipelines_of
from millpond.pipelines.queries import write_rows
from millpond.pipelines.requests import Target
from millpond.pipelines.step import Step, held
from millpond.pipelines.step_lineage import StepLineage
from millpond.pipelines.targets import map_for_load
from millpond.pipelines.tickets import void
from millpond.pond import Pond
from millpond.reports.steps import StepReports
from tests.unit.test_step_keys import Attempts

VALUES: dict[str, Any] = {"run": {"id": "r", "key": "run"}}


@pytest.fixture
def pond(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pond]:
    monkeypatch.setenv("MILLPOND_POND", "here")
    monkeypatch.setenv("MILLPOND_MAPS_STORE", "layers")
    monkeypatch.setenv("MILLPOND_PIPELINE_FILES", str(tmp_path / "files"))
    with millpond.open(tmp_path / "pond", create=True) as opened, held("here", opened):
        yield opened


def done(attempts: Attempts, kind: str, inputs: dict[str, Any], **values: Any) -> Any:
    """An attempt at a step, not begun yet."""
    planned = {"name": "own", "kind": kind, "pipeline": "p", "inputs": inputs, "when": None, "over": None}
    return tasks.step(planned, VALUES | values, {}, attempts.next())


def load(file: Path, **more: Any) -> dict[str, Any]:
    return {"files": str(file), "map": "weather", "kind": "state", "value": "temp double", "max_rejects": 0} | more


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = tmp_path / "rows.csv"
    made.write_text("key,temp\nJFK,39.0\n")
    return made


def loads(pond: Pond) -> int:
    return sum(entry.kind == "load" and bool(entry.body["rows"]) for entry in pond.log.entries(0))


@pytest.mark.parametrize("branch", [{}, {"branch": "own"}], ids=["main", "branch"])
def test_a_load_whose_attempt_is_stopped_does_not_enter_afterwards(
    pond: Pond, file: Path, branch: dict[str, str]
) -> None:
    here, go = threading.Event(), threading.Event()

    def wait(name: str) -> None:
        if name == "layers.layer_written" and not here.is_set():
            here.set()
            assert go.wait(20)

    attempts = Attempts()

    async def stopped() -> None:
        task = asyncio.create_task(done(attempts, "load", load(file, **branch)))
        await asyncio.to_thread(here.wait, 20)
        task.cancel()
        await asyncio.wait({task}, timeout=20)
        assert task.cancelled()
        go.set()
        await asyncio.get_running_loop().shutdown_default_executor()  # the thread of the load has ended

    with listening(wait):
        asyncio.run(stopped())
    assert loads(pond) == 0
    assert asyncio.run(done(attempts, "load", load(file, **branch)))["rows"] == 1
    assert loads(pond) == 1


def test_a_ticket_is_voided_however_often_the_attempt_is_cancelled(pond: Pond, file: Path) -> None:
    pond.create_map("weather", kind="state", value="temp double")
    free = threading.Event()

    async def cancelled() -> None:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(1))
        loop.run_in_executor(None, free.wait)  # no thread has begun to void it
        task = asyncio.create_task(Step(Attempts().next(), "here", "key").outside(lambda own: void(own, "ticket")))
        for _ in range(3):  # the timeout is over, by the clock of the worker and of the engine
            await asyncio.sleep(0)
            task.cancel()
        free.set()
        await asyncio.wait({task}, timeout=20)

    asyncio.run(cancelled())
    pond.load_files([file], "weather", load_id="ticket")
    assert loads(pond) == 0


def test_work_hears_that_its_attempt_is_over() -> None:
    begun, go = threading.Event(), threading.Event()

    def work() -> None:
        with while_it_lasts() as look:
            look(1, 2)
            begun.set()
            go.wait(20)
            with pytest.raises(Closed, match="the step was stopped"):
                look(3, 4)
            go.clear()

    async def stopped() -> None:
        task = asyncio.create_task(in_thread(work))
        await asyncio.to_thread(begun.wait, 20)
        task.cancel()
        await asyncio.wait({task}, timeout=20)
        go.set()
        await asyncio.get_running_loop().shutdown_default_executor()

    asyncio.run(stopped())
    assert not go.is_set()


def test_a_load_that_was_entered_before_its_worker_was_lost_is_the_result_of_the_next_attempt(
    pond: Pond, file: Path
) -> None:
    class Lost(Attempts):
        async def execute_and_checkpoint(self, work: Callable[[object], Any]) -> Any:
            if self.attempt_number == 0 and loads(pond):
                raise ConnectionError("the worker is gone")
            return await super().execute_and_checkpoint(work)

    attempts = Lost()
    with pytest.raises(RuntimeError):
        asyncio.run(done(attempts, "load", load(file)))
    file.write_text("key,temp\nJFK,39.0\nLGA,1.0\n")  # it goes on growing
    output = asyncio.run(done(attempts, "load", load(file)))
    assert (output["map"], output["rows"], loads(pond)) == ("weather", 1, 1)


def test_tables_of_two_attempts_at_once_are_whole(tmp_path: Path) -> None:
    schema, file = pa.schema([("a", pa.int64())]), tmp_path / "own.parquet"

    def batches(values: range, besides: Callable[[], object] = lambda: None) -> pa.RecordBatchReader:
        def made() -> Iterator[pa.RecordBatch]:
            yield pa.record_batch([pa.array(values)], schema=schema)
            besides()
            yield pa.record_batch([pa.array(values)], schema=schema)

        return pa.RecordBatchReader.from_batches(schema, made())

    # The first one is over, and its thread goes on while the second one writes.
    second = batches(range(3), lambda: None)
    assert write_rows(batches(range(1000), lambda: write_rows(second, file)), file) == 2000
    from pyarrow import parquet

    assert parquet.read_table(file)["a"].to_pylist() == [*range(1000), *range(1000)]
    assert [own.name for own in tmp_path.iterdir()] == ["own.parquet"]


# -- programs -----------------------------------------------------------------------------------------


def program(*words: str) -> dict[str, Any]:
    return {"command": list(words), "env": {}}


@pytest.mark.usefixtures("process", "pond")
def test_a_program_may_write_any_bytes_and_the_last_characters_are_its_output() -> None:
    output = asyncio.run(done(Attempts(), "shell", program("printf", r"caf\351\r\nend")))
    assert output == {"status": 0, "output": "caf\ufffd\nend"}
    output = asyncio.run(done(Attempts(), "shell", program("sh", "-c", "seq 20000; cat")))
    assert len(output["output"]) == 10_000 and output["output"].endswith("19999\n20000\n")
    with pytest.raises(RuntimeError, match="status=3 line=so"):
        asyncio.run(done(Attempts(), "shell", program("sh", "-c", "echo so; exit 3")))
    with pytest.raises(LHTaskException, match=r"does not begin.*no-such-program"):
        asyncio.run(done(Attempts(), "shell", program("no-such-program")))


@pytest.mark.usefixtures("process", "pond")
@pytest.mark.parametrize("more", ["; true", "&"], ids=["inner", "left behind"])
def test_a_program_ends_with_all_that_it_began_when_its_attempt_is_stopped(tmp_path: Path, more: str) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    async def stopped() -> None:
        command = program("sh", "-c", f"sleep 1000 3>&1 > {pipe} {more}")
        task = asyncio.create_task(done(Attempts(), "shell", command))
        held_open = await asyncio.to_thread(pipe.open)  # it is there when the inner program has opened it
        task.cancel()
        await asyncio.wait({task}, timeout=20)
        assert task.cancelled()
        assert await asyncio.wait_for(asyncio.to_thread(held_open.read), 20) == ""
        held_open.close()

    asyncio.run(stopped())


_KILLED_AT_ONCE = """
import asyncio, os, signal, subprocess
from millpond.pipelines.kinds import _program_run

class Killing(subprocess.Popen):
    def __init__(self, words, **more):
        super().__init__(words, **more)
        if "sleep" in words:
            print(self.pid, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)

subprocess.Popen = Killing
asyncio.run(_program_run(["sleep", "1000"], {}))
"""


@pytest.mark.usefixtures("process")
def test_a_program_ends_though_its_process_is_killed_as_soon_as_it_has_begun() -> None:
    worker = subprocess.run([sys.executable, "-c", _KILLED_AT_ONCE], stdout=subprocess.PIPE, check=False)
    assert worker.returncode == -signal.SIGKILL
    with suppress(ProcessLookupError):  # it has ended by now
        sleeping = os.pidfd_open(int(worker.stdout))
        assert select.select([sleeping], [], [], 30)[0]
        os.close(sleeping)


@pytest.mark.usefixtures("process")
def test_a_program_whose_attempt_ends_before_a_thread_reads_it_leaves_no_file_open(tmp_path: Path) -> None:
    pipe, busy = tmp_path / "pipe", threading.Event()
    os.mkfifo(pipe)

    async def stopped() -> None:
        threads = ThreadPoolExecutor(1)
        asyncio.get_running_loop().set_default_executor(threads)
        threads.submit(busy.wait)
        task = asyncio.create_task(_program_run(["sh", "-c", f"echo > {pipe}; sleep 1000"], {}))
        with ThreadPoolExecutor(1) as other:
            await asyncio.get_running_loop().run_in_executor(other, pipe.read_bytes)
        task.cancel()
        await asyncio.wait({task}, timeout=20)
        assert task.cancelled()
        busy.set()

    open_before = set(Path("/proc/self/fd").iterdir())
    asyncio.run(stopped())
    assert set(Path("/proc/self/fd").iterdir()) == open_before


@pytest.mark.usefixtures("process", "pond")
def test_a_program_that_went_away_holds_up_no_attempt_that_is_stopped(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    away = "import os, sys; os.setsid(); lines = open(sys.argv[1], 'w'); sys.stdin.read()"
    reader, writer = os.pipe()  # the program ends when the test does

    async def stopped() -> None:
        command = program("sh", "-c", f'{sys.executable} -c "{away}" {pipe} < /proc/{os.getpid()}/fd/{reader} & wait')
        task = asyncio.create_task(done(Attempts(), "shell", command))
        held_open = await asyncio.to_thread(pipe.open)
        task.cancel()
        await asyncio.wait({task}, timeout=20)
        assert task.cancelled()
        await asyncio.wait_for(asyncio.get_running_loop().shutdown_default_executor(), 20)
        held_open.close()

    try:
        asyncio.run(stopped())
    finally:
        os.close(writer)
        os.close(reader)


# -- maps that are read --------------------------------------------------------------------------------


def test_a_check_reads_of_a_map_what_it_shows(pond: Pond, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    big, read, scan = tmp_path / "big.csv", list[int](), Map.scan
    big.write_text("key,temp\n" + "".join(f"k{number},{number}\n" for number in range(40_000)))
    asyncio.run(done(Attempts(), "load", load(big)))

    def counted(own: Map, *arguments: Any, **named: Any) -> pa.RecordBatchReader:
        def batches() -> Iterator[pa.RecordBatch]:
            for batch in reader:
                for start in range(0, batch.num_rows, 1000):
                    read.append(min(1000, batch.num_rows - start))
                    yield batch.slice(start, 1000)

        reader = scan(own, *arguments, **named)
        return pa.RecordBatchReader.from_batches(reader.schema, batches())

    monkeypatch.setattr(Map, "scan", counted)
    inputs = {"engine": "local", "inputs": {"weather": {"map": "weather"}}, "maps": [], "limits": {}}
    finds = {**inputs, "query": "select * from {weather} where temp >= 0", "finds_nothing": True}
    with pytest.raises(LHTaskException, match="the check finds rows") as failed:
        asyncio.run(done(Attempts(), "check", finds))
    assert len(json.loads(failed.value.content.json_obj)["first"]) == 5 and sum(read) < 40_000
    twice = "select count(*) as n from {weather} a join {weather} b using (key) having n <> 40000"
    nothing = {**inputs, "query": twice, "finds_nothing": True}
    assert asyncio.run(done(Attempts(), "check", nothing))["passed"]


@pytest.mark.parametrize("branch", [{}, {"branch": "own"}], ids=["main", "branch"])
def test_the_whole_output_of_a_query_is_loaded_and_checked(pond: Pond, branch: dict[str, str]) -> None:
    query = {"query": "select 'JFK' as key, 39.0 as temp", "engine": "local", "inputs": {}}
    mine = asyncio.run(done(Attempts(), "sql", query))
    whole: Any = {"$value": ["mine"]}
    for files in (whole, [whole], {"$value": ["loop"]}):
        loop = {"items": [mine, mine], "count": 2}
        given = load(Path(), **branch) | {"files": files}
        assert asyncio.run(done(Attempts(), "load", given, mine=mine, loop=loop))["rows"]
    with pytest.raises(LHTaskException, match="neither files nor a table"):
        asyncio.run(done(Attempts(), "load", load(Path()) | {"files": whole}, mine={"value": 1}))

    def checked(query: str, **limits: int) -> Any:
        inputs = {"query": query, "engine": "local", "inputs": {}, "finds_nothing": True, "maps": [whole]}
        return asyncio.run(done(Attempts(), "check", inputs | {"limits": limits}, mine=mine))

    assert checked("select * from mine where temp > 60", rows_min=1, rows_max=1)["passed"]
    going_on = {"query": "select * from mine", "engine": "local", "inputs": {}, "finds_nothing": True, "maps": [whole],
                "limits": {"rows_min": 2}, "fails": False}  # fmt: skip
    report = asyncio.run(done(Attempts(), "check", going_on, mine=mine))
    assert (report["passed"], report["rows"], len(report["first"])) == (False, 1, 1)
    assert report["reason"].startswith("the check finds rows: {") and report["reason"].endswith("1 rows, less than 2")
    with pytest.raises(LHTaskException, match="1 rows, less than 2"):
        checked("", rows_min=2)
    with pytest.raises(LHTaskException, match="1 rows, more than 0"):
        checked("", rows_max=0)
    with pytest.raises(LHTaskException, match=r'the check finds rows: \{"key":"JFK"'):
        checked("select * from mine")


# -- in time -------------------------------------------------------------------------------------------

PASSED = [0.0]
TAKING = """
from millpond.pipelines import item, pipeline, python
from tests.unit.test_step_kinds import PASSED

def taking(seconds):
    PASSED[0] += seconds
    return seconds

@pipeline
def own():
    python(taking, item, over=[50, 50, 50], timeout=60, retries=0)
"""


class Hurried(asyncio.SelectorEventLoop):
    """A loop whose time the work of its steps moves."""

    def time(self) -> float:
        return super().time() + PASSED[0]


def test_each_item_of_a_step_has_its_timeout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asyncio.events.new_event_loop", Hurried)
    program = Program(file="own.py", source=TAKING)
    with millpond.open(tmp_path / "pond", create=True) as pond, embedded(pond, "here", str) as runs:
        own = runs.run(pipelines_of(program)["own"], program, {}, "r").values["taking"]
    assert [row["value"] for row in own["items"]] == [50, 50, 50]


def test_the_line_of_a_step_that_has_ended_tells_its_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLPOND_PIPELINE_FILES", str(tmp_path / "files"))
    text = "from millpond.pipelines import pipeline, sql\n\n@pipeline\ndef own():\n    sql('from range(1200)')\n"
    program, said = Program(file="own.py", source=text), list[str]()
    with millpond.open(tmp_path / "pond", create=True) as pond, embedded(pond, "here", said.append) as runs:
        runs.run(pipelines_of(program)["own"], program, {}, "r")
    assert [line.partition(" s")[2] for line in said] == [", 1,200 rows"]


# -- what is told, and what is not --------------------------------------------------------------------


@pytest.mark.usefixtures("process")
def test_who_is_told_elsewhere_was_not_told(pond: Pond) -> None:
    class Elsewhere(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_response(301)
            self.send_header("Location", "https://elsewhere.example/")
            self.end_headers()

        def log_message(self, *_: Any) -> None: ...

    server = HTTPServer(("127.0.0.1", 0), Elsewhere)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        place = f"http://127.0.0.1:{server.server_port}/"
        with pytest.raises(LHTaskException, match=r"it is refused there.*status=301"):
            asyncio.run(done(Attempts(), "notify", {"place": place, "fields": {"a": 1}}))
    finally:
        server.shutdown()
        server.server_close()


def test_a_check_that_fails_tells_no_secret(pond: Pond) -> None:
    inputs = {"query": "select {api_token} as token", "inputs": {"api_token": {"$value": ["api_token"]}},
              "engine": "local", "finds_nothing": True, "maps": [], "limits": {}}  # fmt: skip
    with pytest.raises(LHTaskException) as failed:
        asyncio.run(done(Attempts(), "check", inputs, api_token="hunter2222"))
    assert '"token":"***"' in failed.value.message and "hunter2222" not in failed.value.message
    assert json.loads(failed.value.content.json_obj)["first"] == ['{"token":"***"}']


def test_lineage_of_a_failure_tells_no_secret(pond: Pond) -> None:
    class Lineage:
        def send(self, *about: Any, unless: Any) -> None:
            heard.append(str(about))

    heard: list[str] = []
    log = AttemptLog(values={"api_token": "hunter2222"})
    reports = StepReports("q", "j", "k", {}, 0, 0.0, log.masked, cast("StepLineage", Lineage()))
    reports.failed(pond, Invalid("hunter2222 is refused"), retryable=False)
    assert "*** is refused" in heard[-1] and "hunter2222" not in "".join(heard)


def test_a_skipped_output_is_refused_and_left_out_where_there_are_several(pond: Pond, file: Path) -> None:
    skipped = {"off": {"$skipped": True}}
    with pytest.raises(LHTaskException, match=r"the step was skipped.*step=off"):
        asyncio.run(done(Attempts(), "python", {"arguments": [{"$value": ["off"]}]}, **skipped))
    asyncio.run(done(Attempts(), "load", load(file)))
    check = {"query": "", "engine": "local", "inputs": {}, "finds_nothing": True, "limits": {"rows_min": 1},
             "maps": [{"$value": ["off"]}, {"$value": ["on"]}]}  # fmt: skip
    on = {"map": "weather", "rows": 1}
    assert asyncio.run(done(Attempts(), "check", check, on=on, **skipped))["passed"]
    with pytest.raises(LHTaskException, match="the step was skipped"):
        asyncio.run(done(Attempts(), "check", check | {"maps": [{"$value": ["off"]}]}, **skipped))


# -- workers ----------------------------------------------------------------------------------------


def test_attempts_that_wait_leave_a_worker_a_thread_to_stop_one() -> None:
    go = threading.Event()

    async def attempts(loop: asyncio.AbstractEventLoop) -> None:
        blocked = [loop.run_in_executor(None, go.wait, 20) for _ in range(100)]
        await asyncio.wait_for(asyncio.to_thread(int), 10)
        go.set()
        await asyncio.gather(*blocked)

    async def worked() -> None:
        loop, own = asyncio.get_running_loop(), TaskWorker({}, LHConfig(), str)

        def ready() -> None:
            tried.append(loop.create_task(attempts(loop)))
            tried[0].add_done_callback(lambda _: own.stop())

        tried: list[asyncio.Task[None]] = []
        await own.run(ready)
        go.set()
        await tried[0]

    asyncio.run(worked())


@pytest.mark.parametrize(("target", "words"), [
    (Target(kind="temporal_state"), "map_kind=state target=temporal_state"),
    (Target(kind="state", value="temp long"), "map_value=temp double target=temp long"),
])  # fmt: skip
def test_a_target_that_contradicts_the_map_is_refused(tmp_path: Path, target: Target, words: str) -> None:
    with millpond.open(tmp_path / "pond") as pond:
        pond.create_map("weather", kind="state", value="temp double")
        with pytest.raises(Invalid, match=words), map_for_load(pond, "weather", target):
            pass
