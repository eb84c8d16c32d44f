"""The phrases of `--with`."""

from __future__ import annotations

import doctest
from pathlib import Path

import pytest

import millpond
from millpond.cli import loads, options
from millpond.cli.terminal import console, messages
from millpond.cli.terminal.messages import ColumnLookup, Phrase, parse_lookup, settled


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("weather", Phrase("weather")),
        ("weather on origin", Phrase("weather", "origin")),
        ("weather on origin at time_hour", Phrase("weather", "origin", "time_hour")),
        ("weather ON origin AS w", Phrase("weather", "origin", None, "w")),
        ("weather at t", Phrase("weather", None, "t")),
        ("weather on `the key` at `a time` as `w x`", Phrase("weather", "the key", "a time", "w x")),
        ("sales on shop at t over 7 days as week", Phrase("sales", "shop", "t", "week", "7 days")),
        ("sales over 1hour", Phrase("sales", window="1hour")),
        ("  weather  on  on  at  at  as  as ", Phrase("weather", "on", "at", "as")),
    ],
)  # fmt: skip
def test_phrases_are_understood(said: str, meant: Phrase) -> None:
    assert parse_lookup(said) == meant


@pytest.mark.parametrize(
    "said",
    [
        "",
        "weather on",
        "weather origin",
        "weather at t on k",
        "weather on a b",
        "we-ather on k",
        "sales over week",
        "sales as week over 7 days",
    ],
)
def test_what_is_no_phrase_is_refused(said: str) -> None:
    with pytest.raises(millpond.Invalid, match="MAP on KEY"):
        parse_lookup(said)


def test_what_is_left_open_is_settled(tmp_path: Path) -> None:
    with millpond.open(tmp_path) as pond:
        pond.create_map("weather", kind="temporal_state")
        pond.create_map("planes", kind="state")
        pond.create_map("ipv4", kind="ranged_state")

        def ask(said: str, key: str | None = None, time: str | None = None) -> ColumnLookup:
            return settled(parse_lookup(said), pond.map, key=key, time=time)

        assert ask("weather", "origin", "t") == ColumnLookup("weather", "origin", "t", "weather", True)
        assert ask("WEATHER on dest as there", "origin", "t") == ColumnLookup("weather", "dest", "t", "there", True)
        assert ask("planes on tail", "origin", "t") == ColumnLookup("planes", "tail", None, "planes", True)
        assert ask("ipv4 on address") == ColumnLookup("ipv4", "address", None, "ipv4", False)
        with pytest.raises(millpond.Invalid, match="--key"):
            ask("weather", None, "t")
        with pytest.raises(millpond.Invalid, match="--time"):
            ask("weather", "origin")
        with pytest.raises(millpond.Invalid, match="leave out 'at t'"):
            ask("planes on tail at t")
        with pytest.raises(millpond.NotFound, match="weather"):
            ask("wether on k at t")


@pytest.mark.parametrize("module", [messages, loads, options, console])
def test_the_examples_in_the_code_are_true(module: object) -> None:
    assert doctest.testmod(module).failed == 0  # type: ignore[arg-type]
