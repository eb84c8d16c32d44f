"""Values nested deeper than a stack can follow are refused before anything recurses: no door of a load ends the
process.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.errors import Invalid
from millpond.maps.inputs import nesting
from millpond.maps.inputs.nesting import (
    NESTING_MAX,
    check_type,
    is_deep_text,
    is_deep_value,
    lines_are_shallow,
)

DOORS = """
import sys, tempfile, pathlib
import numpy as np, pandas as pd, pyarrow as pa
import millpond

folder = pathlib.Path(tempfile.mkdtemp())
pond = millpond.open(folder / "pond")
plain = pond.create_map("plain", kind="state", value="string")
doc = pond.create_map("doc", kind="state", value="json")
timed = pond.create_map("timed", kind="temporal_state", value="string")
LEVELS = 20_000
text = "[" * LEVELS + "]" * LEVELS
value = None
for _ in range(LEVELS):
    value = [value]
kind = pa.int64()
for _ in range(1_000):
    kind = pa.struct([("a", kind)])
boxed = np.empty(1, object)
boxed[0] = value

def written(name, text):
    (folder / name).write_text(text)
    return folder / name

flat = '{"key": "a", "value": "x"}\\n'
doors = {
    "a column that is not loaded": lambda: pond.load_files(
        written("a.jsonl", flat + '{"key": "b", "value": "y", "other": ' + text + "}\\n" + flat), "plain"),
    "over many lines": lambda: pond.load_files(
        written("b.jsonl", '{"key": "a", "value": "x", "other":\\n' + '{"a":\\n' * LEVELS + "1"
            + "}\\n" * (LEVELS + 1)), "plain"),
    "json lines": lambda: pond.load_files(written("c.jsonl", '{"key": "a", "value": ' + text + "}"), "doc"),
    "json array": lambda: pond.load_files(written("d.json", '[{"key": "a", "value": ' + text + "}]"), "doc"),
    "csv": lambda: pond.load_files(written("e.csv", f'key,value\\na,"{text}"\\n'), "doc"),
    "xml": lambda: pond.load_files(written("f.xml",
        '<referenceData xmlns="reference-data:2"><reference><map>plain</map><key>a</key><value>'
        + "<a>" * LEVELS + "</a>" * LEVELS + "</value></reference></referenceData>")),
    "dicts": lambda: doc.load([{"key": "a", "value": value}]),
    "a dict's other column": lambda: plain.load([{"key": "a", "value": "x", "other": value}]),
    "columns": lambda: doc.load({"key": ["a"], "value": [value]}),
    "numpy": lambda: doc.load({"key": ["a"], "value": boxed}),
    "pandas": lambda: doc.load(pd.DataFrame({"key": ["a"], "value": [value]})),
    "an arrow type": lambda: doc.load(pa.table({"key": ["a"], "value": pa.nulls(1, kind)})),
    "a condition": lambda: plain.scan("(" * LEVELS + "key = 'a'" + ")" * LEVELS),
    "a key": lambda: plain.get(value),
    "keys": lambda: plain.lookup([value]),
    "times": lambda: timed.lookup(["a"], at=[value]),
    "a compared value": lambda: plain.scan([("key", "=", value)]),
    "sql": lambda: pond.sql("select get_state('plain', " + "(" * LEVELS + "'a'" + ")" * LEVELS + ")"),
}
sys.setrecursionlimit(1_000_000)  # Python's own limit would hide that ours is missing
for name, act in doors.items():
    try:
        act()
    except millpond.MillpondError as error:
        print(name, error.kind, flush=True)
"""


@pytest.mark.usefixtures("process")
def test_no_door_crashes() -> None:
    ran = subprocess.run([sys.executable, "-c", DOORS], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert len(ran.stdout.splitlines()) == 18, ran.stdout


JSON = st.recursive(
    st.none() | st.integers(-9, 9) | st.text('[]{}"\\a\n', max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("[{a", max_size=2), inner, max_size=3),
    max_leaves=12,
)


def levels(value: object) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(levels, inner), default=0)


@pytest.mark.usefixtures("processor")
@given(JSON, st.sampled_from((0, NESTING_MAX - 3, NESTING_MAX - 1, NESTING_MAX, NESTING_MAX + 1)))
def test_depth_is_that_of_the_parsed_value(value: Any, around: int) -> None:
    for _ in range(around):
        value = [value]
    deep = levels(value) > NESTING_MAX
    assert is_deep_text(json.dumps(value).encode()) == deep
    assert is_deep_text(json.dumps(value, ensure_ascii=False, indent=1).encode()) == deep
    assert is_deep_value(value) == deep


@pytest.mark.usefixtures("processor")
@given(
    st.lists(JSON, max_size=4), st.integers(0, 4), st.sampled_from(("\n", "\r\n", " \n", "\n\n")),
    st.sampled_from((3, 64, 1 << 17)),
)  # fmt: skip
def test_lines_are_shallow_when_all_are_objects_of_few_levels(
    values: list[Any], deep: int, between: str, slab: int
) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(nesting, "_SLAB_BYTES", slab)
        check_lines(values, deep, between)


def check_lines(values: list[Any], deep: int, between: str) -> None:
    """Depth is found in whatever slabs a block is looked at."""
    rows = [{"a": value} for value in values]
    lines = [json.dumps(row) for row in rows]
    assert lines_are_shallow(between.join(lines).encode())
    worst = '{"a":' * 300 + "1" + "}" * 300
    assert not lines_are_shallow(between.join([*lines[:deep], worst, *lines[deep:]]).encode())
    assert not lines_are_shallow(between.join([*lines, '{"a":', "1}"]).encode())
    assert lines_are_shallow(between.join([*lines, json.dumps({"many": [[at] for at in range(1_000)]})]).encode())


def test_values_inside_themselves_are_too_deep() -> None:
    endless: list[Any] = []
    endless += [endless, endless]
    assert is_deep_value(endless)


@pytest.mark.parametrize(
    "wrap",
    [pa.list_, lambda kind: pa.struct([("a", kind)]), lambda kind: pa.map_(kind, kind)],
    ids=["list", "struct", "map"],
)
def test_types_have_a_limit(wrap: Any) -> None:
    kind = pa.int64()
    for _ in range(5):
        kind = wrap(kind)
    check_type("value", kind)
    for _ in range(NESTING_MAX):
        kind = pa.list_(kind)
    with pytest.raises(Invalid, match="nested") as caught:
        check_type("value", kind)
    assert caught.value.values["column"] == "value"


def test_a_string_that_does_not_end_is_looked_at_once() -> None:
    """Each of its quotes was taken for the begin of another: a line of a megabyte held a node up for hours."""
    opened = b"[" * (NESTING_MAX - 1)
    assert not is_deep_text(opened + b'["' + b'\\"' * 500_000 + b"[\\")
    assert is_deep_text(opened + b'[["' + b'\\"[' * 500_000)
