"""CSV as text columns: nothing is guessed, so keys such as `007` stay what they are.

What a column holds is for the map to say: `normalise` reads numbers and times from text. Where a load adds fields for
columns, the texts in the beginning of the file tell their types, as strictly: `007` stays text.

An empty cell is null, a quoted empty cell (`""`) is empty text. The first record names the columns; the delimiter is
the one of `,;|` and tab that the first record holds most of.

A record with another number of cells than the first is rejected; the others are read on. Quotes that do not enclose
a cell end the load.
"""

from __future__ import annotations

import codecs
import csv
import io
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv as arrow_csv

from millpond.errors import Invalid
from millpond.maps.inputs.formats.arrived import Arrived, rejects_of
from millpond.maps.inputs.formats.files import InputFile, Piece, open_stream, read_chunks
from millpond.maps.inputs.mapping import ColumnMapping, find_columns
from millpond.maps.model.columns import INSTANT
from millpond.maps.model.definition import MapDefinition

__all__ = (
    "CsvForm",
    "LongRecord",
    "csv_form",
    "csv_types",
    "find_long_record",
    "holds_long_records",
    "read_csv",
    "read_texts",
    "split_csv",
)

BLOCK_BYTES = 8 << 20
HEADER_BYTES_MAX = 1 << 20
_DELIMITERS = (",", ";", "\t", "|")
_TEXT_SHOWN_MAX = 500
_WRITTEN = (
    (pa.int64(), r"^-?(0|[1-9][0-9]{0,17})$"),
    (pa.float64(), r"^-?(0|[1-9][0-9]{0,14})(\.[0-9]+)?([eE][-+]?[0-9]{1,2})?$"),
    (pa.bool_(), r"^(true|false)$"),
    (INSTANT, r"^[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]+)?)?(Z|[-+][0-9]{2}:?[0-9]{2})$"),
)
"""The ways to write values of a type, where text alone says what they are: as a program would write them."""


@dataclass(frozen=True, slots=True)
class CsvForm:
    """The form of a CSV file: its columns, and the separator of cells."""

    names: tuple[str, ...]
    delimiter: str


def read_csv(
    piece: Piece, definition: MapDefinition, mapping: ColumnMapping | None, *, null: str = ""
) -> Iterator[Arrived]:
    """The rows of a CSV file, or of a piece of one, with the columns that the map needs; `null` is no value, too.

    Raises: `Invalid` when a column is missing, or the file is not UTF-8 or no CSV.
    """
    header = csv_form(piece.file)
    needed = find_columns(header.names, definition, mapping).read
    yield from _Reading(piece, header, [name for name in header.names if name in needed], null).batches()


def read_texts(piece: Piece, form: CsvForm, *, null: str = "") -> Iterator[Arrived]:
    """The rows of a CSV file with all of its columns, as text; `null` is no value, too.

    Raises: `Invalid` when the file is not UTF-8 or no CSV.
    """
    yield from _Reading(piece, form, list(form.names), null).batches()


def csv_types(file: InputFile, null: str) -> pa.Schema:
    """The columns of a file with the types that all their values in its beginning have; text where they differ.

    Raises: as `read_texts`.
    """
    form = csv_form(file)
    arrived = next(read_texts(Piece(file), form, null=null), None)
    if arrived is None or arrived.rows is None:
        return pa.schema([(name, pa.null()) for name in form.names])
    return pa.schema([(name, _type_of(arrived.rows.column(name))) for name in arrived.rows.schema.names])


def _type_of(texts: pa.Array) -> pa.DataType:
    texts = texts.drop_null().unique()
    if not len(texts):
        return pa.null()
    for kind, pattern in _WRITTEN:
        if pc.all(pc.match_substring_regex(texts, pattern)).as_py():
            return kind
    return pa.string()


def csv_form(file: InputFile) -> CsvForm:
    """The form of a file, from its beginning.

    Raises: `Invalid` when the file is empty or not UTF-8.
    """
    start = next(read_chunks(file, HEADER_BYTES_MAX), b"")
    try:
        text = start.decode("utf-8-sig", errors="replace" if len(start) == HEADER_BYTES_MAX else "strict")
    except UnicodeDecodeError as error:
        raise _not_utf8(file, error) from error
    first = text.lstrip("\r\n").partition("\n")[0]
    delimiter = max(_DELIMITERS, key=lambda mark: first.count(mark))
    names = next((record for record in csv.reader(io.StringIO(text, newline=""), delimiter=delimiter) if record), [])
    if not names:
        raise Invalid(
            "the file is empty", kind="input_empty", path=file.path,
            hint="its first line must name the columns",
        )  # fmt: skip
    return CsvForm(tuple(names), delimiter)


def _not_utf8(file: InputFile, error: Exception) -> Invalid:
    start = getattr(error, "object", b"")
    written = "utf-16" if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "latin1"
    return Invalid(
        "the file is not UTF-8", kind="input_encoding", path=file.path, reason=error,
        hint=f"convert it first, such as: iconv -f {written} -t utf-8 {file.path} > utf8.csv",
    )  # fmt: skip


