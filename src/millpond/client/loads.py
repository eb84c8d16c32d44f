"""Loading into maps that lie on nodes: parts are sealed here, in a folder of their own, and go to every node.

Invariants:
* What was written here is removed when the load ends, well or not.
* Nothing is entered before every node has all of it, see `uploads.py`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any

from millpond.argument_types import need_list, need_type
from millpond.client.transport import Nodes
from millpond.client.upload import Advance, bring_load, confirming, enter_load, upload_parts
from millpond.clock import Clock
from millpond.maps.inputs.formats.files import find_files
from millpond.maps.inputs.formats.readers import Reading, read_piece
from millpond.maps.inputs.mapping import ColumnMapping, mapping_of
from millpond.maps.inputs.missing_fields import with_fields
from millpond.maps.inputs.zones import time_form
from millpond.maps.loads.layered_load import parts_of
from millpond.maps.loads.load import LoadResult, seal_data
from millpond.maps.loads.load_files import Intake, name_of, seal_files, with_file_fields
from millpond.maps.log.deduplication import check_stream
from millpond.maps.parts.part import PartFile
from millpond.stores.files import remove_tree

if TYPE_CHECKING:
    from millpond.maps.loads import load_files as file_loads
    from millpond.maps.model.definition import MapDefinition
    from millpond.settings import Settings

__all__ = ("RemoteLoading", "sealing_folder")


@contextmanager
def sealing_folder() -> Iterator[Path]:
    """A fresh folder on this machine, gone afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="millpond-"))
    try:
        yield folder
    finally:
        remove_tree(folder)


@dataclass(frozen=True)
class RemoteLoading:
    """The parts of a client that loading needs. `changed` receives the names of the maps that a load reached; `alter`
    changes a map. `at` names the branch, of loads on one.
    """

    nodes: Nodes
    settings: Settings
    clock: Clock
    changed: Callable[..., None]
    alter: Callable[..., MapDefinition]
    at: Mapping[str, str] = field(default_factory=dict)

    def commit(
        self, parts: Sequence[PartFile], *, source: str = "", rejected: int = 0, load_id: str | None = None,
        stream: tuple[str, int] | None = None, wait: bool | None = None, advance: Advance | None = None,
        again: bool = False, commit: bool = True,
    ) -> LoadResult:  # fmt: skip
        """Bring parts to every node and enter them as one load, or not at all.

        `wait`: until they are merged everywhere; by default as the setting `synchronise` says. `again` and `commit` are
        for loads on a branch.

        Raises: as `upload_parts` and `enter_load`.
        """
        need_list("parts", parts, PartFile)
        need_type("source", source, str)
        need_type("load_id", load_id, str, NoneType)
        check_stream(stream)
        began = self.clock.monotonic()
        load = load_id or self.clock.random_id()
        options = {"commit": commit, "again": again, "drawn": load_id is None} if self.at else {}
        at = {**self.at, **{name: str(value).lower() for name, value in options.items()}}
        if not parts:
            return LoadResult(
                load=load, rows=0, rejected=rejected, parts=0, duplicate_parts=0, maps={}, seconds=0.0
            )  # fmt: skip
        with confirming(load):
            answer = bring_load(
                self.nodes, parts, load_id=load, source=source, rejected=rejected, stream=stream, advance=advance,
                at=at,
            )  # fmt: skip
        if answer is None:
            upload_parts(self.nodes, parts, advance=advance, at=at)
        result = enter_load(
            self.nodes, parts, load_id=load, clock=self.clock, source=source, rejected=rejected, stream=stream,
            synchronise=self.settings.client.synchronise if wait is None else wait, answer=answer,
            at=at,
        )  # fmt: skip
        self.changed(*result.maps)
        return replace(result, seconds=self.clock.monotonic() - began)

    def void(self, load: str) -> LoadResult:
        """Take a load id, so that nothing is entered under it any more; the result of what was entered before.

        Raises: as `enter_load`.
        """
        return enter_load(self.nodes, (), load_id=load, clock=self.clock, void=True)

    def load_data(
        self, definition: MapDefinition, data: Any, *, columns: ColumnMapping | Mapping[str, Any] | None = None,
        max_rejects: int = 0, rejects: str | Path | None = None, zone: str | None = None,
        time_unit: str | None = None, source: str = "", again: bool = False, load_id: str | None = None,
        commit: bool = True,
    ) -> LoadResult:  # fmt: skip
        """Load rows of any form into one map, see `Map.load`."""
        began, mapping = self.clock.monotonic(), mapping_of(columns)
        data, definition = with_fields(
            data, definition, mapping, lambda missing: self.alter(definition.name, {"add": missing})
        )
        with sealing_folder() as folder:
            parts, rejected = seal_data(
                definition, data, folder / "parts", columns=mapping, max_rejects=max_rejects, rejects=rejects,
                times=time_form(zone, time_unit), source=source, salt=self._salt(again),
            )  # fmt: skip
            result = self.commit(parts, source=source, rejected=rejected, load_id=load_id, again=again, commit=commit)
        return replace(result, seconds=self.clock.monotonic() - began)

    def load_files(
        self, reading: Reading, targets: Sequence[str | Path], *, written: str | None = None, max_rejects: int = 0,
        rejects: str | Path | None = None, source: str = "", again: bool = False,
        advance: file_loads.Advance | None = None, sent: Advance | None = None, load_id: str | None = None,
        commit: bool = True, read: file_loads.ReadPiece = read_piece,
    ) -> LoadResult:  # fmt: skip
        """Load files, see `Pond.load_files`; `sent` is called with the bytes that are uploaded."""
        began = self.clock.monotonic()
        files = find_files(targets, written)
        source, reading = source or name_of(files), with_file_fields(reading, files, self.alter)
        with sealing_folder() as folder:
            intake = Intake(folder / "parts", source=source, salt=self._salt(again))
            sealed = seal_files(
                files, reading, intake, max_rejects=max_rejects, rejects=rejects, advance=advance, read=read
            )  # fmt: skip
            result = self.commit(
                parts_of(sealed.parts),
                source=source,
                rejected=sealed.rejected,
                load_id=load_id,
                advance=sent,
                again=again,
                commit=commit,
            )
        return replace(result, seconds=self.clock.monotonic() - began, empty=sealed.empty)

    def _salt(self, again: bool) -> str:
        return self.clock.random_id() if again else ""
