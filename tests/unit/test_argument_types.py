"""Arguments of another type than a public call can take: an error that names argument or value, and the way out."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

import pytest

import millpond
from millpond.errors import MillpondError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from millpond import Pond

NEITHER: list[Any] = [5, 1.5, b"x", [5], {"x": 5}, datetime(2024, 1, 1), object()]
NO_NUMBER: list[Any] = [None, 1.5, "x", b"x", [], {}, object()]
ROWS = [{"key": "a", "value": 1}]

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
}


@pytest.fixture(scope="module")
def pond(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pond]:
    with millpond.open(tmp_path_factory.mktemp("odd") / "pond") as opened:
        opened.create_map("m", kind="state", value="long").load(ROWS)
        opened.repositories.create("rep")
        yield opened


@pytest.mark.parametrize("name", CALLS)
def test_an_argument_of_another_type_is_refused_by_name_with_the_way_out(pond: Pond, name: str) -> None:
    call, odd = CALLS[name]
    for value in odd:
        with pytest.raises(MillpondError) as refused:
            call(pond, value)
        assert refused.value.hint, (value, refused.value)
        assert refused.value.values, (value, refused.value)
