"""The commit of uploaded parts as loads: one load after another, at the primary."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from millpond.errors import NotFound
from millpond.maps.loads.load import LoadResult
from millpond.maps.log.remembered import remembered
from millpond.maps.parts.part import PartFile, read_manifest
from millpond.nodes.uploads.receiver import Receiver
from millpond.pond import Pond

__all__ = ("LoadCommit",)


class LoadCommit:
    """Enters loads of parts that are here."""

    def __init__(self, pond: Pond, receiver: Receiver) -> None:
        self._pond, self._receiver = pond, receiver
        # Two loads of the same data bring the same parts: the first takes them, the second finds them known.
        self._alone = threading.Lock()

    def enter(
        self, load: str, parts: Sequence[str], *, source: str, rejected: int, stream: tuple[str, int] | None,
        allowed: Callable[[str], None],
    ) -> LoadResult:  # fmt: skip
        """Enter a load; `allowed` raises for maps the caller may not write to. The result of an earlier entry is
        returned again.

        Raises: `NotFound`, kind `part_not_uploaded`, for a part that is neither here nor known; as `Pond.commit_load`.
        """
        with self._alone:
            here, known = self._find(parts, allowed)
            with self._pond.space.read() as tx:
                entered = remembered(tx, load, stream) is not None
            result = self._pond.commit_load(
                here, source=source, rejected=rejected, load_id=load, stream=stream, wait=False
            )
        return result if entered else replace(result, duplicate_parts=result.duplicate_parts + known)

    def _find(self, parts: Sequence[str], allowed: Callable[[str], None]) -> tuple[list[PartFile], int]:
        """Those that are here, in their order, and how many are known."""
        here: dict[str, PartFile] = {}
        known = 0
        for part in parts:
            folder = self._receiver.uploaded(part)
            name = self._receiver.map_of(part) if folder is None else None
            if folder is not None:
                here[part] = here.get(part) or _part_file(folder, allowed)
            elif name is not None:
                allowed(name)
                known += 1
            else:
                raise NotFound(
                    "a part of the load was not uploaded", kind="part_not_uploaded", part=part,
                    hint="upload it first; uploads that no load enters expire",
                )  # fmt: skip
        return [here[part] for part in parts if part in here], known


def _part_file(folder: Path, allowed: Callable[[str], None]) -> PartFile:
    manifest = read_manifest(folder)
    allowed(manifest.map)
    return PartFile(str(folder), manifest)
