"""The public client of Armada, as it is installed, in a process and an environment of its own."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import millpond
from millpond.clock import SystemClock
from millpond.nodes.tokens import TokenFile, draw_token
from millpond.server.armada.wire import armada_pb2 as pb
from tests.armada.conftest import PROGRAM, ArmadaServer, run_program, serving
from tests.docs.snippets import snippets

SCENARIOS = ("queues", "submits", "changes", "errors", "deduplicates", "with_asyncio")


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_client_works_unmodified(server: ArmadaServer, armada_python: Path, scenario: str) -> None:
    run_program(armada_python, scenario, str(server.grpc_port))


def test_a_silent_stream_is_taken_up_again_from_the_last_id(server: ArmadaServer, armada_python: Path) -> None:
    command = [armada_python, PROGRAM, "resumes", str(server.grpc_port)]
    with subprocess.Popen(command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as program:
        assert program.stdin is not None and program.stdout is not None
        program.stdout.readline()
        with pytest.raises(subprocess.TimeoutExpired):
            program.wait(1.5)
        program.stdin.write("\n")
        program.stdin.flush()
        assert program.wait(60) == 0


def test_the_client_sends_a_token_or_its_name_and_it(tmp_path: Path, armada_python: Path) -> None:
    folder = tmp_path / "pond"
    millpond.open(str(folder)).close()
    token, admin = draw_token(SystemClock()), draw_token(SystemClock())
    file = TokenFile(folder)
    file.add("runner", token, {"write": ("stream:etl/night-*",)})
    file.add("esti", admin, {"admin": ("*",)})
    with serving(folder, token=admin) as server:
        server.call("api.QueueService/CreateQueue", pb.Queue(name="etl", priority_factor=1), pb.Queue)
        run_program(armada_python, "credentials", str(server.grpc_port), token)
        tokens = {line["token"] for line in server.audited() if line["method"] == "GRPC"}
        assert tokens == {"esti", "runner"}


def test_the_guide_does_what_it_says(tmp_path: Path, armada_python: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = [snippet for snippet in snippets("docs/events.md") if snippet.heading == "Jobs over gRPC"]
    submits, runs = (snippet.text for snippet in found if snippet.language == "python")
    with serving(tmp_path / "pond") as server:
        program = submits.replace("127.0.0.1:7434", f"127.0.0.1:{server.grpc_port}")
        done = subprocess.run([armada_python, "-c", program], capture_output=True, text=True, check=True, timeout=60)
        assert done.stdout.split() == ["submitted", "queued", "cancelling", "cancelled"]
        monkeypatch.chdir(tmp_path)
        exec(compile(runs, "docs/events.md", "exec"), {"job_id": "a job"})
        *_, running, failed = server.events("etl", "nightly")
        assert running.message.running.job_id == "a job" and failed.message.failed.reason == "no disk"


def test_the_page_for_who_comes_from_armada_does_what_it_says(tmp_path: Path, armada_python: Path) -> None:
    """Its other blocks are run by `tests/docs/test_tasks.py`."""
    (program,) = [block.text for block in snippets("docs/coming-from/armada.md") if "armada_client" in block.text]
    with serving(tmp_path / "pond") as server:
        program = program.replace("127.0.0.1:7434", f"127.0.0.1:{server.grpc_port}")
        done = subprocess.run([armada_python, "-c", program], capture_output=True, text=True, check=True, timeout=60)
        assert done.stdout.split() == ["True"]
        assert len(list(server.events("etl", "nightly"))) == 2
