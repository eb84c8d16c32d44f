"""The data source `format("millpond.objects")`: the entries of a ref, a row each.

    session.read.format("millpond.objects").option("repository", "flights").option("ref", "main@").load()

| option | meaning |
|---|---|
| `pond` (or the path) | the pond's folder; else the session's `spark.millpond.pond` |
| `repository` | the repository |
| `ref` | the state: `main`, `main@`, `v1~2` …; by default the default branch with what is staged on it |
| `prefix` | only paths that begin with it: ranges of others are not opened |
| `partitions` | the approximate number of tasks; by default by the number of entries |

A read is planned once: what is staged on a branch is frozen then, and every task reads the same moment.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from millpond.errors import Invalid
from millpond.kernel.keys import KeyRange, starting
from millpond.spark.locations import Location, Rights
from millpond.spark.objects.opening import open_repository
from millpond.spark.options import check_options, number, pond_option
from millpond.spark.short_errors import short_errors
from millpond.versions.objects.entries import read_metadata
from millpond.versions.objects.uploads import physical_address
from millpond.versions.reference import view_at
from millpond.versions.staging.commit_ranges import FrozenView, freeze
from millpond.versions.staging.reads import at

__all__ = ("OBJECTS", "ObjectsReader", "ObjectsSource", "Stretch", "object_rows")

OPTIONS = ("pond", "path", "repository", "ref", "prefix", "partitions")
TASK_ROWS = 1 << 18
"""About as many entries as one task reads."""
BATCH_ROWS = 1 << 14

OBJECTS = pa.schema(
    [
        pa.field("path", pa.string(), nullable=False),
        pa.field("size", pa.int64(), nullable=False),
        pa.field("checksum", pa.string(), nullable=False),
        pa.field("physical_address", pa.string(), nullable=False),
        pa.field("mtime", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("metadata", pa.map_(pa.string(), pa.string()), nullable=False),
        pa.field("content_type", pa.string(), nullable=False),
    ]
)
"""The columns of the source."""


@short_errors
class ObjectsSource(DataSource):
    """The entries of one ref of one repository, to read."""

    default: Location | None = None
    rights: Rights = Rights()

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        check_options(options, OPTIONS, ())
        self.location = pond_option(options, self.default, self.rights)
        self.repository = options.get("repository") or ""
        if not self.repository:
            raise Invalid("no repository is named", kind="repository_unnamed", hint="say option('repository', name)")

    @classmethod
    def name(cls) -> str:
        """The name in `format(…)`."""
        return "millpond.objects"

    def schema(self) -> StructType:
        """The columns of entries."""
        return from_arrow_schema(OBJECTS)

    def reader(self, schema: StructType) -> ObjectsReader:
        """A reader of the columns of `schema`, of the state that the ref names now.

        Raises: `Invalid` for other columns or a ref that is none; `NotFound`.
        """
        _check_schema(schema)
        keys = starting(self.options.get("prefix") or "")
        with open_repository(None, self.location, self.repository) as repository:
            context = repository.context
            with context.space.read() as tx:
                view = view_at(context, tx, self.options.get("ref") or repository.record.default_branch)
                frozen = freeze(context, at(tx), view)
            rows = _rows_of_task(frozen, number(self.options, "partitions"))
            return ObjectsReader(frozen, context.namespace, schema.names, frozen.stretches(keys, rows))


def _rows_of_task(frozen: FrozenView, tasks: int | None) -> int:
    if not tasks:
        return TASK_ROWS
    return max(1, frozen.base_index().count // tasks)


def _check_schema(schema: StructType) -> None:
    types = from_arrow_schema(OBJECTS)
    for field in schema.fields:
        if field.name not in OBJECTS.names or field.dataType != types[field.name].dataType:
            raise Invalid(
                "not a column of objects", kind="column_type", column=field.name, type=field.dataType.simpleString(),
                hint=f"columns: {types.simpleString()}",
            )  # fmt: skip


class Stretch(InputPartition):
    """The paths of one task."""

    def __init__(self, keys: KeyRange) -> None:
        super().__init__(keys)
        self.keys = keys


@short_errors
class ObjectsReader(DataSourceReader):
    """One read of one frozen state."""

    def __init__(self, frozen: FrozenView, namespace: str, columns: Sequence[str], stretches: list[KeyRange]) -> None:
        self.frozen, self.namespace, self.columns, self.stretches = frozen, namespace, list(columns), stretches

    def partitions(self) -> Sequence[Stretch]:
        """One for each stretch of paths."""
        return [Stretch(keys) for keys in self.stretches]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one partition, on an executor."""
        assert isinstance(partition, Stretch)
        for batch in self.frozen.entries(partition.keys):
            rows = object_rows(batch, self.namespace).select(self.columns)
            for start in range(0, rows.num_rows, BATCH_ROWS):
                yield rows.slice(start, BATCH_ROWS)


def object_rows(batch: pa.RecordBatch, namespace: str) -> pa.RecordBatch:
    """Entries as rows of `OBJECTS`."""
    columns = {
        "path": batch.column("key").cast(pa.string()),
        "physical_address": _addresses(batch.column("address"), namespace),
        "mtime": pc.multiply(batch.column("mtime"), 1_000_000).cast(pa.timestamp("us", tz="UTC")),
        "metadata": _metadata(batch.column("metadata")),
    }
    arrays = [columns[name] if name in columns else batch.column(name) for name in OBJECTS.names]
    return pa.RecordBatch.from_arrays(arrays, schema=OBJECTS)


def _addresses(addresses: pa.Array, namespace: str) -> pa.Array:
    whole = pc.match_substring(addresses, "://")
    below = pc.binary_join_element_wise(physical_address(namespace, ""), addresses, "")
    return pc.if_else(whole, addresses, below)


def _metadata(texts: pa.Array) -> pa.Array:
    """Maps of the texts; each distinct text is parsed once."""
    encoded = texts.dictionary_encode()
    maps = [list(read_metadata(text).items()) for text in encoded.dictionary.to_pylist()]
    return pa.array(maps, pa.map_(pa.string(), pa.string())).take(encoded.indices)
