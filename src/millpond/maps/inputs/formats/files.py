"""The files to read: the format of each, and the pieces it is read in.

| format | names end in | pieces of a large file |
|---|---|---|
| `parquet` | `.parquet`, `.pq` | row groups |
| `csv` | `.csv`, `.tsv` | between records |
| `jsonl` | `.jsonl`, `.ndjson`, `.json` | between lines |
| `arrow` | `.arrow`, `.arrows`, `.feather`, `.ipc` | |
| `xml` | `.xml` | |

Text may be compressed: `.gz`, `.bz2`, `.zst`, `.lz4` at the end of the name; such a file is one piece.

Invariants:
* Files come in the order they were named; those of a folder or a pattern in the order of their names.
* The pieces of a file hold each of its records once, in order.
"""

from __future__ import annotations

import glob
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from os import PathLike
from pathlib import Path
from types import NoneType
from typing import Any

import pyarrow as pa

from millpond.argument_types import need_list, need_type
from millpond.errors import Invalid, NotFound, Unavailable

__all__ = ("Format", "InputFile", "Piece", "find_files", "format_named", "open_stream", "paths_of", "read_chunks")


class Format(StrEnum):
    """The format of a file."""

    PARQUET = "parquet"
    CSV = "csv"
    JSON_LINES = "jsonl"
    ARROW = "arrow"
    XML = "xml"


_SUFFIXES = {
    ".parquet": Format.PARQUET, ".pq": Format.PARQUET, ".csv": Format.CSV, ".tsv": Format.CSV,
    ".jsonl": Format.JSON_LINES, ".ndjson": Format.JSON_LINES, ".json": Format.JSON_LINES,
    ".arrow": Format.ARROW, ".arrows": Format.ARROW, ".feather": Format.ARROW, ".ipc": Format.ARROW,
    ".xml": Format.XML,
}  # fmt: skip
_COMPRESSED = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4"}


@dataclass(frozen=True, slots=True)
class InputFile:
    """A file, and how it is written; `compression` as Arrow names it."""

    path: str
    format: Format
    size: int
    compression: str | None = None


@dataclass(frozen=True, slots=True)
class Piece:
    """A file, or a run of its records: bytes of text, row groups of Parquet. `stop` None is the end."""

    file: InputFile
    start: int = 0
    stop: int | None = None


def find_files(targets: Sequence[str | Path], written: str | None = None) -> list[InputFile]:
    """The files that are meant: files, folders with all that is in them, patterns such as `year=*/*.parquet`.

    `written` names the format of all of them; without it each name's ending tells.

    Raises: `NotFound` for what does not exist; `Invalid` for a file whose format is unknown.
    """
    need_type("files", targets, Iterable)
    targets = targets if isinstance(targets, Mapping) else list(targets)
    need_list("files", targets, str, PathLike)
    need_type("written", written, str, NoneType)
    format_ = None if written is None else format_named(written)
    files = [_input_file(path, format_) for target in targets for path in paths_of(target)]
    if not files:
        raise Invalid("no file to load", kind="no_input", hint="name a file, a folder or a pattern")
    return files


def format_named(written: str) -> Format:
    """The format of a name.

    Raises: `Invalid`.
    """
    try:
        return Format({"json": "jsonl", "ndjson": "jsonl", "tsv": "csv"}.get(written.lower(), written.lower()))
    except ValueError:
        raise Invalid(
            "format is not known", kind="input_format", format=written, hint=f"one of: {', '.join(Format)}"
        ) from None


def paths_of(target: str | Path) -> list[Path]:
    """The paths of a file, of all that is in a folder, or of what a pattern names.

    Raises: `NotFound`; `Invalid` for a place on another machine.
    """
    if "://" in str(target):
        raise Invalid(
            "only files of this machine are read", kind="input_remote", path=target,
            hint="read it with Spark and write the frame: frame.write.format('millpond')",
        )  # fmt: skip
    path = Path(target)
    try:
        is_folder, exists = path.is_dir(), path.exists()
    except OSError as error:  # a name that is too long, a folder that may not be read
        raise NotFound(
            "the file cannot be read", kind="file_not_found", path=path, reason=error.strerror,
        ) from error  # fmt: skip
    if is_folder:
        return _in_folder(path)
    if exists:
        return [path]
    if glob.has_magic(str(target)):
        matched = [Path(name) for name in sorted(glob.glob(str(target), recursive=True))]  # noqa: PTH207 - a pattern may be absolute
        files = [inner for path in matched for inner in (_in_folder(path) if path.is_dir() else [path])]
        if files:
            return files
        raise NotFound("no file is named so", kind="file_not_found", pattern=target)
    raise NotFound(
        "file does not exist", kind="file_not_found", path=target, hint=f"a relative path begins at {Path.cwd()}"
    )


def _in_folder(folder: Path) -> list[Path]:
    """Files below a folder; what begins with `.` or `_` is no data: Spark writes such names."""
    inner = (path for path in sorted(folder.rglob("*")) if path.is_file())
    files = [path for path in inner if not any(part[0] in "._" for part in path.relative_to(folder).parts)]
    if not files:
        raise NotFound("the folder holds no files", kind="file_not_found", path=folder)
    return files


def _input_file(path: Path, stated: Format | None) -> InputFile:
    suffixes = [suffix.lower() for suffix in path.suffixes]
    compression = _COMPRESSED.get(suffixes[-1]) if suffixes else None
    ending = suffixes[-2:-1] if compression else suffixes[-1:]
    format_ = stated or (_SUFFIXES.get(ending[0]) if ending else None)
    if format_ is None:
        raise Invalid(
            "cannot tell how the file is written", kind="input_format", path=path,
            hint=f"name its format (written=FORMAT): {', '.join(Format)}",
        )  # fmt: skip
    if compression and format_ in (Format.PARQUET, Format.ARROW):
        raise Invalid(
            "the file is compressed as a whole", kind="input_format", path=path,
            hint=f"unpack it first; {format_} compresses within",
        )  # fmt: skip
    return InputFile(str(path), format_, path.stat().st_size, compression)


def open_stream(file: InputFile) -> Any:
    """The file's bytes, unpacked: an Arrow stream with `read` and `close`.

    Raises: `Unavailable` when the file may not be read.
    """
    try:
        return pa.input_stream(file.path, compression=file.compression)
    except PermissionError as error:
        raise Unavailable("file may not be opened", kind="permission", path=file.path) from error


def read_chunks(file: InputFile, size: int) -> Iterator[bytes]:
    """The file's bytes, unpacked, in chunks of at most `size`.

    Raises: `Invalid` when what is compressed cannot be unpacked.
    """
    with open_stream(file) as stream:
        while True:
            try:
                chunk = stream.read(size)
            except OSError as error:
                raise Invalid(
                    "the file cannot be unpacked", kind="input_damaged", path=file.path, reason=error,
                    hint="copy it again: it is damaged or was cut short",
                ) from error  # fmt: skip
            if not chunk:
                return
            yield chunk
