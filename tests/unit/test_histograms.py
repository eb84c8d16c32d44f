"""Histograms and metrics, the aggregates with Plan B's fields: by rows, by its XML, and right where it is wrong."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

import millpond
from millpond.errors import Invalid, MillpondError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from millpond import Map, Pond
    from millpond.maps.loads.load import LoadResult

CREW = {"captain": "kirk", "mr": "spock", "dr": "mccoy", "lieutenant": "uhura"}
AT = "2000-01-01T00:00:00.000Z"


@pytest.fixture
def pond(tmp_path: Path) -> Iterator[Pond]:
    with millpond.open(tmp_path / "pond") as opened:
        yield opened


def shown(target: Map, *columns: str) -> list[tuple[Any, ...]]:
    rows = target.scan(columns=list(columns)).read_all().to_pylist()
    return sorted(tuple(row.values()) for row in rows)


def plan_b(pond: Pond, folder: Path, *elements: str, version: int = 2, rejects: int = 0) -> LoadResult:
    file = folder / "plan-b.xml"
    file.write_text(f'<plan-b xmlns="plan-b:{version}" version="{version}.0">\n' + "\n".join(elements) + "\n</plan-b>")
    return pond.load_files(file, max_rejects=rejects, rejects=folder / "rejects.jsonl")


def element(kind: str, map_: str, key: str | dict[str, str], value: object, time: str | None = AT) -> str:
    tags = key.items() if isinstance(key, dict) else ()
    inner = "".join(f"<tag><name>{name}</name><value>{text}</value></tag>" for name, text in tags)
    address = f"<tags>{inner}</tags>" if isinstance(key, dict) else f"<key>{key}</key>"
    when = "" if time is None else f"<time>{time}</time>"
    return f"<{kind}><map>{map_}</map>{address}{when}<value>{value}</value></{kind}>"


@pytest.mark.usefixtures("process")
def test_a_histogram_of_tags_counts_seconds_and_does_not_saturate(pond: Pond, tmp_path: Path) -> None:
    crew = pond.create_map("crew", kind="histogram", key="tags", resolution="1 second")
    ones = [element("histogram", "CREW", CREW, 1, f"2000-01-01T00:{second // 60:02}:{second % 60:02}.500Z")
            for second in range(0, 990, 10)]  # fmt: skip
    assert plan_b(pond, tmp_path, *ones).rejected == 0
    plan_b(pond, tmp_path, element("histogram", "crew", dict(reversed(CREW.items())), 70_000), version=1)
    rows = shown(crew, "time", "key", "value")
    assert (len(rows), {key for _, key, _ in rows}) == (99, {"captain=kirk,dr=mccoy,lieutenant=uhura,mr=spock"})
    assert crew.get(CREW, at=AT) == {"value": 70_001}
    assert crew.get(CREW, between=(AT, "2000-01-01T01:00Z")) == {"value": 70_099}
    (day,) = pond.sql("select sum(value) as n from crew where tags['dr'] = 'mccoy' and time < '2000-01-02'").to_pylist()
    assert day == {"n": 70_099}
    with pytest.raises(Invalid, match="at most 64"):
        crew.get("captain", at=AT)


@pytest.mark.usefixtures("process")
def test_metrics_keep_the_latest_least_greatest_count_and_sum_whatever_the_order(pond: Pond, tmp_path: Path) -> None:
    cpu = pond.create_map("cpu", kind="metric", resolution="1 minute")
    late, early = "2000-01-01T00:00:30.000Z", "2000-01-01T00:00:10.000Z"
    plan_b(pond, tmp_path, *(element("metric", "cpu", "web-7", value, late) for value in range(60, 110)))
    for _ in range(2):  # the same file once more counts once
        plan_b(pond, tmp_path, *(element("metric", "cpu", "web-7", value, early) for value in range(10, 60)))
    wanted = {"value": 109.0, "min": 10.0, "max": 109.0, "count": 100, "sum": 5950.0, "average": 59.5}
    assert {name: cpu.get("web-7", at=AT)[name] for name in wanted} == wanted
    plan_b(pond, tmp_path, element("metric", "cpu", "web-7", 5, "2000-01-01T00:01:00.000Z"))
    cpu.compact()  # minutes without events are no zeros that a merge could take for the least
    assert [least for (least,) in shown(cpu, "min")] == [5.0, 10.0]
    (row,) = pond.sql(
        "select Key, Value, Min, Max, Count, Sum, Average from cpu where Time = '2000-01-01T00:00:00Z'"
    ).to_pylist()
    assert row == {"key": "web-7"} | wanted


@pytest.mark.usefixtures("process")
def test_elements_are_rejected_one_by_one(pond: Pond, tmp_path: Path) -> None:
    pond.create_map("logons", kind="histogram", key="tags", resolution="1 hour")
    cpu = pond.create_map("cpu", kind="metric", value="long", resolution="1 hour")
    pond.create_map("sales", kind="aggregate", value="value_of long sum", resolution="1 hour")
    wrong = [
        (element("histogram", "logons", CREW, "notanumber"), "value 'notanumber' is not a whole number"),
        (element("histogram", "logons", CREW, ""), "value '' is not a whole number"),
        (element("histogram", "logons", CREW, -1), "value '-1' is a count below zero"),
        (element("histogram", "logons", CREW, 1, None), "time is missing"),
        (element("histogram", "logons", CREW, 1, "noon"), "time 'noon' is not a time with a zone"),
        (element("histogram", "logons", {"a=b": "c"}, 1), "has a tag with =, a comma or a control character"),
        (element("histogram", "logons", {" ": "c"}, 1), "has a tag without a name"),
        (element("histogram", "logons", {f"n{n}": "x" for n in range(65)}, 1), "has more than 64 tags"),
        (element("histogram", "logons", {}, 1), "key is missing"),
        (element("histogram", "logons", "ann", 1), "key 'ann' has a part that is not name=value"),
        (element("histogram", "logons", CREW, 1).replace("<map>", "<key>a=b</key><map>"), "it has both a key and tags"),
        (element("histogram", "logons", CREW, 1).replace("<name>mr", "<name><b/>mr"), "<b> is no part of <tags>"),
        (element("histogram", "logons", CREW, 1).replace("<tag><name>mr</name>", "<tag>"), "a <tag> has a <name>"),
        (element("histogram", "cpu", "a", 1), "map 'cpu' is of kind metric, which <histogram> is not"),
        (element("metric", "cpu", CREW, 1), "map 'cpu' has no tags as keys"),
        (element("metric", "cpu", "a", "1.5"), "value '1.5' is not a whole number"),
        (element("metric", "sales", "a", 1), "map 'sales' is of kind aggregate, which <metric> is not"),
        (element("reference", "cpu", "a", 1), "map 'cpu' is of kind metric, which <reference> is not"),
        ("<trace><map>cpu</map></trace>", "<trace> is none of the elements that maps can take"),
    ]  # fmt: skip
    elements = [*(text for text, _ in wrong), element("metric", "cpu", "a", 42)]
    with pytest.raises(Invalid):
        plan_b(pond, tmp_path, *elements)
    assert plan_b(pond, tmp_path, *elements, rejects=99).rejected == len(wrong)
    records = [json.loads(line) for line in (tmp_path / "rejects.jsonl").read_text().splitlines()]
    reasons = {record["row"] - 2: record["reason"] for record in records}
    assert [reason in reasons[number] for number, (_, reason) in enumerate(wrong)] == [True] * len(wrong), reasons
    assert shown(cpu, "key", "value", "count") == [("a", 42, 1)]


@pytest.mark.usefixtures("process")
def test_rows_of_other_stores_bring_all_fields_and_events_one(pond: Pond) -> None:
    cpu = pond.create_map("cpu", kind="metric", resolution="1 hour")
    stored = {"key": "a", "time": AT, "value": 7, "min": 1, "max": 9, "count": 3, "sum": 12}
    cpu.load([stored])
    cpu.load([{"key": "a", "time": AT, "load": 0.5}], columns={"value": "load"})
    bucket = cpu.get("a", at=AT)
    assert {name: bucket[name] for name in ("value", "min", "max", "count", "sum")} == {
        "value": 7.0, "min": 0.5, "max": 9.0, "count": 4, "sum": 12.5
    }  # fmt: skip
    with pytest.raises(Invalid) as caught:
        cpu.load([{name: value for name, value in stored.items() if name != "min"}])
    assert (caught.value.kind, caught.value.values["column"]) == ("column_missing", "min")
    hits = pond.create_map("hits", kind="histogram", resolution="1 hour")
    hits.load([{"key": "a", "time": AT}, {"key": "a", "time": AT}])
    assert hits.get("a", at=AT) == {"value": 2}


@pytest.mark.parametrize(
    ("settings", "kind"),
    [
        ({"kind": "histogram", "value": "n long sum"}, "aggregate_fields"),
        ({"kind": "histogram", "value": "double"}, "aggregate_fields"),
        ({"kind": "metric", "resolution": None}, "resolution"),
        ({"kind": "gauge"}, "kind_unknown"),
        ({"kind": "state", "resolution": None, "key": "tags"}, "tags_unsupported"),
        ({"kind": "histogram", "key": "number"}, "key_type_unknown"),
        ({"kind": "aggregate", "key": "tags", "value": "tags long sum"}, "value_field_name"),
        (
            {"kind": "aggregate", "key": "tags", "value": "n long count, s long sum, tags average of s/n"},
            "value_field_name",
        ),
        ({"kind": "aggregate", "value": "value long sum"}, "value_field_name"),
        ({"kind": "state", "resolution": None, "value": "value long, a long"}, "value_field_name"),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("process")
def test_definitions_that_mean_nothing_are_refused(pond: Pond, settings: dict[str, Any], kind: str) -> None:
    with pytest.raises(MillpondError) as caught:
        pond.create_map("m", **({"resolution": "1 hour"} | settings))
    assert caught.value.kind == kind


@pytest.mark.usefixtures("process")
def test_tags_come_as_columns_as_two_that_agree_and_are_kept_over_branches_and_openings(tmp_path: Path) -> None:
    with millpond.open(tmp_path / "pond") as pond:
        hits = pond.create_map("hits", kind="histogram", key="tags", resolution="1 hour")
        row = {"time": AT, "host": "a", "dc": None}
        hits.load([row, row | {"dc": "x"}], columns={"key": {"host": "host", "dc": "dc"}})
        hits.load([row | {"dc": "x"}], columns={"key": "host,dc"})
        again = hits.scan(columns=["key", "tags", "time", "value"]).read_all()
        copy = pond.create_map("copy", kind="histogram", key="tags", resolution="1 hour")
        copy.load(again)
        assert shown(copy, "key", "value") == shown(hits, "key", "value") == [("dc=x,host=a", 2), ("host=a", 1)]
        with pytest.raises(Invalid, match="key and tags are different tags"):
            copy.load([{"key": "a=b", "tags": {"a": "c"}, "time": AT, "value": 1}])
        for no_set in ("[key]", "{'n': value / 2}", "{'n': {'key': key}}", "map{'n': time}"):
            with pytest.raises(Invalid) as caught:
                pond.sql(f"select get_state('hits', {no_set}) from hits")
            assert caught.value.kind == "key_type"
        for set_of_tags in ("tags", "{'host': tags['host'], 'dc': tags['dc'], 'x': null}"):
            found = pond.sql(f"select get_state('hits', {set_of_tags}, time).value as value from hits order by key")
            assert found["value"].to_pylist() == [2, 1]
        fix = pond.branch("fix", source="main")
        fix.map("hits").load([{"tags": "host=a", "time": AT, "value": 5}])
        hits.load([{"tags": "host=a", "time": AT, "value": 7}])
        pond.refs.merge("fix", "main")
        pond.map("hits").delete("tags['dc'] = 'x'")
    with millpond.open(tmp_path / "pond") as pond:
        assert shown(pond.map("hits"), "key", "value") == [("host=a", 13)]
        assert pond.map("hits").lookup([{"host": "a"}], AT, known_at=2**42).field("value").to_pylist() == [13]
        assert pond.verify().ok


@pytest.mark.usefixtures("process")
@pytest.mark.parametrize(
    ("set_of_tags", "answer"),
    [
        ("{'a': 'x', 'n': 5, 'b': true, 'd': date '2024-01-01', 'none': null}", 3),
        ("map{'b': 'true', 'a': 'x', 'n': '5', 'd': '2024-01-01'}", 3),
        ("{'a': 'x', 'n': 6, 'b': true, 'd': '2024-01-01'}", None),
        ("null::map(text, text)", None),
        ("{'a': 'x,n=5', 'b': true, 'd': '2024-01-01'}", "key_tags"),
    ],
)
def test_structs_and_maps_are_sets_of_tags_in_sql(pond: Pond, set_of_tags: str, answer: object) -> None:
    hits = pond.create_map("hits", kind="histogram", key="tags", resolution="1 hour")
    hits.load([{"tags": {"a": "x", "n": 5, "b": True, "d": "2024-01-01"}, "time": AT, "value": 3}])
    source = f"(select {set_of_tags} as tags, key from hits)"
    query = f"select get_state('hits', tags, timestamptz '{AT}').value as value from {source}"
    if isinstance(answer, str):
        with pytest.raises(Invalid) as caught:
            pond.sql(query)
        assert caught.value.kind == answer
    else:
        assert pond.sql(query)["value"].to_pylist() == [answer]


def test_what_is_no_set_is_the_fault_of_its_row_from_python_and_from_json(pond: Pond, tmp_path: Path) -> None:
    right: list[Any] = [{"a": "x", "port": 80}, {"port": "80", "a": "x"}, "a=x, port=80", [["a", "x"], ["port", 80]]]
    wrong: list[Any] = [
        5, True, ["a=b"], {"a": {"b": 1}}, {"a": 1.5}, {}, [], {"a": None}, {"": "x"}, [[None, "x"]], None,
    ]  # fmt: skip
    rows = [{"tags": tags, "time": AT, "value": place} for place, tags in enumerate([*right, *wrong])]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for number, source in enumerate((rows, tmp_path / "rows.jsonl")):
        hits = pond.create_map(f"hits{number}", kind="histogram", key="tags", resolution="1 hour")
        if isinstance(source, list):
            result = hits.load(source, max_rejects=99)
        else:
            result = pond.load_files(source, hits.name, max_rejects=99)
        assert (result.rejected, shown(hits, "key", "value")) == (len(wrong), [("a=x,port=80", 6)])
    for question in (*right, {"a": "x", "port": 81}):
        assert (hits.get(question, AT) is None) == (question == {"a": "x", "port": 81})
    for question in wrong[:-1]:
        with pytest.raises(Invalid) as caught:
            hits.get(question, AT)
        assert caught.value.kind == "key_tags"
        assert hits.lookup([question, right[0]], AT, on_invalid="miss").is_valid().to_pylist() == [False, True]