class _Reading:
    """One pass over a piece: Arrow parses, and tells through `_refused` which records it leaves out."""

    def __init__(self, piece: Piece, header: CsvForm, columns: list[str], null: str) -> None:
        self.piece = piece
        self.header = header
        self.columns = columns
        self.null = null
        self.named = piece.start == 0
        self._refused: list[tuple[int, str, str]] = []
        self._skipped: list[int] = []

    def batches(self) -> Iterator[Arrived]:
        done = 0
        try:
            source = self._source()
            for batch in self._open(source):
                positions = self._positions(done, batch.num_rows)
                done += batch.num_rows
                read = 0 if self.piece.file.compression else source.tell()
                yield Arrived(batch, positions, rejected=self._refused_before(done), read=read)
            self._check_quotes()
            yield Arrived(None, rejected=rejects_of(self._refused), last=done + len(self._skipped))
        except pa.ArrowInvalid as error:
            if "Empty CSV" not in str(error):  # a first record, without a line end, and nothing more
                raise self._as_invalid(error) from error
        except OSError as error:
            raise Invalid(
                "the file cannot be unpacked", kind="input_damaged", path=self.piece.file.path, reason=error,
                hint="copy it again: it is damaged or was cut short",
            ) from error  # fmt: skip

    def _check_quotes(self) -> None:
        """Refuse what Arrow reads over: text behind a closing quote, as where a backslash was to escape it, and a quote
        that stays open. Each record is looked at only where quotes do not come in pairs, or follow a backslash.
        """
        odd, escaped, before = 0, False, b""
        for chunk in _pieces_of(self._source()):
            odd ^= chunk.count(b'"') & 1
            escaped = escaped or b'\\"' in chunk or (before == b"\\" and chunk[:1] == b'"')
            before = chunk[-1:]
        if not odd and not escaped:
            return
        row, limit = 1 - self.named, csv.field_size_limit(BLOCK_BYTES)
        try:
            with io.TextIOWrapper(self._source(), "utf-8", "replace", newline="") as text:
                for record in csv.reader(text, delimiter=self.header.delimiter, strict=True):
                    row += bool(record)
        except csv.Error as error:
            still_open = "end of data" in str(error)
            raise Invalid(
                "a quote is opened and never closed" if still_open else "text stands behind a closing quote",
                kind="input_damaged", path=self.piece.file.path, row=row,
                hint="write a quote within quotes twice, in Spark by option('escape', '\"')",
            ) from error  # fmt: skip
        finally:
            csv.field_size_limit(limit)

    def _refused_before(self, done: int) -> pa.RecordBatch:
        """Those that stood among the first `done` good records: Arrow is ahead of us."""
        ahead = len(self._skipped) - len(self._refused)
        stood = [position - 1 - ahead - index for index, (position, _, _) in enumerate(self._refused)]
        count = sum(position <= done for position in stood)
        rejects, self._refused = self._refused[:count], self._refused[count:]
        return rejects_of(rejects)

    def _open(self, source: Any) -> Any:
        names = None if self.named else list(self.header.names)
        return arrow_csv.open_csv(
            source,
            # One thread: only so does Arrow know the number of a record that it refuses.
            read_options=arrow_csv.ReadOptions(block_size=BLOCK_BYTES, use_threads=False, column_names=names),
            parse_options=arrow_csv.ParseOptions(
                delimiter=self.header.delimiter, newlines_in_values=True, invalid_row_handler=self._refuse
            ),
            convert_options=arrow_csv.ConvertOptions(
                include_columns=self.columns, column_types=dict.fromkeys(self.columns, pa.string()),
                null_values=["", self.null], strings_can_be_null=True, quoted_strings_can_be_null=False,
            ),
        )  # fmt: skip

    def _source(self) -> Any:
        piece = self.piece
        if piece.start == 0 and piece.stop is None:
            return open_stream(piece.file)
        whole = pa.memory_map(piece.file.path).read_buffer()
        return pa.BufferReader(whole[piece.start : piece.stop])

    def _refuse(self, record: Any) -> str:
        position = record.number - self.named
        problem = f"record has {record.actual_columns} cells, the first one has {record.expected_columns}"
        self._refused.append((position, problem, record.text[:_TEXT_SHOWN_MAX]))
        self._skipped.append(position)
        return "skip"

    def _positions(self, done: int, count: int) -> int | npt.NDArray[np.int64]:
        """Positions from 1 of the good records `done` and on, among which refused ones stood."""
        if not self._skipped:
            return done + 1
        skipped = np.array(self._skipped, np.int64)
        good = np.arange(done, done + count, dtype=np.int64)
        # A refused record at position p stood after p - 1 - (those refused before it) good ones.
        return good + 1 + np.searchsorted(skipped - 1 - np.arange(len(skipped)), good, side="right")

    def _as_invalid(self, error: pa.ArrowInvalid) -> Invalid:
        reason = str(error).splitlines()[0]
        if "UTF8" in reason:
            return _not_utf8(self.piece.file, error)
        if "straddling object" in reason:
            return self._too_long()
        return Invalid(
            "the file is no CSV that can be read", kind="input_damaged", path=self.piece.file.path, reason=reason,
            hint="open it and look at the record named above",
        )  # fmt: skip

    def _too_long(self) -> Invalid:
        """The refusal of a record that is longer than the blocks Arrow reads, or has a quote that is never closed."""
        record = find_long_record(_pieces_of(self._source()), BLOCK_BYTES, self.header.delimiter)
        names = self.header.names
        where = {
            "path": self.piece.file.path, "row": record.number - self.named + 1,
            "column": names[record.cell] if record.cell < len(names) else record.cell + 1,
        }  # fmt: skip
        if record.open:
            return Invalid(
                "a quote is opened and never closed", kind="input_damaged", **where, hint="close it, or take it out"
            )
        return Invalid(
            "a record is too long", kind="record_long", **where, bytes=record.size, bytes_max=BLOCK_BYTES,
            hint="leave it out, cut it, or write the file as Parquet",
        )  # fmt: skip


