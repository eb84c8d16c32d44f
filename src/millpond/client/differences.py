"""Differences of maps between two refs, as nodes tell them: page by page, of the two states of the first page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from numbers import Integral
from types import NoneType
from typing import TYPE_CHECKING, Any

from millpond.argument_types import need_type
from millpond.client.arrow_body import read_batches
from millpond.kernel.page import pages

if TYPE_CHECKING:
    import pyarrow as pa

    from millpond.client.transport import Nodes
    from millpond.refs.diffs import Differences

__all__ = ("about_sides", "difference_pages", "differences", "table_of")


def table_of(nodes: Nodes, path: str, **query: Any) -> pa.Table:
    """The table that the first node which can be reached answers."""
    said = {name: value for name, value in query.items() if value is not None}
    return read_batches(nodes.first(lambda node: node.stream("GET", path, query=said))).read_all()


def about_sides(left: str, right: str | None, map: str | None, *, three_dots: bool) -> dict[str, str | None]:
    """The parameters of a question for differences."""
    return {"left": left, "right": right, "map": map, "three_dots": str(three_dots).lower()}


def difference_pages(
    nodes: Nodes, about: Mapping[str, str | None], position: Mapping[str, str], limit: int | None = None
) -> Iterator[tuple[pa.Table, Mapping[str, str]]]:
    """The pages from a place on, each with the place of the next one, if it has a `bookmark`."""
    need_type("limit", limit, Integral, NoneType)
    rows = 0

    def read(position: Mapping[str, str]) -> tuple[pa.Table, Mapping[str, str]]:
        room = None if limit is None else limit - rows
        page = table_of(nodes, "/v1/refs/diff", **{**about, **position}, limit=room)
        said = {name.decode(): text.decode() for name, text in (page.schema.metadata or {}).items()}
        return page.replace_schema_metadata(None), said

    def following(page: tuple[pa.Table, Mapping[str, str]]) -> Mapping[str, str] | None:
        return page[1] if "bookmark" in page[1] and (limit is None or rows < limit) else None

    for page in pages(read, position, following):
        rows += page[0].num_rows
        yield page


def differences(
    nodes: Nodes, left: str, right: str | None = None, *, map: str, three_dots: bool = False
) -> Differences:  # fmt: skip
    """The rows of `RemoteRefs.diff` of one map as a stream; the first page is held.

    Raises: as `RemoteRefs.diff`, some while it is read.
    """
    # Imported here: most questions are not about differences, which need compiled kernels.
    from millpond.refs.diffs import Differences

    about = about_sides(left, right, map, three_dots=three_dots)
    first, position = next(difference_pages(nodes, about, {}))

    def batches() -> Iterator[pa.RecordBatch]:
        yield from first.to_batches()
        if "bookmark" in position:
            for page, _ in difference_pages(nodes, about, position):
                yield from page.to_batches()

    return Differences(first.schema, batches)
