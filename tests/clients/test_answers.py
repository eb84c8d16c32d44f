"""The recorded answers of lakeFS, against those of Millpond: the same, but for those that `deviations.toml` lists."""

from __future__ import annotations

import json
import tomllib
from typing import Any

import pytest

from tests.clients.conftest import Server
from tests.clients.replay import DATA, Replay, agree, differences, lines, plain


@pytest.fixture(scope="module")
def replayed(server: Server) -> dict[str, tuple[Any, dict[str, Any]]]:
    """By case: the answer, and the fields that differ from the recorded one; None where none was recorded."""
    recorded = {answer["case"]: answer for answer in lines("answers.jsonl")}
    replay, words, found = Replay(server), dict[str, str](), {}
    for case in lines("requests.jsonl"):
        name, answer = case["case"], replay.send(case)
        found[name] = answer, differences(recorded[name], answer, words) if name in recorded else {}
    return found


def deviations() -> dict[str, dict[str, Any]]:
    """The deviations by their cases."""
    listed = tomllib.loads((DATA / "deviations.toml").read_text(encoding="utf-8"))["deviation"]
    return {case: row for row in listed for case in row["cases"]}


def test_answers_are_the_recorded_ones(replayed: dict[str, tuple[Any, dict[str, Any]]]) -> None:
    known = deviations()
    unlisted = {case: fields for case, (_, fields) in replayed.items() if fields and case not in known}
    assert not unlisted, json.dumps(unlisted, indent=1)


def test_every_deviation_is_as_it_is_listed(replayed: dict[str, tuple[Any, dict[str, Any]]]) -> None:
    for case, row in deviations().items():
        answer, fields = replayed[case]
        assert row["reason"]
        if row.get("recorded", True):
            assert fields, f"{case} is as recorded: take it off the list"
        ours = plain(answer)
        assert ours["status"] == row["status"], case
        if "message" in row:
            assert agree({"message": row["message"]}, ours["body"], {}), (case, ours["body"])


def test_no_answer_is_a_fault_of_the_server(replayed: dict[str, tuple[Any, dict[str, Any]]]) -> None:
    faults = {case: answer.body for case, (answer, _) in replayed.items() if answer.status >= 500}
    assert all(replayed[case][0].status == 501 for case in faults), faults
