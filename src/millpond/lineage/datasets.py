"""Files as datasets of events, and what an enrichment of files by a command has in and out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from millpond.errors import MillpondError
from millpond.lineage.context import fields_of
from millpond.lineage.run_events import Dataset, Origin

__all__ = ("Enriching", "files_named", "parquet_fields", "value_columns")


def files_named(text: str) -> Dataset:
    """A path, or the address of files in a bucket."""
    scheme, there, rest = text.partition("://")
    if not there or scheme == "file":
        return Dataset(namespace="file", name=str(Path(rest or text).absolute()))
    bucket, _, name = rest.partition("/")
    return Dataset(namespace=f"{scheme}://{bucket}", name=name)


def parquet_fields(path: Path) -> dict[str, str]:
    """The types of the columns of a table; none for what is no Parquet."""
    from pyarrow import parquet

    with suppress(OSError, ValueError):
        file = path if path.is_file() else next(iter(sorted(path.glob("*.parquet"))), path)
        return {field.name: str(field.type) for field in parquet.read_schema(file)}
    return {}


def value_columns(pond: Any, own: Dataset) -> list[str]:
    """The columns of a map that an answer of it is made of."""
    value = pond.map(own.name).definition.value
    return [name for name, _ in value.parts] if value is not None else list(own.fields)


@dataclass(frozen=True, slots=True)
class Enriching:
    """An enrichment of files on an open pond, or a face of one: `into` names the map of each new column."""

    pond: Any
    files: Sequence[str]
    into: Mapping[str, str]
    out: str

    def inputs(self, namespace: str) -> list[Dataset]:
        """The files, then the maps."""
        return [*map(files_named, self.files), *self._maps(namespace).values()]

    def outputs(self, namespace: str, rows: int | None) -> list[Dataset]:
        """The file, or folder, that is written; its columns once it is, and says how many `rows`."""
        written = replace(files_named(self.out), rows=rows)
        fields = {} if rows is None else parquet_fields(Path(written.name))
        maps, events = self._maps(namespace), [files_named(text) for text in self.files]
        columns: dict[str, list[Origin]] = {name: [(own, name) for own in events] for name in fields}
        for into, map in self.into.items():
            parts = value_columns(self.pond, maps[map])
            columns |= {into: [(maps[map], part) for part in parts]} if into in fields else {
                f"{into}_{part}": [(maps[map], part)] for part in parts if f"{into}_{part}" in fields
            }  # fmt: skip
        return [replace(written, fields=fields, columns=columns)]

    def _maps(self, namespace: str) -> dict[str, Dataset]:
        ref, commit = str(getattr(self.pond, "ref", "main")), ""
        with suppress(MillpondError):  # nodes that replicate have none
            commit = next(self.pond.refs.log(ref)).id
        return {
            name: Dataset(namespace=namespace, name=name, fields=fields_of(partial(self.pond.map, name)), ref=ref,
                          commit=commit)
            for name in dict.fromkeys(self.into.values())
        }  # fmt: skip
