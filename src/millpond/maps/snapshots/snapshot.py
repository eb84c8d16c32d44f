"""A snapshot, open for questions in bulk: Arrow arrays in, an Arrow array out.

    with Snapshot.open(objects, manifest) as snapshot:
        temperatures = snapshot.lookup(keys, at=times)

The range files are memory-mapped and searched where they lie; opening copies nothing. Its files stay while it is open,
whatever is frozen or collected meanwhile. It may be used by several threads at once.

| map | answer |
|---|---|
| value type declared | that type; a struct is a struct |
| undeclared | the value as text, as `scan` shows it |
| session | struct of `start` and `end` |

A miss is null, and so is a value that is null: `find(…).there()` tells them apart.
"""

from __future__ import annotations

from functools import cached_property, partial
from numbers import Integral
from types import NoneType
from typing import Any, Self

import pyarrow as pa

from millpond.argument_types import need_type
from millpond.arrays.byte_columns import to_list
from millpond.error_values import html_facts
from millpond.errors import Closed, Invalid
from millpond.kernel.closing import Closing
from millpond.maps.inputs.key_columns import OnInvalid, check_on_invalid, keys_of
from millpond.maps.inputs.spans import Between, Buckets
from millpond.maps.model.columns import INSTANT, value_arrow
from millpond.maps.model.definition import Kind, MapDefinition
from millpond.maps.model.one_value import NULL, python_value
from millpond.maps.model.values import encode_values, present_values
from millpond.maps.search.gather import ANSWER_BYTES_MAX
from millpond.maps.search.groups import Groups
from millpond.maps.snapshots.bucket_finder import BucketFinder, MatchRows, finder_class
from millpond.maps.snapshots.finder import Finder, Matches
from millpond.maps.snapshots.freeze import SnapshotManifest, open_layers, open_sections
from millpond.maps.snapshots.leases import SnapshotLease
from millpond.maps.snapshots.manifest import known_as
from millpond.maps.snapshots.partition_filter import HashShare
from millpond.stores.objects import Objects
from millpond.times.instants import INSTANT_MAX, INSTANT_MIN, clear_instant

__all__ = ("Snapshot", "answer_type", "answers")


def answer_type(definition: MapDefinition) -> pa.DataType:
    """The Arrow type of what `lookup` answers."""
    if definition.kind is Kind.SESSION:
        return pa.struct([("start", INSTANT), ("end", INSTANT)])
    return pa.string() if definition.value is None else value_arrow(definition.shown)


def answers(finder: Finder, matches: Matches, bytes_max: int = ANSWER_BYTES_MAX) -> pa.Array:
    """The answers of what was found, as `lookup` gives them."""
    definition = finder.definition
    kind = answer_type(definition)
    if definition.kind is Kind.SESSION:
        columns = [finder.take(matches, name, INSTANT) for name in ("start", "end")]
        missing = pa.array(~matches.there()) if matches.hits < len(matches) else None
        return pa.StructArray.from_arrays(columns, fields=list(kind), mask=missing)
    if definition.value is None:
        return present_values(finder.take(matches, "value", pa.binary(), bytes_max=bytes_max).fill_null(NULL))[1]
    return finder.take(matches, "value", kind, bytes_max=bytes_max)


def _has_instants(kind: pa.DataType) -> bool:
    """True for a type whose values Arrow gives another zone than Millpond does."""
    return pa.types.is_timestamp(kind) or (
        pa.types.is_struct(kind) and any(_has_instants(field.type) for field in kind)
    )


