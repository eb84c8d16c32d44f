"""Objects become JSON text in one documented way, and come back the same from every question."""

from __future__ import annotations

import base64
import json
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import millpond
from millpond.maps.inputs.json_text import json_text
from tests.rings.sampling import examples

if TYPE_CHECKING:
    from pathlib import Path

NOON = datetime(2013, 2, 8, 18, 0, 0, 123456, tzinfo=UTC)
FORMS = [
    (NOON, "2013-02-08T18:00:00.123456Z"),
    (NOON.astimezone(UTC).replace(tzinfo=None), "2013-02-08T18:00:00.123456"),
    (date(2013, 2, 8), "2013-02-08"),
    (time(18, 0, 0, 5), "18:00:00.000005"),
    (timedelta(days=1, microseconds=500_000), "P1DT0.5S"),
    (timedelta(seconds=-90), "-PT90S"),
    (timedelta(0), "PT0S"),
    (b"\xff\x00", "/wA="),
    (Decimal("1.10"), "1.10"),
    (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
    (np.datetime64("2013-02-08T18:00"), "2013-02-08T18:00"),
    (np.timedelta64(1500, "ms"), "PT1.5S"),
    (np.int64(7), 7),
    (np.array([1, 2]), [1, 2]),
    ({1: (True, None)}, {"1": [True, None]}),
]


@pytest.mark.parametrize(("value", "expected"), FORMS)
def test_every_kind_of_value_has_its_form(value: object, expected: object) -> None:
    assert json.loads(json_text({"v": [value]})) == {"v": [expected]}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {1, 2}, object(), {b"a": 1}, 1j])
def test_what_has_no_form_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="no form"):
        json_text({"v": value})


def test_a_dict_without_a_form_names_its_row(tmp_path: Path) -> None:
    made = millpond.open(tmp_path / "pond").create_map("m", kind="state", value="json")
    with pytest.raises(millpond.Invalid, match="no form") as caught:
        made.load([{"key": "a", "value": {"x": 1}}, {"key": "b", "value": {"x": {2}}}])
    assert (caught.value.kind, caught.value.values["row"]) == ("json_form", 1)


def test_arrow_rows_without_a_form_are_rejected(tmp_path: Path) -> None:
    made = millpond.open(tmp_path / "pond").create_map("m", kind="state", value="json")
    rows = pa.table({"key": ["a", "b"], "value": pa.array([{"x": 1.0}, {"x": float("nan")}])})
    rejects = tmp_path / "rejects.jsonl"
    assert made.load(rows, max_rejects=1, rejects=rejects).rows == 1
    assert "no form" in json.loads(rejects.read_text())["reason"]
    fine = pa.array([{"x": 1}], pa.struct([("x", pa.time64("ns"))]))
    with pytest.raises(millpond.Invalid, match="no form"):
        made.load(pa.table({"key": ["a"], "value": fine}))


MAPS = [
    (pa.string(), [("a", 1), ("b", None)], '{"a": 1, "b": null}'),
    (pa.int64(), [(7, 1)], '{"7": 1}'),
    (pa.float64(), [(1.5, 1)], '{"1.5": 1}'),
    (pa.date32(), [(date(2013, 2, 8), 1)], '{"2013-02-08": 1}'),
    (pa.timestamp("us", "UTC"), [(NOON, 1)], '{"2013-02-08T18:00:00.123456Z": 1}'),
    (pa.string(), [], "{}"),
    (pa.string(), [("a", 1), ("a", 2)], None),
    (pa.binary(), [(b"a", 1)], None),
    (pa.list_(pa.int64()), [([1], 1)], None),
]


@pytest.mark.parametrize(("key", "pairs", "expected"), MAPS)
def test_a_map_of_arrow_is_an_object(tmp_path: Path, key: pa.DataType, pairs: list[Any], expected: str | None) -> None:
    made = millpond.open(tmp_path / "pond").create_map("m", kind="state", value="json")
    column = pa.array([pairs], pa.map_(key, pa.int64()))
    result = made.load(pa.table({"key": ["a"], "value": column}), max_rejects=1)
    assert (made.get("a"), result.rejected) == (expected, int(expected is None))
    nested = made.load(pa.table({"key": ["b"], "value": pa.array([[pairs]], pa.list_(column.type))}), max_rejects=1)
    assert (made.get("b"), nested.rejected) == (expected and f"[{expected}]", int(expected is None))


LEAVES = (
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8"), max_size=4) | st.binary(max_size=4)
    | st.datetimes(timezones=st.just(UTC)) | st.datetimes() | st.dates() | st.times() | st.timedeltas()
)  # fmt: skip
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab"), inner))


def model(value: Any) -> Any:
    match value:
        case dict():
            return {name: model(inner) for name, inner in value.items()}
        case list():
            return [model(inner) for inner in value]
        case bytes():
            return base64.b64encode(value).decode()
        case datetime():
            return value.isoformat().replace("+00:00", "Z")
        case date() | time():
            return value.isoformat()
        case timedelta():
            return json.loads(json_text(value))
    return value


