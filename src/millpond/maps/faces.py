"""Ponds and maps as people meet them: the names that `dir` lists, tables in a notebook, frames that are enriched.

What lies in a folder and what lies on nodes shows the same face: it is made of the promises of `protocols.py`.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from millpond.error_values import html_facts, html_table
from millpond.errors import MillpondError
from millpond.kernel.closing import Closing
from millpond.maps.protocols import MapLike, PondLike
from millpond.sizes import human_count

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from millpond.maps.enrich import Lookup
    from millpond.maps.inputs.key_columns import OnInvalid

__all__ = ("MapFace", "PondFace")

_MAPS_SHOWN_MAX = 50


class _Face:
    """An object whose `dir` lists what its interface promises, and not what keeps it.

    A class that it is made of may promise more: all public names of one that says `_is_interface` are listed, too.
    """

    _promises: type

    def __dir__(self) -> list[str]:
        promised = set(dir(self._promises))
        promised.update(*(vars(kind) for kind in type(self).__mro__ if "_is_interface" in vars(kind)))
        return [name for name in super().__dir__() if name.startswith("_") or name in promised]


class PondFace(_Face, Closing):
    """A pond that enriches frames with its maps, and is closed at the end of a block."""

    _promises = PondLike

    def enrich(
        self: Any, frame: Any, lookups: Lookup | Iterable[Lookup] | None = None, *, map: str | None = None,
        key: str | None = None, at: str | None = None, into: str | None = None, on_invalid: OnInvalid = "error",
        known_at: Any = None, window: str | None = None, overwrite: bool = False, flat: bool = False,
    ) -> Any:  # fmt: skip
        """The rows of a frame of pandas or Polars, or of an Arrow table, with a column for each lookup; else null.

        `map, key, at, into` and `on_invalid` describe one lookup, `lookups` several, see `Lookup`: each row is looked
        up as of its own time in the column `at`; without `at`, now. `known_at`, a column or one time, asks layered maps
        as they were known then; `window` combines the buckets of an aggregate before that time. The answer is a frame
        of the same library; what else holds rows becomes an Arrow table. A map of structs gives a struct, or with
        `flat` a column for each field, `weather_temp`. `overwrite=True` replaces an existing column.

        Raises: `Invalid` for keys or times that are not such, and for an existing column; `NotFound` for a map or a
            column that does not exist.
        """
        from millpond.maps.enrich import enriched, lookups_of

        questions = lookups_of(
            lookups, map=map, key=key, at=at, into=into, on_invalid=on_invalid, known_at=known_at, window=window
        )  # fmt: skip
        return enriched(self, frame, questions, overwrite=overwrite, flat=flat)

    def training_set(
        self: Any, events: Any, maps: Mapping[str, str | Lookup], *, at: str | None = None, known_at: Any = None,
        on_invalid: OnInvalid = "error", flat: bool = True,
    ) -> Any:  # fmt: skip
        """The events with the features that layered maps had for each: as of the time in the column `at`, and as was
        known at that in `known_at`, by default the same: nothing that came later leaks into them.

        `maps` names for each map the column of its keys, or a `Lookup` with columns of its own. Frames and answers are
        as in `enrich`.

        Raises: as `enrich`; `Invalid`, kind `known_at_unsupported`, for a sharded map.
        """
        from millpond.maps.enrich import enriched, features_of

        return enriched(self, events, features_of(maps, at, known_at, on_invalid), overwrite=False, flat=flat)

    def _repr_html_(self: Any) -> str | None:
        with suppress(MillpondError):
            definitions = [pond_map.definition for pond_map in self.maps()]
            rows = [
                (definition.name, definition.kind_name, definition.value or "", definition.scheme)
                for definition in definitions[:_MAPS_SHOWN_MAX]
            ]
            more = f", the first {_MAPS_SHOWN_MAX}" if len(definitions) > _MAPS_SHOWN_MAX else ""
            title = f"{self!r}: {human_count(len(definitions), 'map')}{more}"
            return html_table(title, ("map", "kind", "value", "scheme"), rows)
        return None  # it was closed, or no node answers: a notebook shows the text


class MapFace(_Face):
    """A map that a notebook shows as a table of its facts."""

    _promises = MapLike

    def _repr_html_(self: Any) -> str | None:
        with suppress(MillpondError):
            return html_facts(repr(self), {name: fact for name, fact in self.info().items() if fact is not None})
        return None