def _pieces_of(source: Any) -> Iterator[bytes]:
    while chunk := source.read(BLOCK_BYTES):
        yield chunk


def split_csv(file: InputFile, bytes_max: int) -> list[Piece]:
    """Pieces of about `bytes_max` that begin and end between records.

    A line end within quotes is none: quotes are counted from the beginning, which is quick, and an even count of
    them lies before each place where a record may begin.
    """
    if file.compression or file.size <= bytes_max:
        return [Piece(file)]
    whole = memoryview(pa.memory_map(file.path).read_buffer())
    starts, inside = [0], False
    for begin in range(0, file.size, bytes_max):
        end = min(begin + bytes_max, file.size)
        if begin:
            cut = _record_start(whole, begin, inside)
            if starts[-1] < cut < file.size:
                starts.append(cut)
        inside ^= bool(_quotes(whole[begin:end]) & 1)
    stops: list[int | None] = [*starts[1:], None]
    return [Piece(file, start, stop) for start, stop in zip(starts, stops, strict=True)]


def _quotes(block: memoryview) -> int:
    return sum(bytes(block[at : at + BLOCK_BYTES]).count(b'"') for at in range(0, len(block), BLOCK_BYTES))


def _record_start(whole: memoryview, at: int, inside: bool) -> int:
    """The first place at or after `at` where a record begins; `inside` says whether quotes are open there."""
    while at < len(whole):
        block = bytes(whole[at : at + (64 << 10)])
        for offset, byte in enumerate(block):
            if byte == 0x22:
                inside = not inside
            elif byte == 0x0A and not inside:
                return at + offset + 1
        at += len(block)
    return len(whole)


def holds_long_records(file: InputFile) -> bool:
    """True when some record has a line end within quotes: a reader by lines would cut it in two."""
    inside = 0
    for chunk in read_chunks(file, BLOCK_BYTES):
        if b'"' not in chunk:
            if inside and b"\n" in chunk:
                return True
            continue
        data = np.frombuffer(chunk, np.uint8)
        quotes = np.cumsum(data == 0x22) + inside
        if (quotes[data == 0x0A] & 1).any():
            return True
        inside = int(quotes[-1]) & 1
    return False


_QUOTE, _END = ord('"'), ord("\n")


@dataclass(frozen=True, slots=True)
class LongRecord:
    """A record: how many with anything in them stand before it, its size, and its largest cell, counted from 0.

    `open`: a quote in it is never closed.
    """

    number: int
    size: int
    cell: int
    open: bool


def find_long_record(chunks: Iterable[bytes], bytes_max: int, delimiter: str) -> LongRecord:
    """The first record of more than `bytes_max`, else the last one."""
    number, size, inside, head = 0, 0, 0, b""
    for chunk in chunks:
        if inside and b'"' not in chunk:
            size, head = size + len(chunk), head if len(head) >= bytes_max else head + chunk
            continue
        data = np.frombuffer(chunk, np.uint8)
        quoted = (np.cumsum(data == _QUOTE, dtype=np.uint8) + inside) & 1
        ends = np.flatnonzero((data == _END) & (quoted == 0))
        sizes = np.diff(ends, prepend=-1) - 1
        if len(ends):
            sizes[0] += size
        long = np.flatnonzero(sizes > bytes_max)
        stop = len(ends) if not len(long) else int(long[0])
        number += int(np.count_nonzero(sizes[:stop]))
        start = 0 if stop == 0 else int(ends[stop - 1]) + 1
        head = (head if stop == 0 else b"") + chunk[start:] if len(head) < bytes_max or stop else head
        if len(long):
            return LongRecord(number, int(sizes[stop]), _largest_cell(head[: int(sizes[stop])], delimiter), open=False)
        size = (size if stop == 0 else 0) + len(chunk) - start
        inside = int(quoted[-1])
    return LongRecord(number, size, _largest_cell(head, delimiter), bool(inside))


def _largest_cell(record: bytes, delimiter: str) -> int:
    data = np.frombuffer(record, np.uint8)
    quoted = np.cumsum(data == _QUOTE) & 1
    marks = np.flatnonzero((data == ord(delimiter)) & (quoted == 0))
    return int(np.diff(marks, prepend=-1, append=len(data)).argmax())