class Snapshot(Closing):
    """An open snapshot, from `Map.snapshot`. Use it as a context manager, or `close` it; or let it be collected."""

    def __init__(
        self, objects: Objects, manifest: SnapshotManifest, *, verify: bool = False, share: HashShare | None = None,
        shown_as: MapDefinition | None = None, groups: Groups | None = None, memory_max: int | None = None,
        before: Finder | None = None,
    ) -> None:  # fmt: skip
        """With `groups` that are open no other file is: only keys may be looked up that none of those may have."""
        stored, manifest = manifest, manifest if shown_as is None else known_as(manifest, shown_as)
        self.manifest = manifest
        self.definition = manifest.definition  # as much of it as reading needs
        self.lease: SnapshotLease | None = SnapshotLease(objects, stored.id)
        self._finder: Finder | None = None
        try:
            if groups is None:
                span = None if share is None else share.groups
                alike = before is not None and before.definition.value_id == self.definition.value_id
                held = before.groups if before is not None and alike else None
                groups = open_layers(objects, manifest, verify=verify, span=span, before=held)
            sections = partial(open_sections, objects, manifest)
            modes = [layer.mode for layer in manifest.layers]
            search = finder_class(self.definition)
            self._finder = search(self.definition, groups, sections, manifest.bounds, share, modes, memory_max, before)
        except BaseException:
            self.close()
            raise

    @classmethod
    def open(
        cls, objects: Objects, manifest: SnapshotManifest, *, verify: bool = False, share: HashShare | None = None,
        shown_as: MapDefinition | None = None, memory_max: int | None = None, before: Finder | None = None,
    ) -> Self:  # fmt: skip
        """Open a snapshot; `verify` reads all its files and compares them with their names first.

        Of a `share` only the files are opened that it needs, and only keys whose hashes it has may be looked up.
        `shown_as` is a later definition of the map, with whose fields rows are shown, as `known_as`.
        Many questions are answered faster where up to `memory_max` bytes may be taken for it, by default what the
        environment says. `before` is the finder of an earlier state, whose files are taken over as they are open.

        Raises: `NotFound` when it was collected meanwhile; `Corrupt`, naming the file that is damaged.
        """
        need_type("manifest", manifest, SnapshotManifest)
        return cls(
            objects, manifest, verify=verify, share=share, shown_as=shown_as, memory_max=memory_max, before=before
        )

    def __repr__(self) -> str:
        return f"Snapshot({self.definition.summary}, id={self.manifest.id!r}{', closed' if self.closed else ''})"

    def _repr_html_(self) -> str:
        made = self.manifest
        facts = {"map": made.map, "kind": made.kind, "value": made.value or "any", "id": made.id, "bytes": made.size}
        return html_facts(repr(self), facts)

    def close(self) -> None:
        """Close it, and with its last holder the files. Closing twice is harmless; a lookup that runs in another thread
        ends well.
        """
        self._finder = None
        self.lease = None  # it ends with its last holder

    def another(self) -> Self:
        """The same for one more holder, over the same files: each closes its own.

        Raises: `Closed`.
        """
        copy = object.__new__(type(self))
        copy.__dict__.update(self.__dict__)
        copy._open_finder()
        return copy

    @property
    def finder(self) -> Finder | None:
        """The finder over its files; None when it was closed."""
        return self._finder

    @property
    def closed(self) -> bool:
        """True when it was closed."""
        return self._finder is None

    @property
    def mapped_bytes(self) -> int:
        """The bytes of the range files that are mapped."""
        return sum(batch.get_total_buffer_size() for batch in self._open_finder().groups.batches)

    def lookup(
        self, keys: Any, at: Any = None, *, on_invalid: OnInvalid = "error", bytes_max: int = ANSWER_BYTES_MAX,
        between: Between | None = None, resolution: str | None = None, window: str | None = None,
    ) -> pa.Array:  # fmt: skip
        """The answer for each key at its time, in the order of the keys; null where there is none.

        `keys` to `window` are as in `Map.lookup`, but a map with times needs `at`. `on_invalid="miss"` answers null
        for a value that is not a key or not a time. `bytes_max` is the most text, or bytes, of one column of the
        answer.

        Raises: `Invalid` for values that are not keys or not times, or that lie outside a subset; `Closed`; of an
        aggregate as `Buckets.check`, and kind `sum_overflow`.
        """
        result = self.find(
            keys, at, on_invalid=on_invalid, between=between, resolution=resolution, window=window
        )  # fmt: skip
        return self.take(result, bytes_max=bytes_max)

    def get(self, key: bytes | int, at: int | None = None) -> bytes | tuple[int, int] | None:
        """The encoded value for a key or number (at a time), or `(start, end)` of a session; None on a miss.

        Raises: as `lookup`.
        """
        return self._encoded(self._stored(key, at))

    def value(self, key: bytes | int, at: int | None = None) -> Any:
        """The same as a Python value, a session as `(start, end)`; None on a miss.

        Raises: as `lookup`.
        """
        finder, timed = self._open_finder(), self.definition.kind.timed
        one_time = isinstance(at, int) and INSTANT_MIN <= at <= INSTANT_MAX if timed else at is None
        if finder.finds_one and self._plain is not None and one_time and type(key) is bytes:
            position = finder.find_one(key, at or 0)
            return None if position < 0 else finder.take_one(position, self._plain)
        stored = self._stored(key, at)
        if isinstance(stored, pa.Array) and not _has_instants(stored.type):
            return stored[0].as_py()
        encoded = self._encoded(stored)
        return python_value(encoded, self.definition.shown) if isinstance(encoded, bytes) else encoded

    @cached_property
    def _plain(self) -> pa.DataType | None:
        """The type of answers that Python has as Arrow has them; None for others."""
        kind = answer_type(self.definition)
        return None if self.definition.value is None or _has_instants(kind) else kind

    def _encoded(self, stored: pa.Array | bytes | tuple[int, int] | None) -> bytes | tuple[int, int] | None:
        return to_list(encode_values(stored, self.definition.shown))[0] if isinstance(stored, pa.Array) else stored

    def _stored(self, key: bytes | int, at: int | None) -> pa.Array | bytes | tuple[int, int] | None:
        """The answer in the form that it has in the layers."""
        keyed = self.definition.kind.keyed
        need_type("key", key, bytes if keyed else Integral)
        need_type("at", at, Integral, NoneType)
        if not isinstance(key, bytes) and not -(1 << 63) <= key < 1 << 63:
            return None  # no range holds such a number
        finder, keys = self._open_finder(), pa.array([key if isinstance(key, bytes) else int(key)])
        result = finder.find(keys, None if at is None else clear_instant(at))
        if not result.hits:
            return None
        if self.definition.kind is Kind.SESSION:
            start, end = (finder.take(result, name, pa.int64())[0].as_py() for name in ("start", "end"))
            return start, end
        if self.definition.value is None:
            encoded: bytes = finder.take(result, "value", pa.binary())[0].as_py()
            return encoded
        return self.take(result)

    def find(
        self, keys: Any, at: Any = None, *, on_invalid: OnInvalid = "error", between: Between | None = None,
        resolution: str | None = None, window: str | None = None,
    ) -> Matches:  # fmt: skip
        """The places of the answers, for `take`, which reads all of an answer or one field.

        Raises: as `lookup`.
        """
        finder, buckets = self._open_finder(), Buckets(between, resolution, window)
        if not buckets:
            return finder.find(keys, at, on_invalid)
        check_on_invalid(on_invalid)
        buckets.check(self.definition, at)
        assert isinstance(finder, BucketFinder), "an aggregate has one"
        array = keys_of(self.definition, keys, on_invalid)
        return finder.find_within(array, buckets.spans(self.definition, at, len(array), on_invalid))

    def take(self, matches: Matches, field: str | None = None, *, bytes_max: int = ANSWER_BYTES_MAX) -> pa.Array:
        """The answers, or one field of answers that are structs.

        Raises: `Closed`; `Invalid`, kind `value_field_unknown`, for a field that the answers do not have.
        """
        finder = self._open_finder()
        need_type("matches", matches, MatchRows if isinstance(finder, BucketFinder) else Matches)
        need_type("field", field, str, NoneType)
        need_type("bytes_max", bytes_max, Integral)
        if field is None:
            return answers(finder, matches, bytes_max)
        whole = answer_type(self.definition)
        names = [inner.name for inner in whole] if pa.types.is_struct(whole) else []
        if field not in names:
            raise Invalid(
                "value has no such field", kind="value_field_unknown", field=field, map=self.definition.name,
                hint=f"fields: {', '.join(names)}" if names else "leave field out",
            )  # fmt: skip
        type_ = whole.field(field).type
        path = (field,) if self.definition.kind is Kind.SESSION else ("value", field)
        return finder.take(matches, path[0], type_, *path[1:])

    def _open_finder(self) -> Finder:
        finder = self._finder
        if finder is None:
            raise Closed("the snapshot is closed", kind="snapshot_closed", map=self.manifest.map)
        return finder
