"""The page of limits has the numbers of the code, and the errors it names are those that come."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

import millpond
from millpond.kernel.space import KEY_BYTES_MAX as SPACE_KEY_BYTES_MAX
from millpond.kernel.space import VALUE_BYTES_MAX, check_row
from millpond.maps.inputs.keys import KEY_BYTES_MAX
from millpond.maps.inputs.nesting import NESTING_MAX
from millpond.settings import SETTINGS
from tests.docs.snippets import ROOT
from tools import error_reference, limits_page

PAGE = limits_page.page()
ROWS = [limit for _, limits, _ in limits_page.SECTIONS for limit in limits]


def test_the_page_is_up_to_date() -> None:
    assert (ROOT / "docs" / "reference" / "limits.md").read_text(encoding="utf-8") == PAGE, "run `make docs`"


def test_what_is_named_is_there(subtests: pytest.Subtests) -> None:
    kinds = {kind for found in error_reference.raised().values() for kind in found}
    for limit in ROWS:
        with subtests.test(limit=limit.thing):
            named = re.findall(r"(?<!\*)`([a-z]+_[a-z_]+)`", limit.beyond)
            words = {"max_rejects", "alter_map"}
            assert [name for name in named if name not in kinds | words] == []
            for name in re.findall(r"\*\*`([\w.]+)`\*\*", limit.origin + limit.beyond):
                assert name in SETTINGS


def _load(kind: str, row: dict[str, object], value: str = "string") -> Callable[[millpond.Pond], object]:
    return lambda pond: pond.create_map("m", kind=kind, value=value).load([row])


def _scan(where: str) -> Callable[[millpond.Pond], object]:
    return lambda pond: pond.create_map("m", kind="state", value="string").scan(where)


def _file(name: str, text: str, **columns: str) -> Callable[[millpond.Pond], object]:
    def load(pond: millpond.Pond) -> object:
        pond.create_map("m", kind="state", value="string")
        Path(name).write_text(text)
        return pond.load_files(name, map="m", columns=columns or None)

    return load


def _deep(levels: int) -> list[object]:
    value: list[object] = []
    for _ in range(levels - 1):
        value = [value]
    return value


BEYOND = {
    "a key": ("too_many_rejects", _load("state", {"key": "k" * (KEY_BYTES_MAX + 1), "value": "v"})),
    "a number": ("too_many_rejects", _load("ranged_state", {"key_start": 0, "key_end": 1 << 63, "value": "v"})),
    "a time": ("too_many_rejects", _load("temporal_state", {"key": "k", "effective_time": 1 << 62, "value": "v"})),
    "a duration": ("duration", lambda pond: pond.create_map("m", kind="state", condense="3652059d")),
    "a name": ("map_name", lambda pond: pond.create_map("m" * 128, kind="state")),
    "the shape": ("setting_fixed", lambda pond: pond.alter_map(pond.create_map("m", kind="state").name, value="long")),
    "nesting": ("nesting_deep", _load("state", {"key": "k", "value": _deep(NESTING_MAX + 1)})),
    "a record of CSV": ("record_long", _file("m.csv", "key,value\nk," + "v" * (17 << 20) + "\n")),
    "tests": ("condition_large", _scan(" or ".join(f"key = '{n}'" for n in range(1001)))),
    "values": ("condition_large", _scan("value in (" + "1," * 100_000 + "1)")),
    "patterns": ("condition_large", _scan(f"key like '{'%v' * 5_001}'")),
    "characters": ("condition_large", _scan(f"value = '{'v' * (4 << 20)}'")),
    "brackets": ("condition", _scan("(" * 60 + "key = 'a'" + ")" * 60)),
    "digits": ("condition", _scan("value = " + "9" * 401)),
    "a small key": ("space_key_length", lambda _: check_row(b"k" * (SPACE_KEY_BYTES_MAX + 1), b"")),
    "a small value": ("space_value_length", lambda _: check_row(b"k", bytes(VALUE_BYTES_MAX + 1))),
}  # fmt: skip


@pytest.mark.sample(5)
@pytest.mark.parametrize("name", BEYOND)
def test_beyond_a_limit_comes_the_error_that_is_named(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    kind, act = BEYOND[name]
    with millpond.open(tmp_path / "pond") as pond, pytest.raises(millpond.MillpondError) as caught:
        act(pond)
    assert caught.value.kind == kind, caught.value
    assert f"`{kind}`" in PAGE


def test_a_key_at_the_limit_is_stored_by_every_scheme(tmp_path: Path) -> None:
    key = "k" * KEY_BYTES_MAX
    with millpond.open(tmp_path / "pond") as pond:
        for scheme in ("auto", "direct", "hash", "lookup"):
            stored = pond.create_map(scheme, kind="state", value="string", scheme=scheme)
            stored.load([{"key": key, "value": scheme}])
            assert stored.get(key) == scheme


def test_long_lines_of_json_and_wide_structs_are_stored(tmp_path: Path) -> None:
    with millpond.open(tmp_path / "pond") as pond:
        texts = pond.create_map("texts", kind="state", value="string")
        (tmp_path / "m.jsonl").write_text(json.dumps({"key": "k", "value": "v" * (40 << 20)}) + "\n")
        pond.load_files(tmp_path / "m.jsonl", map="texts")
        assert len(texts.get("k")) == 40 << 20
        names = [f"f{number}" for number in range(3000)]
        wide = pond.create_map("wide", kind="state", value=", ".join(f"{name} long" for name in names))
        wide.load([{"key": "k"} | dict.fromkeys(names, 7)])
        assert len(wide.get("k")) == 3000


def test_a_name_that_is_too_long_is_told_how_long_it_may_be(tmp_path: Path) -> None:
    with (
        millpond.open(tmp_path / "pond") as pond,
        pytest.raises(millpond.Invalid, match="up to 127 lower case letters"),
    ):
        pond.create_map("m" * 128, kind="state")
