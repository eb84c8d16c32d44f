"""From keys to positions: the search of each kind of map over the groups of one snapshot.

`Finder` holds what every search needs, worked out once per opened snapshot; `Matches` is what a search answers with:
opaque positions from which any number of value columns are taken.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millpond.arrays.radix import I64, U64
from millpond.arrays.xxh3 import KERNEL_BYTES_MAX, byte_column, hash_keys
from millpond.errors import Invalid
from millpond.maps.inputs.key_columns import OnInvalid, check_on_invalid, instants_of, keys_of
from millpond.maps.model.aggregation import Aggregation
from millpond.maps.model.definition import Kind, MapDefinition
from millpond.maps.search.gather import ANSWER_BYTES_MAX, RowColumn, gather
from millpond.maps.search.group_table import COUNT, NUMBER, PIECE
from millpond.maps.search.groups import Directories, Groups, gather_table, rows_of
from millpond.maps.search.intervals import choose_sections, find_ranges, find_ranges_as_of, locate, spread
from millpond.maps.search.joined_rows import JOINED_AFTER, JOINED_BYTES_MAX, JoinedRows, find_joined, joined_bytes
from millpond.maps.search.kernels import BLOCK, as_of, bucket_order, find_groups, innermost, only_row, order_bits
from millpond.maps.search.partial import FILL, JOIN, WHOLE, find_row, find_rows, order_by_parts
from millpond.maps.search.sections import OpenSections
from millpond.maps.search.validate import check_offsets
from millpond.maps.snapshots.bounds import SnapshotBounds
from millpond.maps.snapshots.groups_of_rows import row_times
from millpond.maps.snapshots.manifest import LayerMode
from millpond.maps.snapshots.partition_filter import HashShare, shares_of
from millpond.memory_bound import memory_bound

__all__ = ("Finder", "Matches", "KeyAddress", "LayerParts", "key_address", "single_values")

KeyAddress = tuple[int, int, int, int, int]
"""The addresses at which kernels read keys: offsets and their width, bytes, validity and its offset."""

_MODES = {LayerMode.WHOLE: WHOLE, LayerMode.JOIN: JOIN, LayerMode.FILL: FILL}


@dataclass(frozen=True, slots=True)
class LayerParts:
    """Parts of the layers of a finder, one after another: those of part p begin at `begins[p]`, the newest first.

    `aggregations` are those of the parts, of an aggregate: each may be rolled up otherwise.
    """

    begins: I64
    layers: I64
    modes: I64
    aggregations: tuple[Aggregation, ...] = ()

    def __len__(self) -> int:
        return len(self.begins) - 1

    @classmethod
    def of(
        cls, parts: Sequence[Sequence[tuple[int, LayerMode]]], aggregations: Iterable[Aggregation] = ()
    ) -> LayerParts:
        """Parts by the numbers and modes of their layers."""
        begins = np.cumsum([0, *map(len, parts)])
        pairs = [(number, _MODES[mode]) for part in parts for number, mode in part]
        layers, modes = np.array(pairs, np.int64).reshape(-1, 2).T.copy()
        return cls(begins, layers, modes, tuple(aggregations))


@dataclass(frozen=True, slots=True)
class Matches:
    """The places of the answers to one batch of keys; valid while its snapshot is open.

    `positions` are in the order of the search, `order` says which question each belongs to.
    """

    order: I64
    positions: I64

    def __len__(self) -> int:
        return len(self.positions)

    @property
    def hits(self) -> int:
        """The number of keys that have an answer."""
        return int(np.count_nonzero(self.positions >= 0))

    def there(self) -> npt.NDArray[np.bool_]:
        """For each question, whether there is a row that answers, be its value null or not."""
        mask = np.zeros(len(self), np.bool_)
        mask[self.order] = self.positions >= 0
        return mask


class Finder:
    """Searches the groups of one snapshot."""

    def __init__(
        self, definition: MapDefinition, groups: Groups, sections: Callable[[Groups], OpenSections],
        subset: SnapshotBounds | None = None, share: HashShare | None = None, modes: Sequence[LayerMode] = (),
        memory_max: int | None = None, before: Finder | None = None,
    ) -> None:  # fmt: skip
        """`modes` are those of the layers of `groups`; without them all are whole. `memory_max`: the bytes that may be
        taken to answer faster, by default what the environment says. What `before` worked out of layers that are the
        same is taken over.
        """
        assert share is None or definition.kind.keyed, "ranges have no hashes"
        self.definition = definition
        self.bounds = subset
        self.share = share
        self.groups = groups
        partial = any(mode is not LayerMode.WHOLE for mode in modes)
        self._modes = np.array([_MODES[mode] for mode in modes], np.int64) if partial else None
        self.finds_one = type(self) is Finder and definition.kind.keyed and share is None and subset is None
        self._joined_rows: JoinedRows | None = None
        self._joining, self._questions = threading.Lock(), 0
        self.memory_max = memory_bound(memory_max)
        self._open_sections = sections
        self._columns: dict[str, RowColumn] = {}
        self._tables: dict[str, tuple[npt.NDArray[np.int64], int]] = {}
        self._address = groups.address
        self._values: list[pa.Array | memoryview] | None = None
        self._before = before if before is not None and before.directories() is not None else None

    @cached_property
    def _directories(self) -> Directories:
        before, self._before = self._before, None
        checked = set(map(id, before.groups.batches)) if before is not None else set[int]()
        self._check("key", checked)
        self._check("rows", checked)
        if self.definition.kind is Kind.SESSION:
            self._check("cover", checked)
        return Directories.of(self.groups, None if before is None else before.directories())

    def directories(self) -> tuple[Groups, Directories] | None:
        """The groups, and the directories of their layers; None before it was asked, when it holds what came before."""
        return (self.groups, self._directories) if "_directories" in self.__dict__ else None

    def _check(self, column: str, checked: Collection[int] = ()) -> None:
        for batch, name in zip(self.groups.batches, self.groups.names, strict=True):
            if id(batch) not in checked:
                check_offsets(batch.column(column), name)

    @cached_property
    def _sections(self) -> OpenSections:
        self._check("rows")
        return self._open_sections(self.groups)

    def find(self, keys: Any, at: Any, on_invalid: OnInvalid = "error") -> Matches:
        """The rows that answer.

        Raises: `Invalid` for keys or times that are not such, or not as many of the one as of the other.
        """
        check_on_invalid(on_invalid)
        array = keys_of(self.definition, keys, on_invalid)
        instants, in_range = instants_of(self.definition, at, len(array), on_invalid)
        if self.bounds is not None:
            self.bounds.check(self.definition, array, instants, in_range)
        result = self.search(array, instants)
        if len(in_range):
            result.positions[~in_range[result.order]] = -1
        return result

    def search(self, keys: pa.Array, instants: I64) -> Matches:
        """As `find`, of keys and instants that are in their form."""
        return self._find_keyed(keys, instants) if self.definition.kind.keyed else self._find_ranged(keys, instants)

    def over(self, sections: Callable[[Groups], OpenSections]) -> Finder:
        """A finder of some layers of ranges, by their sections, which finds the same positions."""
        part = Finder(self.definition, self.groups, sections, self.bounds, self.share, memory_max=self.memory_max)
        part._columns, part._tables = self._columns, self._tables
        return part

    # -- keyed kinds ----------------------------------------------------------------------------------

    def _find_keyed(self, keys: pa.Array, instants: I64) -> Matches:
        # A dictionary may have keys that no row has; and of partial layers each row has its own best group.
        if (self.share is not None or self._modes is not None) and pa.types.is_dictionary(keys.type):
            keys = keys.dictionary_decode()
        if self._modes is not None:
            return self._find_keys(keys, instants)
        groups = self._groups_of_codes(keys) if pa.types.is_dictionary(keys.type) else self._find_keys(keys)
        self._rows(groups, instants)
        return groups

    def _find_keys(self, keys: pa.Array, instants: I64 | None = None) -> Matches:
        """The group of each key; in partial layers the row that answers at its instant."""
        hashes = self._hashes(keys)
        order, ordered = self._ordered(hashes, len(self.groups))
        return self._find_hashed(key_address(keys), instants, ordered, order)

    def find_one(self, key: bytes, instant: int) -> int:
        """The position of the row that answers, -1: none, where `finds_one`: columns would cost more than that."""
        if len(key) > KERNEL_BYTES_MAX:
            return int(self.search(pa.array([key]), np.array([instant])).positions[0])
        return int(self._find_row(key, instant, self._places))

    @cached_property
    def _find_row(self) -> Callable[[bytes, int, I64], int]:
        compiled: Callable[[bytes, int, I64], int] = find_row.compiled()
        return compiled

    @cached_property
    def _places(self) -> I64:
        """The addresses that `find_row` takes."""
        directories = self._directories
        first, second = [*map(self._times, row_times(self.definition.kind)), 0, 0][:2]
        arrays = directories.layers, self._layer_modes, directories.slots, directories.filters
        addresses = [array.ctypes.data for array in arrays]
        bits = -1 if self.definition.hash_bits == 64 else (1 << self.definition.hash_bits) - 1
        return np.array([self._address, *addresses, first, second, len(directories.layers), bits], np.int64)

    @cached_property
    def _layer_modes(self) -> I64:
        return np.full(len(self.groups.layers) - 1, WHOLE, np.int64) if self._modes is None else self._modes

    def _find_hashed(self, keys: KeyAddress, instants: I64 | None, ordered: U64, order: I64) -> Matches:
        directories = self._directories
        if self._modes is None or instants is None:
            groups = np.empty((1, len(order)), np.int64)
            lines, hides = directories.layers, np.ones(len(directories.layers), np.bool_)
            search = (ordered, order, keys, self._address, lines, hides)
            find_groups(*search, directories.slots, directories.filters, groups)
            return Matches(order, groups[0])
        if (joined := self._joined(len(order))) is not None:
            return self._find_joined(joined, keys, instants, ordered, order)
        everything = np.array([[0, len(order), 0, len(directories.layers)]], np.int64)
        return self._find_in(keys, instants, ordered, order, everything, directories.layers, self._modes)

    @cached_property
    def _joins_from(self) -> int | None:
        """The number of questions from which on layers are joined in memory; None: they are not."""
        layers, timed = self.groups.layers, self.definition.kind is Kind.TEMPORAL_STATE
        bytes_max = min(self.memory_max, JOINED_BYTES_MAX)
        if self._modes is None or not timed or len(layers) < 3 or joined_bytes(self.groups) > bytes_max:
            return None
        return max(JOINED_AFTER, int(self.groups.table[: layers[-2], COUNT].sum()) // 2)  # it costs as much

    def _joined(self, count: int) -> JoinedRows | None:
        """The layers over the oldest as one, when so much was asked as it costs to join them; before, None."""
        if self._joined_rows is None and self._joins_from is not None and self._modes is not None:
            self._questions += count
            # Other threads ask layer by layer meanwhile.
            if self._questions >= self._joins_from and self._joining.acquire(blocking=False):
                times = self._times("effective_time")
                self._joined_rows = JoinedRows.of(self.groups, self._directories, self._modes, times)
        return self._joined_rows

    def _find_joined(self, joined: JoinedRows, keys: KeyAddress, instants: I64, ordered: U64, order: I64) -> Matches:
        positions, oldest = np.empty(len(order), np.int64), self._directories.layers[-1]
        find_joined(
            ordered, order, keys, self._address, oldest, self._directories.slots[oldest[2] :], joined.keys,
            joined.slots, joined.bits, joined.rows, self._times("effective_time"), instants.ctypes.data,
            0 if len(instants) == 1 else 8, positions,
        )  # fmt: skip
        return Matches(order, positions)

    def _find_in(
        self, keys: KeyAddress, instants: I64, ordered: U64, order: I64, stretches: I64, lines: I64, modes: I64
    ) -> Matches:  # fmt: skip
        """The rows that answer in the layers of each stretch of the ordered keys; `lines` are those of directories."""
        times = [self._times(name) for name in row_times(self.definition.kind)]
        first, second = [*times, 0, 0][:2]
        positions = np.empty(len(order), np.int64)
        find_rows(
            ordered, order, keys, self._address, stretches, lines, modes, self._directories.slots,
            self._directories.filters, first, second, instants.ctypes.data, 0 if len(instants) == 1 else 8, positions,
        )  # fmt: skip
        return Matches(order, positions)

    def find_in_parts(self, keys: pa.Array, instants: I64, numbers: I64, parts: LayerParts) -> Matches:
        """The rows that answer each key in the layers of the part with its number; none where that is -1.

        Keys are put in the order of the upper bits of their hashes, then of their parts: neighbours are searched in
        the same layers, and in places that lie together, also in the layers that parts share.
        """
        if pa.types.is_dictionary(keys.type):
            keys = keys.dictionary_decode()
        order, ordered, stretches = self._ordered_by_parts(keys, numbers, parts)
        lines = self._directories.layers[parts.layers]
        return self._find_in(key_address(keys), instants, ordered, order, stretches, lines, parts.modes)

    def _ordered_by_parts(self, keys: pa.Array, numbers: I64, parts: LayerParts) -> tuple[I64, U64, I64]:
        """The order of keys by the upper bits of their hashes, then by their parts, their hashes, and its stretches."""
        hashes = self._hashes(keys)
        bits = min(order_bits(len(keys), len(self.groups)), (len(keys) // (BLOCK * (len(parts) + 1))).bit_length())
        stretches = np.empty(((len(parts) + 1) << bits, 4), np.int64)
        order, ordered = np.empty(len(hashes), np.int64), np.empty(len(hashes), np.uint64)
        count = order_by_parts(hashes, bits, numbers, parts.begins, order, ordered, stretches)
        return order, ordered, stretches[:count]

    def _hashes(self, keys: pa.Array) -> U64:
        hashes = hash_keys(keys, bits=self.definition.hash_bits)
        if self.share is not None:
            self._check_share(self.share, keys, hashes)
        return hashes

    def _check_share(self, share: HashShare, keys: pa.Array, hashes: U64) -> None:
        """Refuse keys of which nothing is known here: a miss would be a wrong answer."""
        outside = shares_of(hashes, share.count) != share.number
        if keys.null_count:
            outside &= keys.is_valid().to_numpy(zero_copy_only=False)
        if outside.any():
            raise Invalid(
                "a key lies outside the share of the snapshot that is open", kind="key_outside_share",
                map=self.definition.name, key=keys[int(np.argmax(outside))].as_py(), share=share.number,
                shares=share.count, hint="open the share of the key, or the whole snapshot",
            )  # fmt: skip

    def _groups_of_codes(self, keys: pa.Array) -> Matches:
        """Each entry of the dictionary is searched once."""
        distinct = self._find_keys(keys.dictionary)
        of_code = np.full(len(distinct) + 1, -1, np.int64)
        of_code[distinct.order] = distinct.positions
        codes = keys.indices.cast(pa.int64()).fill_null(len(distinct)).to_numpy()
        return Matches(np.arange(len(keys)), of_code[codes])

    def _rows(self, result: Matches, instants: I64) -> None:
        """From groups to rows, in place."""
        table, step = self._address, 0 if len(instants) == 1 else 8
        match self.definition.kind:
            case Kind.STATE | Kind.RANGED_STATE:
                only_row(table, result.positions)
            case Kind.TEMPORAL_STATE | Kind.TEMPORAL_RANGED_STATE:
                times = self._times("effective_time")
                as_of(table, times, result.order, instants.ctypes.data, step, result.positions)
            case Kind.SESSION:
                starts, ends = self._times("start"), self._times("end")
                innermost(table, starts, ends, result.order, instants.ctypes.data, step, result.positions)

    def _times(self, name: str) -> int:
        if name not in self._tables:
            arrays = [rows_of(batch).field(name) for batch in self.groups.batches]
            table = gather_table(self.groups, arrays, 8)
            self._tables[name] = table, int(table.ctypes.data)
        return self._tables[name][1]

    # -- ranged kinds ---------------------------------------------------------------------------------

    def _find_ranged(self, array: pa.Array, instants: I64) -> Matches:
        there = array.is_valid().to_numpy(zero_copy_only=False) if array.null_count else ()
        numbers = (array.fill_null(0) if array.null_count else array).to_numpy()
        sections, count = self._sections, len(numbers)
        order, _ = self._ordered(spread(sections.first, sections.last, numbers), len(self.groups))
        positions, ordered, chosen = np.empty(count, np.int64), np.empty(count, np.int64), np.empty(count, np.int32)
        needed = np.zeros(len(sections.lower), np.bool_)
        lower, table = sections.lower, sections.table
        choose_sections(lower.ctypes.data, len(lower), order, numbers.ctypes.data, ordered, chosen, needed)
        sections.need(needed)
        locate(table, chosen, ordered, positions)
        if len(there):
            positions[~there[order]] = -1
        if self.definition.kind.timed:
            step = 0 if len(instants) == 1 else 8
            find_ranges_as_of(table, chosen, order, instants.ctypes.data, step, positions)
        else:
            find_ranges(table, chosen, positions)
        result = Matches(order, positions)
        self._rows(result, instants)
        return result

    @staticmethod
    def _ordered(hashes: U64, groups: int) -> tuple[I64, U64]:
        """The order of a batch in which neighbours in memory are asked for together, and the hashes in that order."""
        bits = order_bits(len(hashes), groups)
        if not bits:
            return np.arange(len(hashes)), hashes
        order, ordered = np.empty(len(hashes), np.int64), np.empty(len(hashes), np.uint64)
        bucket_order(hashes, bits, order, ordered)
        return order, ordered

    # -- answers --------------------------------------------------------------------------------------

    def take(
        self, matches: Matches, name: str, kind: pa.DataType, *path: str, bytes_max: int = ANSWER_BYTES_MAX
    ) -> pa.Array:  # fmt: skip
        """The row column `name` (a field within it, along `path`) of what was found, as type `kind`."""
        return gather(self._column(name, kind, *path), matches.order, matches.positions, bytes_max)

    def take_one(self, position: int, kind: pa.DataType) -> Any:
        """The value of one row, of a type without instants, as Python has it."""
        if self._values is None:
            self._column("value", kind)  # checks what leads to the bytes
            self._values = [single_values(self._row_column(batch, "value", ())) for batch in self.groups.batches]
        value = self._values[position >> PIECE][position & NUMBER]
        if isinstance(value, pa.Scalar):
            value = value.as_py()
        return dict(zip(kind.names, value.values(), strict=True)) if isinstance(value, dict) else value

    def _column(self, name: str, kind: pa.DataType, *path: str) -> RowColumn:
        slot = "\0".join((name, *path, str(kind)))
        if slot not in self._columns:
            arrays = [self._row_column(batch, name, path) for batch in self.groups.batches]
            self._columns[slot] = RowColumn.of(self.groups, arrays, kind)
        return self._columns[slot]

    @staticmethod
    def _row_column(batch: pa.RecordBatch, name: str, path: tuple[str, ...]) -> pa.Array:
        array = rows_of(batch)
        for step in (name, *path):
            array = array.field(step)
        return array


def single_values(column: pa.Array) -> pa.Array | memoryview:
    """A column of which single values are read: of plain numbers a view, which has no Arrow between."""
    whole, double = pa.types.is_int64(column.type), pa.types.is_float64(column.type)
    if not (whole or double) or column.null_count or not len(column):
        return column
    view = memoryview(column.to_numpy().view(np.uint8))  # the numbers of a fetched block may lie unaligned
    return view.cast("q") if whole else view.cast("d")


def key_address(keys: pa.Array) -> KeyAddress:
    """The addresses at which kernels read the keys of a column."""
    column = byte_column(keys)
    valid = keys.buffers()[0] if keys.null_count else None
    return column.offsets, 8 if column.wide else 4, column.data, valid.address if valid else 0, keys.offset
