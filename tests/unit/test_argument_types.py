"""Arguments of another type than a public call can take: an error that names argument or value, and the way out."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import millpond
from millpond.argument_types import need_list
from millpond.errors import Invalid, MillpondError
from millpond.maps.snapshots.snapshot import Snapshot

if TYPE_CHECKING:
    from collections.abc import Iterator

    from millpond import Pond

NEITHER: list[Any] = [5, 1.5, b"x", [5], {"x": 5}, datetime(2024, 1, 1), object()]
NO_NUMBER: list[Any] = [None, 1.5, "x", b"x", [], {}, object(), np.timedelta64(1, "s")]
ROWS = [{"key": "a", "value": 1}]

LIMITS: dict[str, Any] = {
    "newest": lambda pond: pond.log.newest(-1),
    "entries": lambda pond: pond.log.entries(0, -1),
    "commits": lambda pond: pond.repository("pond").branch("main").log(limit=-1),
    "history": lambda pond: pond.refs.history("m", limit=-1),
    "diff": lambda pond: pond.refs.diff("main", "main", limit=-1),
}

CALLS: dict[str, tuple[Any, list[Any]]] = {
    "at": (lambda pond, odd: pond.at(odd).maps(), [None, *NEITHER]),
    "branch": (lambda pond, odd: pond.branch("fix", source=odd), NEITHER),
    "history": (lambda pond, odd: pond.history(odd), [None, *NEITHER]),
    "history of a ref": (lambda pond, odd: pond.history("m", ref=odd), NEITHER),
    "diff": (lambda pond, odd: pond.refs.diff("main", odd), NEITHER),
    "merge": (lambda pond, odd: pond.refs.merge(odd, "main"), [None, *NEITHER]),
    "revert": (lambda pond, odd: pond.refs.revert(odd), [None, *NEITHER]),
    "branch name": (lambda pond, odd: pond.refs.create_branch(odd, "main"), [None, *NEITHER]),
    "map at a ref": (lambda pond, odd: pond.at("main").map(odd), [None, *NEITHER]),
    "rename": (lambda pond, odd: pond.catalogue.rename("m", odd), [None, *NEITHER]),
    "files": (lambda pond, odd: pond.load_files(odd, "m"), [None, *NEITHER]),
    "format": (lambda pond, odd: pond.load_files("x.csv", "m", written=odd), NEITHER),
    "columns": (lambda pond, odd: pond.map("m").load(ROWS, columns=odd), NEITHER),
    "rejects": (lambda pond, odd: pond.map("m").load(ROWS, rejects=odd), NEITHER),
    "max_rejects": (lambda pond, odd: pond.map("m").load(ROWS, max_rejects=odd), NO_NUMBER),
    "zone": (lambda pond, odd: pond.map("m").load(ROWS, zone=odd), NEITHER),
    "lookups": (lambda pond, odd: pond.enrich(None, odd), NEITHER),
    "maps": (lambda pond, odd: pond.training_set(None, odd, at="t"), [None, *NEITHER]),
    "parent_number": (lambda pond, odd: pond.refs.revert("main", parent_number=odd), NO_NUMBER[1:]),
    "limit": (lambda pond, odd: pond.refs.diff("main", limit=odd), NO_NUMBER[1:]),
    "history's limit": (lambda pond, odd: pond.refs.history("m", limit=odd), NO_NUMBER[1:]),
    "maps to restore": (lambda pond, odd: pond.refs.restore("main", maps=odd), [5, 1.5, b"x", [5], [[]], object()]),
    "query": (lambda pond, odd: pond.create_map("made", as_=odd), NEITHER),
    "events": (lambda pond, odd: pond.events.append("q", "j", odd), [None, 5, 1.5, object()]),
    "out": (lambda pond, odd: pond.events.export(odd), [None, *NEITHER]),
    "job_sets": (lambda pond, odd: pond.events.export("x.parquet", queue="q", job_sets=odd), [5, 1.5, object()]),
    "repository": (lambda pond, odd: pond.repositories.create(odd), [None, *NEITHER]),
    "tag": (lambda pond, odd: pond.repositories.get("rep").create_tag(odd, "main"), [None, *NEITHER]),
    "prefix": (lambda pond, odd: pond.repositories.get("rep").branches(prefix=odd), NEITHER),
    "amount": (lambda pond, odd: pond.repositories.get("rep").branches(amount=odd), NO_NUMBER),
    "key of a snapshot": (lambda pond, odd: pond.map("m").snapshot().get(odd), [None, 5, "a", [b"a"], object()]),
    "value of a snapshot": (lambda pond, odd: pond.map("t").snapshot().value(odd, 5), [None, 5, "a", [b"a"], object()]),
    "number of a snapshot": (lambda pond, odd: pond.map("r").snapshot().value(odd), NO_NUMBER),
    "time of a snapshot": (lambda pond, odd: pond.map("t").snapshot().get(b"a", odd), NO_NUMBER[1:]),
    "time of a value": (lambda pond, odd: pond.map("t").snapshot().value(b"a", odd), NO_NUMBER[1:]),
    "span": (lambda pond, odd: pond.map("s").snapshot().lookup(["a"], between=odd), [None, *NEITHER, "ab", b"ab"]),
    "found": (lambda pond, odd: pond.map("m").snapshot().take(odd), [None, *NEITHER]),
    "found buckets": (lambda pond, odd: pond.map("s").snapshot().take(odd), [None, *NEITHER]),
    "field": (lambda pond, odd: taken(pond, odd), [*NEITHER, "x"]),
    "manifest": (lambda pond, odd: Snapshot.open(pond.map("m").objects, odd), [None, *NEITHER]),
    "positions": (
        lambda pond, odd: pond.events.append("q", "j", [b"x"], source="s", positions=odd), [None, 5, object()]
    ),
    "batches": (lambda pond, odd: pond.events.append_batches(odd), [None, *NEITHER, "q"]),
    "streams": (lambda pond, odd: pond.events.watch_many(odd), [None, *NEITHER, "q"]),
    "bytes_per_second": (lambda pond, odd: pond.events.compress(bytes_per_second=odd), NO_NUMBER),
    "parts": (lambda pond, odd: pond.commit_load(odd), [None, *NEITHER, "ab"]),
    "load_id": (lambda pond, odd: pond.commit_load([], load_id=odd), NEITHER),
    "stream": (lambda pond, odd: pond.commit_load([], stream=odd), [*NEITHER, "ab", ("a", "b"), (1, "a"), ("a",)]),
    "after": (lambda pond, odd: pond.log.entries(odd), NO_NUMBER),
    "newest": (lambda pond, odd: pond.log.newest(odd), NO_NUMBER),
    "maps to wait for": (lambda pond, odd: pond.log.wait_applied(0, odd), [5, b"x", [5], object(), "m"]),
    "timeout": (lambda pond, odd: pond.log.wait_position(0, odd), [None, "x", b"x", [], {}, object()]),
    "name of a repository": (lambda pond, odd: pond.repository(odd), [None, *NEITHER, []]),
    "metadata": (lambda pond, odd: pond.repositories.create("other", metadata=odd), [5, "x", [5], object()]),
    "path": (lambda pond, odd: branch(pond).get(odd), [None, *NEITHER]),
    "paths": (lambda pond, odd: branch(pond).log(paths=odd), [None, *NEITHER[:-3], object()]),
    "limit of a log": (lambda pond, odd: list(branch(pond).log(limit=odd)), NO_NUMBER[1:]),
    "prefix of entries": (lambda pond, odd: list(branch(pond).entries(odd)), [None, *NEITHER]),
    "prefix of changes": (lambda pond, odd: list(branch(pond).staging.uncommitted(odd)), [None, *NEITHER]),
    "prefix of differences": (
        lambda pond, odd: list(pond.repository("rep").diff_rows("main", "main", odd)), [None, *NEITHER]
    ),
    "rows": (lambda pond, odd: branch(pond).staging.stage(odd), [None, 5, 1.5, object()]),
    "setting": (lambda pond, odd: pond.repository("rep").setting(odd), [None, *NEITHER]),
    "ref of a copy": (lambda pond, odd: branch(pond).copy("a", "b", ref=odd), NEITHER),
    "resolutions": (lambda pond, odd: pond.refs.merge("main", "main", resolutions=odd), [None, 5, 1.5, object()]),
    "branch to commit": (lambda pond, odd: pond.refs.commit(odd), [None, *NEITHER]),
}  # fmt: skip


def taken(pond: Pond, field: Any) -> object:
    snapshot = pond.map("m").snapshot()
    return snapshot.take(snapshot.find(["a"]), field)


def branch(pond: Pond) -> Any:
    return pond.repository("rep").branch("main")


def filled(pond: Any) -> None:
    """Make what the calls are about."""
    pond.create_map("m", kind="state", value="long").load(ROWS)
    pond.create_map("t", kind="temporal_state", value="long").load([{**ROWS[0], "effective_time": 5}])
    pond.create_map("r", kind="ranged_state", value="long").load([{"key_start": 1, "key_end": 5, "value": 1}])
    pond.create_map("s", kind="histogram", resolution="1 hour").load([{**ROWS[0], "time": 5}])
    pond.repositories.create("rep")


@pytest.fixture(scope="module")
def pond(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pond]:
    with millpond.open(tmp_path_factory.mktemp("odd") / "pond") as opened:
        filled(opened)
        yield opened


@pytest.mark.parametrize("name", CALLS)
def test_an_argument_of_another_type_is_refused_by_name_with_the_way_out(pond: Pond, name: str) -> None:
    call, odd = CALLS[name]
    for value in odd:
        with pytest.raises(MillpondError) as refused:
            call(pond, value)
        assert refused.value.hint, (value, refused.value)
        assert refused.value.values, (value, refused.value)


@pytest.mark.parametrize("name", LIMITS)
def test_a_number_of_things_below_zero_is_refused_by_name(pond: Pond, name: str) -> None:
    with pytest.raises(Invalid) as refused:
        LIMITS[name](pond)
    assert (refused.value.kind, refused.value.values) == ("argument_negative", {"argument": "limit", "value": -1})


def test_what_has_its_type_is_answered(pond: Pond) -> None:
    assert (pond.map("t").snapshot().value(b"a", 5), pond.map("t").snapshot().value(b"a", 4)) == (1, None)
    assert (pond.map("r").snapshot().value(3), pond.map("m").snapshot().value(b"a")) == (1, 1)
    assert (pond.map("r").snapshot().value(1 << 63), pond.map("r").snapshot().get(-(10**100))) == (None, None)
    for act in (pond.map("t").snapshot().value, pond.map("t").snapshot().get):
        with pytest.raises(Invalid, match="outside the years"):
            act(b"a", 10**100)
    assert pond.map("t").snapshot().get(b"a", 5) == pond.map("m").snapshot().get(b"a")


@given(st.one_of(st.none(), st.integers(), st.text(), st.binary(), st.lists(st.one_of(st.text(), st.integers()))))
def test_a_list_holds_what_it_may_hold(values: Any) -> None:
    good = isinstance(values, list) and all(isinstance(value, str) for value in values)
    try:
        need_list("names", values, str)
    except Invalid:
        assert not good
    else:
        assert good