@pytest.mark.usefixtures("processor")
@given(st.lists(st.dictionaries(st.text("abc", max_size=2), VALUES, max_size=3), min_size=1, max_size=4))
@settings(max_examples=examples(5, 15), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_objects_come_back_the_same_from_every_question(
    tmp_path_factory: pytest.TempPathFactory, objects: list[dict[str, Any]]
) -> None:
    with millpond.open(tmp_path_factory.mktemp("json") / "pond") as pond:
        made = pond.create_map("m", kind="state", value="json")
        keys = [f"k{at}" for at in range(len(objects))]
        made.load([{"key": key, "value": value} for key, value in zip(keys, objects, strict=True)])
        wanted = [model(value) for value in objects]
        scanned = made.scan().read_all().sort_by("key").column("value").to_pylist()
        queried = pond.sql("select value from m order by key").column("value").to_pylist()
        for answers in ([made.get(key) for key in keys], made.lookup(keys).to_pylist(), scanned, queried):
            assert [json.loads(answer) for answer in answers] == wanted


NUMBERS = st.from_regex(r"\A-?(0|[1-9][0-9]{0,40})(\.[0-9]{1,40})?([eE][-+]?[0-9]{1,2})?\Z") | st.sampled_from(
    ["12345678901234567890.123", "-0.0", "1.50", "1e16", "1E+2", "5e-324", "1e-400", "9" * 400, "0.1"]
)


def digits(text: str) -> Any:
    """JSON with its numbers as they are written."""

    def tuple_of(number: str) -> Any:
        return Decimal(number).as_tuple() if Decimal(number) else 0

    return json.loads(text, parse_float=tuple_of, parse_int=tuple_of)


@pytest.mark.usefixtures("processor")
@given(st.lists(NUMBERS, min_size=1, max_size=4), st.floats(allow_nan=False, allow_infinity=False))
@settings(max_examples=examples(20, 150), deadline=None)
def test_numbers_of_json_lines_keep_their_digits(
    tmp_path_factory: pytest.TempPathFactory, numbers: list[str], beside: float
) -> None:
    folder = tmp_path_factory.mktemp("digits")
    document = f'{{"a": {numbers[0]}, "b": [[{", ".join(numbers)}], {{"c": {numbers[-1]}}}]}}'
    fields = f'"n": {Decimal(beside):.60e}, "doc": {document}'
    (folder / "spread.jsonl").write_text(f'{{"key": "k", {fields}}}\n')
    (folder / "objects.jsonl").write_text(f'{{"key": "k", "value": {{{fields}}}}}\n')
    (folder / "single.json").write_text(f'[{{"key": "k", "value": {document}}}]')
    with millpond.open(folder / "pond") as pond:
        for name, value in (("spread", "n double, doc json"), ("objects", "n double, doc json"), ("single", "json")):
            made = pond.create_map(name, kind="state", value=value)
            pond.load_files(next(folder.glob(f"{name}.*")), name)
            found = made.get("k")
            if name != "single":
                assert found["n"] == beside
                found = found["doc"]
            assert digits(found) == digits(document)


@pytest.mark.parametrize("constant", ["NaN", "Infinity", "-Infinity"])
def test_what_is_no_number_of_json_is_rejected(tmp_path: Path, constant: str) -> None:
    file, rejects = tmp_path / "a.jsonl", tmp_path / "rejects.jsonl"
    file.write_text(f'{{"key": "a", "value": [{constant}]}}\n{{"key": "b", "value": [1.5]}}\n')
    with millpond.open(tmp_path / "pond") as pond:
        made = pond.create_map("m", kind="state", value="json")
        pond.load_files(file, "m", max_rejects=1, rejects=rejects)
        assert (made.get("a"), made.get("b")) == (None, "[1.5]")


def test_the_bytes_of_a_variant_are_not_taken_for_its_json(tmp_path: Path) -> None:
    variant = pa.struct([pa.field("value", pa.binary(), False), pa.field("metadata", pa.binary(), False)])
    with millpond.open(tmp_path / "pond") as pond:
        made = pond.create_map("m", kind="state", value="json")
        for kind, value in ((variant, {"value": b"1", "metadata": b"2"}), (pa.list_(variant), [])):
            with pytest.raises(millpond.Invalid, match="to_json") as refused:
                made.load(pa.table({"key": ["a"], "value": pa.array([value], kind)}))
            assert (refused.value.kind, refused.value.values["column"]) == ("column_type", "value")


@given(st.timedeltas())
def test_durations_say_every_microsecond(lasting: timedelta) -> None:
    text = json.loads(json_text(lasting))
    sign, days, seconds = text.startswith("-"), 0, Decimal(0)
    body = text.lstrip("-").removeprefix("P")
    day, _, clock = body.rpartition("D") if "D" in body else ("", "", body)
    days = int(day or 0)
    seconds = Decimal(clock.removeprefix("T").removesuffix("S") or 0)
    micros = days * 86_400_000_000 + int(seconds * 1_000_000)
    assert timedelta(microseconds=-micros if sign else micros) == lasting
