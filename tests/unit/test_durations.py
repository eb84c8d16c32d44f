"""One grammar of durations: what it reads, what it writes, and that everything which takes one takes the same."""

from __future__ import annotations

import re
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import millpond
from millpond.cli.main import app
from millpond.errors import Invalid
from millpond.maps.inputs.normalise import to_durations
from millpond.maps.model import catalogue
from millpond.settings import duration_in_words, load_settings
from millpond.times.buckets import bucket_width, window_width
from millpond.times.durations import DURATION_MS_MAX, UNITS_MS, format_duration, parse_duration
from tests.harness.durations import ACCEPTED, OFF, REFUSED

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[2]
WRITTEN = re.compile(
    r"""[`"'=]([0-9]+\s?(?:[mµun]?s|secs?|seconds?|m|mins?|minutes?|h|hrs?|hours?|d|days?|w|weeks?|y|yrs?|years?)"""
    r"""|P[0-9DTHMSWY.,]+)(?=[`"'),\s])"""
)


@given(st.integers(0, DURATION_MS_MAX))
def test_what_is_written_is_read_back(millis: int) -> None:
    assert parse_duration(format_duration(millis)) == millis


@given(st.integers(0, 10**6), st.sampled_from(sorted(UNITS_MS)))
def test_whole_multiples_of_a_unit_are_read_back(count: int, unit: str) -> None:
    millis = count * UNITS_MS[unit]
    if millis <= DURATION_MS_MAX:
        assert parse_duration(f"{count}{unit}") == millis
        assert parse_duration(format_duration(millis)) == millis


@given(st.integers(0, 100 * UNITS_MS["y"]))
def test_settings_read_what_they_show(millis: int) -> None:
    assert load_settings(maps_part_retention=duration_in_words(millis)).maps.part_retention == millis


@pytest.mark.parametrize("value", [-1, DURATION_MS_MAX + 1, 1.5, True, b"1d", object()])
def test_what_is_no_text_is_whole_milliseconds(value: Any) -> None:
    with pytest.raises(Invalid) as caught:
        parse_duration(value)
    assert caught.value.kind == "duration"
    assert parse_duration(1500) == 1500


def setting(text: str, _: Path) -> int:
    return load_settings(maps_part_retention=text).maps.part_retention


def setting_of_environment(text: str, _: Path) -> int:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MILLPOND_MAPS_PART_RETENTION", text)
        return load_settings().maps.part_retention


def option(name: str, text: str, _: Path) -> int | None:
    value: int | None = catalogue.as_stored({name: text}, None)[f"{name}_ms"]
    return value


def pond_retention(text: str, folder: Path) -> int:
    with millpond.open(folder / "pond", maps_part_retention=text) as pond:
        return pond.loads.keep_ms


def command(text: str, folder: Path) -> int | None:
    with millpond.open(folder / "pond") as pond:
        pond.create_map("m", kind="state", condense=1)
    done = CliRunner().invoke(app, ["alter", "m", "--condense", text, "--pond", str(folder / "pond")])
    if done.exit_code:
        assert "error: duration is" in done.output
        raise Invalid("refused", kind="duration")
    with millpond.open(folder / "pond") as pond:
        return pond.map("m").definition.condense_ms


def column(text: str, _: Path) -> int:
    converted = to_durations(pa.array(["1s", text, None, text]))
    [first, value, missing, again] = converted.values.to_pylist()
    assert (first, missing, again) == (1000, None, value)
    if converted.faults:
        assert value is None
        raise Invalid("rejected", kind="duration")
    return value


USERS: dict[str, Callable[[str, Path], int | None]] = {
    "settings": setting, "environment": setting_of_environment, "condense": partial(option, "condense"),
    "retain": partial(option, "retain"), "pond": pond_retention, "command line": command, "column": column,
}  # fmt: skip


@pytest.mark.usefixtures("processor")
@pytest.mark.parametrize("user", USERS)
def test_all_who_take_a_duration_take_the_same_forms(user: str, tmp_path: Path) -> None:
    for number, (text, millis) in enumerate(ACCEPTED.items()):
        assert USERS[user](text, tmp_path / str(number)) == millis, text


@pytest.mark.usefixtures("processor")
@pytest.mark.parametrize("user", USERS)
def test_all_who_take_a_duration_refuse_the_same_forms(user: str, tmp_path: Path) -> None:
    for number, text in enumerate(REFUSED):
        if user == "environment" and not text:
            continue  # a variable that is empty is not set
        with pytest.raises(Invalid):
            pytest.fail(f"{text!r} became {USERS[user](text, tmp_path / str(number))}")


@pytest.mark.parametrize("user", USERS)
def test_what_can_be_switched_off_is_off(user: str, tmp_path: Path) -> None:
    for number, text in enumerate(OFF):
        if user == "column":
            with pytest.raises(Invalid):  # a session lasts, if only for no time
                USERS[user](text, tmp_path / str(number))
        else:
            off = None if user in ("condense", "retain", "command line") else 0
            assert USERS[user](text, tmp_path / str(number)) == off


def test_a_setting_says_how_to_write_it() -> None:
    with pytest.raises(Invalid, match=r"value=10mins .*reason=write a whole number and a unit"):
        load_settings(maps_part_retention="10mins")


@pytest.mark.parametrize(
    "page",
    [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md"],
    ids=lambda page: page.relative_to(ROOT).as_posix(),
)
def test_durations_in_the_docs_can_be_written_so(page: Path) -> None:
    for text in WRITTEN.findall(page.read_text(encoding="utf-8")):
        for understood in (parse_duration, bucket_width):  # the width of a bucket is of a calendar, not a length
            with suppress(Invalid):
                understood(text)
                break
        else:
            window_width(text, "1 day")


def test_the_docs_are_searched_for_durations() -> None:
    assert WRITTEN.findall("`10min`, `3 days` or =7d or `PT15M`, 'P1Y'") == ["10min", "3 days", "7d", "PT15M", "P1Y"]
    assert len(WRITTEN.findall((ROOT / "docs" / "inputs.md").read_text(encoding="utf-8"))) >= 3
