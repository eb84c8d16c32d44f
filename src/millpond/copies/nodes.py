"""A pond on nodes, copied to a new folder: a backup of it is taken beside the folder, and restored there.

    node ─▶ <folder>.copying, a place of backups ─▶ <folder>

The place stays until the copy is whole: one that was cut short is gone on with, and only what is missing comes.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from millpond.client.connections import node_urls
from millpond.client.location import FolderLocation
from millpond.client.transport import Connection
from millpond.clock import Clock
from millpond.errors import Invalid
from millpond.nodes.backups.create import BackupReport, create_backup
from millpond.nodes.backups.restore import restore_backup
from millpond.nodes.replication.peer import Peer
from millpond.settings import load_settings
from millpond.stores.files import remove_tree
from millpond.stores.objects import FolderObjects

__all__ = ("copy_node",)


def copy_node(
    urls: str, folder: Path, clock: Clock, advance: Callable[[int], object]
) -> tuple[tuple[str, ...], BackupReport]:  # fmt: skip
    """Copy the pond of the first of these nodes; its maps, and what was fetched.

    Raises: `Invalid`, kind `copy_unsupported`, for a part that lies elsewhere than on the node, and kind `copy_place`
    for a folder that holds something; as `create_backup`, `restore_backup`.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise Invalid("a pond on nodes is copied to a new folder", kind="copy_place", pond=folder,
                      hint="name a folder that does not exist")  # fmt: skip
    beside = folder.with_name(f"{folder.name}.copying")
    scratch, place = beside / "scratch", FolderObjects(str(beside / "backup"), 0o700)
    remove_tree(scratch)
    scratch.mkdir(0o700, parents=True)
    source = Peer(Connection(node_urls(urls)[0], load_settings()))
    report = create_backup(source, place, scratch, clock, advance=advance)
    backup = report.backup
    assert backup is not None
    if backup.left_out:
        raise Invalid("a part of the pond is not copied", kind="copy_unsupported", part=", ".join(backup.left_out),
                      pond=urls, hint="copy maps by name, from the folder of a node")  # fmt: skip
    restore_backup(place, backup, folder, clock)
    remove_tree(beside)
    with FolderLocation(folder).open_existing() as pond:
        return tuple(sorted(map_.name for map_ in pond.maps())), report
