"""`millpond enrich` in one process: files of every format, looked up without Spark, and what becomes of odd events."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import csv, parquet

from tests.cli.conftest import Shell

EVENTS = """\
n,address,when,tail,day
1,5,2013-02-08T18:42:00Z,007,2013-02-08
2,25,2013-02-08T12:00:00Z,N1,2013-02-08
3,,2013-02-08T18:42:00Z,,
4,99,2013-02-08T18:42:00Z,7,2013-02-08
"""
PLANES = ("--with", "planes on tail as plane")
BLOCKS = ("--with", "blocks on address as block")
FOUND = [("small", "Bond"), ("larger", "One"), (None, None), (None, "Seven")]


@pytest.fixture
def shell(millpond: Shell) -> Shell:
    millpond("create", "planes", "--kind", "state", "--value", "string")
    Path("planes.csv").write_text("key,value\n007,Bond\n7,Seven\nN1,One\n")
    millpond("load", "planes", "planes.csv")
    millpond("create", "blocks", "--kind", "ranged_state", "--value", "string")
    Path("blocks.csv").write_text("key_start,key_end,value\n0,10,small\n20,30,larger\n")
    millpond("load", "blocks", "blocks.csv")
    Path("events.csv").write_text(EVENTS)
    return millpond


def found_in(path: str) -> list[tuple[Any, Any]]:
    if path.endswith(".jsonl"):
        rows = [json.loads(line) for line in Path(path).read_text().splitlines()]
    elif path.endswith(".csv"):
        text = csv.ConvertOptions(strings_can_be_null=True)
        rows = csv.read_csv(path, convert_options=text).to_pylist()
    else:
        rows = parquet.read_table(path).to_pylist()
    return [(row["block"], row["plane"]) for row in rows]


def write(suffix: str) -> str:
    """The events in a format."""
    name = f"in{suffix}"
    text = pa.types.is_string
    table = csv.read_csv("events.csv", convert_options=csv.ConvertOptions(column_types={"tail": pa.string()}))
    table = table.set_column(3, "tail", pa.array([tail or None for tail in table["tail"].to_pylist()], pa.string()))
    assert text(table.schema.field("tail").type)
    if suffix == ".parquet":
        parquet.write_table(table, name, row_group_size=2)
    elif suffix == ".csv.gz":
        with gzip.open(name, "wt") as file:
            file.write(EVENTS)
    elif suffix == ".tsv":
        Path(name).write_text(EVENTS.replace(",", "\t"))
        return name
    elif suffix == ".csv":
        Path(name).write_text(EVENTS)
    else:
        rows = table.set_column(2, "when", table["when"].cast(pa.string())).to_pylist()
        Path(name).write_text("".join(json.dumps(row, default=str) + "\n" for row in rows))
    return name


@pytest.mark.usefixtures("processor")
@pytest.mark.sample(6)
@pytest.mark.parametrize("suffix", [".csv", ".csv.gz", ".jsonl", ".parquet"])
@pytest.mark.parametrize("out", ["out.csv", "out.jsonl", "out.parquet", "out/"])
def test_every_format_goes_in_and_out_without_spark(shell: Shell, suffix: str, out: str) -> None:
    before = "pyspark" in sys.modules
    report = shell("enrich", write(suffix), *BLOCKS, *PLANES, "--out", out, "--json").object
    assert (report["rows"], report["rejected"], report["out"]) == (4, 0, out)
    assert [(lookup["column"], lookup["found"]) for lookup in report["lookups"]] == [("block", 2), ("plane", 3)]
    assert found_in(out) == FOUND
    assert ("pyspark" in sys.modules) == before
    assert not [path for path in Path().iterdir() if path.name.startswith(".")]


def test_columns_get_the_types_of_all_their_cells(shell: Shell) -> None:
    late = "n,tail,flag,when,mixed\n" + "1,N1,true,2013-02-08 18:42:00,2013-02-08\n" * 2 + "3000000000,7,FALSE,,x\n"
    Path("types.csv").write_text(late)
    shell("enrich", "types.csv", *PLANES, "--out", "out.parquet")
    schema = parquet.read_schema("out.parquet")
    kinds = {name: str(schema.field(name).type) for name in schema.names}
    assert kinds == {
        "n": "int64", "tail": "string", "flag": "bool", "when": "timestamp[us]", "mixed": "string", "plane": "string",
    }  # fmt: skip


@pytest.mark.usefixtures("processor")
def test_files_are_read_as_one_table(shell: Shell) -> None:
    Path("more.csv").write_text("tail,address,extra\nN1,7,1.5\n")
    shell("enrich", "events.csv", "more.csv", *BLOCKS, *PLANES, "--out", "out.parquet")
    assert found_in("out.parquet") == [*FOUND, ("small", "One")]
    assert [row["extra"] for row in parquet.read_table("out.parquet").to_pylist()] == [None] * 4 + [1.5]


# -- events that cannot be looked up ------------------------------------------------------------------


@pytest.fixture
def odd(shell: Shell) -> Shell:
    Path("odd.csv").write_text("n,address,tail\n1,5,N1\n2,abc,N1\n3,1.5,7\n4,,7\n5,25,7\n")
    return shell


def test_it_fails_with_column_and_value_and_writes_nothing(odd: Shell) -> None:
    said = odd("enrich", "odd.csv", *BLOCKS, "--out", "out.csv", code=5)
    assert "odd.csv row 2: address 'abc' is not a whole number" in said.err
    assert "--max-rejects" in said.err
    assert "--on-invalid miss" in said.err
    assert len(said.err.splitlines()) == 1
    assert not Path("out.csv").exists()


def test_by_choice_it_is_a_miss(odd: Shell) -> None:
    report = odd("enrich", "odd.csv", *BLOCKS, "--on-invalid", "miss", "--out", "out.jsonl", "--json").object
    assert (report["rows"], report["rejected"], report["lookups"][0]["found"]) == (5, 0, 2)
    rows = [json.loads(line) for line in Path("out.jsonl").read_text().splitlines()]
    assert [row["block"] for row in rows] == ["small", None, None, None, "larger"]


def test_by_choice_it_is_a_reject(odd: Shell) -> None:
    command = ("enrich", "odd.csv", *BLOCKS, *PLANES, "--rejects", "bad.jsonl", "--out", "out.jsonl", "--json")
    assert "see them all in bad.jsonl" in odd(*command, code=5).err
    assert not Path("out.jsonl").exists()
    report = odd(*command, "--max-rejects", "2").object
    assert (report["rows"], report["rejected"]) == (3, 2)
    rejects = [json.loads(line) for line in Path("bad.jsonl").read_text().splitlines()]
    assert [(reject["row"], reject["record"]["address"]) for reject in rejects] == [(2, "abc"), (3, "1.5")]
    assert "Spark does not write rejects" in odd(*command, "--spark", code=5).err


def test_times_that_are_none_are_reported_like_keys(weather: Shell) -> None:
    Path("flights.csv").write_text("origin,at\nJFK,2013-02-08T18:42Z\nJFK,yesterday\nJFK,2013-02-08T18:42\n")
    command = ("enrich", "flights.csv", "--with", "weather on origin at at", "--flat", "--out", "out.jsonl")
    assert "flights.csv row 2: at 'yesterday' is not a time" in weather(*command, code=5).err
    weather(*command, "--on-invalid", "miss")
    rows = [json.loads(line) for line in Path("out.jsonl").read_text().splitlines()]
    assert [row["weather_temp"] for row in rows] == [32.0, None, None]
    weather(*command, "--max-rejects", "1", "--zone", "UTC")
    rows = [json.loads(line) for line in Path("out.jsonl").read_text().splitlines()]
    assert [row["weather_temp"] for row in rows] == [32.0, 32.0]


def test_a_wrong_type_fails_before_any_work(shell: Shell) -> None:
    table = pa.table({"address": pa.array([[1], [2]]), "tail": ["a", "b"]})
    parquet.write_table(table, "lists.parquet")
    said = shell("enrich", "lists.parquet", *BLOCKS, "--out", "out.csv", "--on-invalid", "miss", code=5)
    assert "column=address" in said.err
    assert len(said.err.splitlines()) == 1


def test_what_is_no_event_is_a_reject(shell: Shell) -> None:
    deep = "[" * 20_000 + "]" * 20_000
    Path("events.jsonl").write_text(
        f'{{"tail": "N1"}}\nnonsense\n\n[1]\n{{"tail": "7", "x": {deep}}}\n{{"tail": "7"}}\n'
    )
    command = ("enrich", "events.jsonl", *PLANES, "--rejects", "bad.jsonl", "--out", "out.jsonl")
    shell(*command, "--max-rejects", "3")
    rejects = [json.loads(line) for line in Path("bad.jsonl").read_text().splitlines()]
    assert [reject["row"] for reject in rejects] == [2, 4, 5]
    assert "nested deeper" in rejects[2]["reason"]
    assert [json.loads(line)["plane"] for line in Path("out.jsonl").read_text().splitlines()] == ["One", "Seven"]
    Path("ragged.csv").write_text("tail,n\nN1,1\n7,2,3\n")
    assert "row 2: record has 3 cells" in shell("enrich", "ragged.csv", *PLANES, "--out", "o.csv", code=5).err


def test_text_that_looks_like_a_time_stays_text_in_json(shell: Shell) -> None:
    Path("events.jsonl").write_text(
        '{"tail": "N1", "at": "2013-02-08 18:42:00", "in": {"at": "2013-02-08 18:42:00"}}\n'
    )
    shell("enrich", "events.jsonl", *PLANES, "--out", "out.jsonl")
    (line,) = Path("out.jsonl").read_text().splitlines()
    assert json.loads(line) == json.loads(Path("events.jsonl").read_text()) | {"plane": "One"}


def test_a_column_of_several_types_says_who_reads_it(shell: Shell) -> None:
    Path("events.jsonl").write_text('{"tail": "N1", "n": 1}\n{"tail": "7", "n": "x"}\n')
    assert "--spark" in shell("enrich", "events.jsonl", *PLANES, "--no-spark", "--out", "out.jsonl", code=5).err


@pytest.mark.parametrize("out", ["/dev/stdout", "/dev/null", "events"])
def test_an_output_that_is_neither_a_file_nor_a_folder_is_refused(shell: Shell, out: str) -> None:
    Path("events").write_text("mine")
    error = shell("enrich", "events.csv", *PLANES, "--format", "csv", "--out", out, code=5).err
    assert f"path={out}" in error
    assert "--out enriched.csv" in error
    assert Path("events").read_text() == "mine"


def test_a_folder_is_replaced_only_where_an_earlier_run_wrote_it(shell: Shell) -> None:
    Path("mine").mkdir()
    Path("mine/thesis.txt").write_text("years of work")
    assert "thesis.txt" in shell("enrich", "events.csv", *PLANES, "--out", "mine/", code=5).err
    assert Path("mine/thesis.txt").read_text() == "years of work"
    Path("there").mkdir()
    Path("link").symlink_to("there")
    for _ in range(2):
        shell("enrich", "events.csv", *PLANES, "--out", "link/")
        assert [path.name for path in Path("there").iterdir()] == ["part-00000.zstd.parquet"]
    assert Path("link").is_symlink()


def test_events_are_not_written_over_themselves(shell: Shell) -> None:
    Path("folder/deep").mkdir(parents=True)
    Path("folder/deep/part-0.csv").write_text(EVENTS)
    Path("link.csv").symlink_to("events.csv")
    Path("hard.csv").hardlink_to("events.csv")
    Path("aside").symlink_to("folder")
    own = "folder/deep/part-0.csv"
    places = [("events.csv", out) for out in ("events.csv", "./events.csv", "link.csv", "hard.csv")]
    places += [("link.csv", "events.csv"), ("e*.csv", "events.csv"), ("folder", own), ("folder/deep", "folder/deep/")]
    places += [("folder/*/*.csv", "aside/deep/"), ("aside", own), (f"file://{Path(own).absolute()}", own)]
    for events, out in places:
        error = shell("enrich", events, *BLOCKS, "--format", "csv", "--out", out, code=5).err
        assert "the output would replace events that are read" in error, (events, out)
        assert "--out enriched.parquet" in error
    own_rejects = ("--out", "new.csv", "--rejects", "hard.csv")
    assert "would replace" in shell("enrich", "events.csv", *BLOCKS, *own_rejects, code=5).err
    assert Path("events.csv").read_text() == Path(own).read_text() == EVENTS and not Path("new.csv").exists()
    shell("enrich", "events.csv", *BLOCKS, "--out", "folder/new.csv")
    shell("enrich", "events.csv", *BLOCKS, "--out", "folder/new.csv")


def test_events_are_asked_on_a_branch_and_at_a_ref(shell: Shell) -> None:
    shell("alter", "planes", "--store", "layers")
    shell("branch", "create", "pond/fix")
    Path("fixed.csv").write_text("key,value\n007,Moneypenny\n")
    shell("load", "planes", "fixed.csv", "--branch", "fix")
    for at, name in (((), "Bond"), (("--branch", "fix"), "Moneypenny"), (("--ref", "fix~1"), "Bond")):
        shell("enrich", "events.csv", *PLANES, *at, "--out", "planes.parquet", "--no-spark")
        planes = parquet.read_table("planes.parquet")["plane"].to_pylist()
        assert planes == [name, "One", None, "Seven"], at
