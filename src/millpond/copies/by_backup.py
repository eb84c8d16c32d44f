"""A pond copied by a backup of it: whole, with what no other copy brings, into a new folder.

    source ─▶ <beside>/backup, a place of backups ─▶ <beside>/pond ─▶ the folder

Shards go this way only, and all that a node has. What `<beside>/pond` holds may be copied on.

Invariants:
* The backup stays until the copy is whole: one that was cut short is gone on with, and only what is missing comes.
* The folder gets its name last, marked as a copy: one that bears the mark while `<beside>` is there is whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from millpond.client.location import FolderLocation
from millpond.clock import Clock
from millpond.copies.rows import is_copy_of, mark_copied
from millpond.copies.selection import Selection
from millpond.errors import Invalid, Unavailable
from millpond.kernel.steps import step
from millpond.maps.loads.pond_folder import holds_something
from millpond.nodes.backups.create import BackupReport, create_backup
from millpond.nodes.backups.lease import end_lease
from millpond.nodes.backups.restore import restore_backup
from millpond.nodes.replication.source import BackupSource
from millpond.stores.files import make_folder, move, remove_tree
from millpond.stores.locks import alone
from millpond.stores.objects import FolderObjects

__all__ = ("copy_to_new_folder", "restored", "takes_backup")

_WHOLE = Selection((), without_runs=False)


def takes_backup(folder: Path) -> bool:
    """True for a new folder, and for one whose copy was cut short."""
    return _beside(folder).exists() or not holds_something(folder)


def copy_to_new_folder(
    source: BackupSource, folder: Path, clock: Clock, advance: Callable[[int], object]
) -> BackupReport:  # fmt: skip
    """Copy a pond; what was fetched. What is there of a copy that was cut short is gone on with.

    Raises: `Invalid`, kind `copy_place`, for a folder that holds something; as `restored`.
    """
    beside = _beside(folder)
    if holds_something(folder):
        _check_whole(folder, str(source.node()["pond"]))
        remove_tree(beside)
        return BackupReport()
    with restored(source, beside, _WHOLE, clock, advance) as (pond, report):
        if folder.exists():
            folder.rmdir()
        move(pond, folder)
        step("copy.folder_named")
    return report


def _beside(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.copying")


def _check_whole(folder: Path, pond_id: str) -> None:
    """Refuse a folder, unless it is the copy that was to come."""
    if (folder / "pond.json").is_file():
        with FolderLocation(folder).open_existing() as pond, pond.space.read() as tx:
            if is_copy_of(tx, pond_id.encode()):
                return
    raise Invalid("the folder of a copy that was cut short holds something else", kind="copy_place", pond=folder,
                  hint=f"name another folder, or remove {_beside(folder).name}, which is beside it")  # fmt: skip


@contextmanager
def restored(
    source: BackupSource, beside: Path, selection: Selection, clock: Clock, advance: Callable[[int], object]
) -> Iterator[tuple[Path, BackupReport]]:  # fmt: skip
    """A folder below `beside` with a copy of the pond, while the block runs; when it ends well, `beside` is removed.

    Raises: `Invalid`, kind `copy_unsupported`, for a part that lies elsewhere; `Unavailable`, kind `copy_busy`; as
    `create_backup`, `restore_backup`.
    """
    selection.refuse_parts(source.node().get("not_backed_up", ()), source.url)
    make_folder(beside, 0o700)
    busy = Unavailable("another process copies this pond to there", kind="copy_busy", pond=source.url, folder=beside,
                       hint="wait until it is done")  # fmt: skip
    with alone(beside / "copying.lock", 0, busy):
        scratch, folder, place = beside / "scratch", beside / "pond", FolderObjects(str(beside / "backup"))
        for left in (scratch, folder):
            remove_tree(left)
        scratch.mkdir()
        end_lease(place)  # of a copy that was killed
        report = create_backup(source, place, scratch, clock, advance=advance)
        assert report.backup is not None
        selection.refuse_parts(report.backup.left_out, source.url)  # a node of an earlier release says it no sooner
        restore_backup(place, report.backup, folder, clock)
        with FolderLocation(folder).open_existing() as pond:
            pond.space.write(mark_copied)
        yield folder, report
        remove_tree(beside)
