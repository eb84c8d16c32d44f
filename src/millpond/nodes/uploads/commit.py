"""The commit of uploaded parts as loads, at the primary.

Loads are committed at the same time, but for those with a part, an id or a stream in common, which follow one another.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from millpond.errors import Conflict, NotFound
from millpond.maps.loads.load import LoadResult
from millpond.maps.log.remembered import maps_of_load, maps_of_stream, remembered
from millpond.maps.parts.part import PartFile, read_manifest
from millpond.nodes.uploads.receiver import Receiver
from millpond.pond import Pond
from millpond.stores.locks import Names

__all__ = ("LoadCommit",)


class LoadCommit:
    """Enters loads of parts that are here."""

    def __init__(self, pond: Pond, receiver: Receiver) -> None:
        self._pond, self._receiver = pond, receiver
        # Two loads of the same data bring the same parts: the first takes them, the second finds them known.
        self._names = Names()

    def enter(
        self, load: str, parts: Sequence[str], *, source: str, rejected: int, stream: tuple[str, int] | None,
        may: Callable[[str], bool],
    ) -> LoadResult:  # fmt: skip
        """Enter a load; `may` is true for the maps that the caller may write to. The result of an earlier entry is
        returned again.

        Raises:
            NotFound: kind `part_not_uploaded`, a part is neither here nor known, or is for a map of others.
            Conflict: kinds `load_taken` and `stream_taken`, the id belongs to a load or stream of maps of others.
        """
        names = {*parts, f"load {load}", *(() if stream is None else (f"stream {stream[0]}",))}
        with self._names.hold(names):
            here, known = self._find(parts, may)
            self._check_owned(load, stream, may)
            with self._pond.space.read() as tx:
                entered = remembered(tx, load, stream) is not None
            result = self._pond.commit_load(
                here, source=source, rejected=rejected, load_id=load, stream=stream, wait=False
            )
        return result if entered else replace(result, duplicate_parts=result.duplicate_parts + known)

    def _check_owned(self, load: str, stream: tuple[str, int] | None, may: Callable[[str], bool]) -> None:
        """Refuse the id of a load or stream that belongs to others: its result is for them, and its epochs are theirs.

        No other load of this id or stream can come between the check and the entry: they follow one another.
        """
        with self._pond.space.read() as tx:
            maps_entered = maps_of_load(tx, load)
            maps_streamed = [] if stream is None else maps_of_stream(tx, stream[0])
        if not all(map(may, maps_entered)):
            raise Conflict("another load has this id", kind="load_taken", load=load, hint="draw another load id")
        if not all(map(may, maps_streamed)):
            raise Conflict(
                "the stream brought rows to maps that this token may not write to", kind="stream_taken",
                hint="use a token that may write to all maps of the stream, or begin with a new checkpoint",
            )  # fmt: skip

    def _find(self, parts: Sequence[str], may: Callable[[str], bool]) -> tuple[list[PartFile], int]:
        """Those that are here, in their order, and how many are known."""
        here: dict[str, PartFile] = {}
        known = 0
        for part in parts:
            folder = self._receiver.uploaded(part)
            name = self._receiver.map_of(part) if folder is None else None
            file = None if folder is None else here.get(part) or PartFile(str(folder), read_manifest(folder))
            if file is not None and may(file.manifest.map):
                here[part] = file
            elif file is None and name is not None and may(name):
                known += 1
            else:
                raise NotFound(
                    "a part of the load was not uploaded", kind="part_not_uploaded", part=part,
                    hint="upload it first; uploads that no load enters expire",
                )  # fmt: skip
        return [here[part] for part in parts if part in here], known
