"""`mp.load`: rows of a DataFrame or files, as one load."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypedDict

from pyspark.errors import PySparkRuntimeError
from pyspark.sql import DataFrame, SparkSession
from typing_extensions import Unpack

from millpond.error_values import shown
from millpond.errors import Invalid
from millpond.maps.inputs.mapping import ColumnMapping, mapping_of
from millpond.maps.loads.load import LoadResult
from millpond.spark.files import load_files
from millpond.spark.locations import PondLike
from millpond.spark.write_jobs import load_frame

__all__ = ("OfFiles", "load")


class OfFiles(TypedDict, total=False):
    """Options that files alone have."""

    session: SparkSession
    written: str | None
    effective_time: str | None
    zone: str | None
    null: str
    piece_bytes: int
    show: Callable[[str, int], object] | None


def load(
    rows: DataFrame | str | Path | Sequence[str | Path], pond: PondLike | None = None, map: str | None = None, *,
    key: str | None = None, columns: ColumnMapping | Mapping[str, Any] | None = None, max_rejects: int = 0,
    rejects: str | Path | None = None, source: str = "", again: bool = False, freeze: bool = True,
    synchronise: bool = False, epoch: int | None = None, time_unit: str | None = None, load_id: str | None = None,
    extra: str | None = None, branch: str | None = None, **of_files: Unpack[OfFiles],
) -> LoadResult:  # fmt: skip
    """Load a DataFrame, files, folders or patterns, as one load or not at all; see `Map.load` and `Pond.load_files`.

    A DataFrame is loaded as by `frame.write.format("millpond")…save()`, but with a result, and committed in this
    process. `freeze` adds the new rows to the snapshot when the load ends, instead of with the next bulk lookup (ponds
    in a folder). `synchronise` waits until every node has merged the rows. `time_unit` is that of times which are
    numbers. `key` names the column of the keys, in place of `columns`, which may name all.

    `epoch` is for `foreachBatch`: the number that Spark passes. An epoch is loaded once into each map, also when Spark
    repeats it with other partitions.

    `load_id` is for work that may be repeated: a load of this id that was entered before is answered as then, and adds
    nothing. Its rows count as new, also where an earlier load had the same.

    On a `branch` the load is one commit, after one that adds fields.

    Of files alone: `written`, `effective_time`, `zone` and `null`, as in `Pond.load_files`; a file larger than
    `piece_bytes` (128 MiB) is several tasks; `show` is called with the stage and the rows so far, `reading` each
    second, then `merging`. `session` reads them, by default the active one.

    Raises: `Invalid` for what is no rows and no files, for columns or rows that cannot be stored, and as
    `Pond.commit_load`; for files as `Pond.load_files`.
    """
    frame = isinstance(rows, DataFrame)
    if not frame:
        _check_files(rows)
    odd = sorted(of_files) if frame else ["epoch"] if epoch is not None else []
    if odd:
        raise Invalid(
            "this is said of files, not of a DataFrame" if frame else "files have no epochs", kind="load_option",
            option=odd[0], hint="leave it out" if frame else "give a load_id: it is entered once",
        )  # fmt: skip
    if key is not None:
        columns = replace(mapping_of(columns), key=key)
    both: dict[str, Any] = {
        "columns": columns, "max_rejects": max_rejects, "rejects": rejects, "source": source, "again": again,
        "freeze": freeze, "synchronise": synchronise, "time_unit": time_unit, "load_id": load_id, "extra": extra,
        "branch": branch,
    }  # fmt: skip
    if isinstance(rows, DataFrame):
        return load_frame(rows, pond, map or "", epoch=epoch, **both)
    both |= of_files
    return load_files(both.pop("session", None) or _active(), rows, pond, map, **both)


def _check_files(files: object) -> None:
    some = list(files) if isinstance(files, list | tuple) else [files]
    wrong = [file for file in some if not isinstance(file, str | os.PathLike)]
    if wrong:
        raise Invalid(
            "this is no DataFrame of Spark, and no file", kind="data_unknown", value=shown(wrong[0]),
            type=type(wrong[0]).__name__,
            hint="give a DataFrame, a path or a list of paths; rows of Python are loaded by Map.load",
        )  # fmt: skip


def _active() -> SparkSession:
    try:
        return SparkSession.active()
    except PySparkRuntimeError as error:
        raise Invalid(
            "no session of Spark is active", kind="spark_session", hint="give session=, or mp.start() one"
        ) from error
