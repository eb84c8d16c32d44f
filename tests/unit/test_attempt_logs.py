"""Logs of attempts: the first and last bytes stay, secrets do not, and each attempt has what it wrote itself."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.pipelines.attempt_logs import AttemptLog, _secrets, attempt_bytes, collecting
from millpond.pipelines.driver_lines import Line


@given(parts=st.lists(st.text("ab\nü", max_size=40), max_size=30), limit=st.integers(0, 400))
def test_a_log_keeps_its_first_and_its_last_bytes(parts: list[str], limit: int) -> None:
    log, whole = AttemptLog(limit), "".join(parts)
    for part in parts:
        log.write(part)
    text, half = log.text(), max(0, limit - 80) // 2
    data = whole.encode()
    if len(data) <= 2 * half:
        assert text == whole
        return
    assert len(text.encode()) <= max(limit, 80)
    first, _, last = text.partition("\n…")
    assert first == data[:half].decode(errors="ignore")
    last = last.partition("…\n")[2]
    assert last == data[len(data) - half :].decode(errors="ignore") if half else not last


@pytest.mark.parametrize(
    ("line", "masked"),
    [
        ("s3://key:hidden@host/a", "s3://key:***@host/a"),
        ("Authorization: Bearer abc.def", "Authorization: Bearer ***"),
        ('{"password": "hunter22", "a": 1}', '{"password": "***", "a": 1}'),
        ("aws_secret_access_key=abc/def and more", "aws_secret_access_key=*** and more"),
        ("it is sesame-open-now here", "it is *** here"),
        ("tokens are counted", "tokens are counted"),
    ],
)
def test_secrets_are_masked(line: str, masked: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_TOKEN", "sesame-open-now")
    _secrets.cache_clear()
    log = AttemptLog()
    for part in (line[:9], line[9:]):
        log.write(part)
    assert log.text() == masked
    _secrets.cache_clear()


def test_attempts_that_run_at_a_time_have_each_their_own_lines(capsys: pytest.CaptureFixture[str]) -> None:
    async def one(name: str) -> str:
        log = AttemptLog()
        with collecting(log):
            for number in range(3):
                await asyncio.to_thread(print, name, number)
                print(name, "error", file=sys.stderr)
                await asyncio.sleep(0)
        return log.text()

    async def both() -> list[str]:
        return await asyncio.gather(one("a"), one("b"))

    logs = asyncio.run(both())
    assert logs == ["".join(f"{name} {n}\n{name} error\n" for n in range(3)) for name in "ab"]
    assert capsys.readouterr().err.count("\n") == 12


def test_the_logs_of_a_run_have_a_limit_together() -> None:
    for steps in (1, 10, 1000):
        for retries in (0, 3, 100):
            assert steps * (retries + 1) * attempt_bytes(steps, retries) <= 4_194_304


def test_parameters_whose_names_say_that_they_are_secrets_are_masked() -> None:
    log = AttemptLog(values={"api_token": "hunter22", "day": "2026-01-01", "password": 12, "secret": "abc"})
    assert log.masked("hunter22 on 2026-01-01: abc 12") == "*** on 2026-01-01: abc 12"


def test_what_an_attempt_prints_is_shown_without_secrets(capsys: pytest.CaptureFixture[str]) -> None:
    with collecting(AttemptLog(values={"api_token": "hunter22"})):
        print("with hunter22")
        sys.stderr.write("and hunter22")
    shown, errors = capsys.readouterr()
    assert (shown, errors) == ("", "with ***\nand ***")


def test_secrets_of_many_lines_within_values_and_at_a_cut_are_masked() -> None:
    key = "-----BEGIN KEY-----\nMIIEvQIBADANBg\nabc\n-----END KEY-----"
    log = AttemptLog(values={
        "private_key": key, "tokens": ["first-one", 12345678], "auth": {"password": "hunter22", "user": "annabel"},
        "count_tokens": {"path": "/files/a.parquet", "rows": 1234567},
    })  # fmt: skip
    log.write(f"{key} first-one 12345678 hunter22 annabel /files/a.parquet 1234567\n")
    assert log.text() == "***\n***\nabc\n*** *** *** *** annabel /files/a.parquet 1234567\n"
    cut = AttemptLog(1_000_000, {"token": "sesame-open-now"})
    for part in ("x" * 65_530, "sesame-", "open-now", "y" * 70_000, "sesame-open", "-now\n"):
        cut.write(part)
    assert cut.text() == "x" * 65_530 + "***" + "y" * 70_000 + "***\n"


def test_what_a_driver_writes_is_passed_on_by_lines_without_secrets(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    nothing = cast("Any", None)
    log, line = AttemptLog(values={"api_token": "pigeon123"}), Line(tmp_path, nothing, nothing, nothing)
    with (tmp_path / "log").open("ab", buffering=0) as written:
        written.write(b"begun\nwith pigeon")
        line.pass_on(log, 6, is_last=False)
        assert capfd.readouterr().err == "begun\n"
        written.write(b"123 and more")
        line.pass_on(log, 6, is_last=True)
    assert capfd.readouterr().err == log.text() == "with *** and more"
