"""`millpond backup create|list|verify|prune` and `millpond restore`."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from millpond.cli.options import Json, PondLocation
from millpond.cli.terminal import console
from millpond.cli.verbs import verb
from millpond.client.location import FolderLocation, parse_location
from millpond.clock import SystemClock
from millpond.errors import Corrupt

if TYPE_CHECKING:
    from millpond.nodes.backups.layout import Backup
    from millpond.nodes.replication.source import BackupSource
    from millpond.settings import Settings
    from millpond.stores.objects import ObjectStore

__all__ = ("create", "listed", "prune_old", "restore", "verify")

RefPath = Annotated[str, typer.Argument(metavar="PLACE", help="s3://bucket/prefix, or a folder.", show_default=False)]
BackupName = Annotated[
    str | None, typer.Option("--backup", metavar="ID", help="The backup.", show_default="the newest")
]
Scratch = Annotated[
    Path | None,
    typer.Option("--scratch", metavar="FOLDER", help="A disk that holds the largest map once.",
                 show_default="the folder for temporary files"),
]  # fmt: skip


@verb(
    "backup create",
    "millpond backup create s3://bucket/backups --pond http://n2:7433",
    "millpond backup create /mnt/backups --full --json",
)
def create(
    location: RefPath, pond: PondLocation = "pond",
    full: Annotated[bool, typer.Option("--full", help="Copy every map anew, not only what changed.")] = False,
    scratch: Scratch = None, json: Json = False,
) -> None:  # fmt: skip
    """Back up a pond as it is now. Loads and lookups go on; the next backups bring only what changed."""
    from millpond.nodes.backups.create import create_backup

    settings, objects = _location(location)
    with (
        _source(pond, settings) as source,
        _scratch(scratch) as folder,
        console.progress("backing up", unit="bytes", quiet=json) as advance,
    ):
        report = create_backup(source, objects, folder, SystemClock(), full=full, advance=advance)
    assert report.backup is not None
    row = _row(report.backup) | {
        "files": report.files, "bytes": report.bytes, "files_reused": report.files_reused,
        "bytes_reused": report.bytes_reused,
    }  # fmt: skip
    if json:
        console.print_json(row)
        return
    for reason in report.reasons:
        console.note(f"every map was copied anew: {reason}")
    console.say(
        f"{row['backup']}: {', '.join([console.human_count(row['maps'], 'map'), *row['holds']])} "
        f"at position {row['position']:,}; "
        f"{console.human_count(report.files, 'file')} stored ({console.human_bytes(report.bytes)}), "
        f"{report.files_reused:,} there already"
    )
    _warn_of_left_out(report.backup)


@verb("backup list", "millpond backup list /mnt/backups", "millpond backup list PLACE --json")
def listed(location: RefPath) -> console.Shown:
    """Show the backups of a place, the oldest first."""
    from millpond.nodes.backups.layout import list_backups

    _, objects = _location(location)
    rows = [_row(backup) for backup in list_backups(objects)]
    return console.table(
        rows,
        ["backup", "created", "pond", "maps", "size", "from position", "to"],
        [
            [row["backup"], row["created"], row["pond"][:8], row["maps"], console.human_bytes(row["size"]),
             f"{row['first_position']:,}", f"{row['position']:,}"]
            for row in rows
        ],
        nothing="there is no backup here"
    )  # fmt: skip


@verb("backup verify", "millpond backup verify s3://bucket/backups", "millpond backup verify /mnt/backups --json")
def verify(location: RefPath, backup: BackupName = None, scratch: Scratch = None, json: Json = False) -> None:
    """Read all that a backup needs, and compare checksums. `millpond restore` checks more: it opens every map."""
    from millpond.nodes.backups.layout import find_backup
    from millpond.nodes.backups.prune import check_backup

    _, objects = _location(location)
    backup_ = find_backup(objects, backup)
    with _scratch(scratch) as folder, console.progress("verifying", unit="bytes", quiet=json) as advance:
        problems = check_backup(objects, backup_, folder, advance)
    if json:
        console.print_json({"backup": backup_.id, "problems": problems})
    elif not problems:
        console.say(f"{backup_.id} is whole")
    if problems:
        raise Corrupt(
            "the backup is damaged", kind="backup_damaged", backup=backup_.id, problems="; ".join(problems[:5]),
            hint="take a new one with --full in another place, or restore another one of the list",
        )  # fmt: skip


@verb("backup prune", "millpond backup prune /mnt/backups --keep 7")
def prune_old(
    location: RefPath,
    keep: Annotated[int, typer.Option("--keep", metavar="N", help="The newest backups of each pond to leave.")],
) -> console.Shown:
    """Remove old backups, and what only they needed."""
    from millpond.nodes.backups.prune import prune

    _, objects = _location(location)
    with _scratch(None) as folder:
        pruned = prune(objects, keep, folder, SystemClock())
    removed = console.human_count(len(pruned.backups), "backup"), console.human_count(pruned.objects, "file")
    return console.said(
        {"backups": list(pruned.backups), "objects": pruned.objects}, f"removed {' and '.join(removed)}"
    )


@verb(
    "restore",
    "millpond restore s3://bucket/backups pond",
    "millpond restore /mnt/backups pond --backup 20130208T180000.042Z-17 --position 12",
)
def restore(
    location: RefPath,
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A new folder for the pond.", show_default=False)],
    backup: BackupName = None,
    position: Annotated[
        int | None,
        typer.Option(
            "--position",
            metavar="N",
            show_default="the backup's last",
            help="Maps as of this entry of the log; repositories, events and runs are always as of the backup.",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Make a pond of a backup, in a new folder, and verify it."""
    from millpond.nodes.backups.layout import find_backup
    from millpond.nodes.backups.restore import restore_backup

    _, objects = _location(location)
    backup_ = find_backup(objects, backup)
    with console.progress("restoring", unit="entries", quiet=json) as advance:
        restored = restore_backup(objects, backup_, folder, SystemClock(), position=position, advance=advance)
    if json:
        console.print_json(
            {"backup": backup_.id, "folder": str(folder), "position": restored.position, "maps": restored.maps,
             "rows": restored.rows, "holds": _holds(backup_), "left_out": list(backup_.left_out)}
        )  # fmt: skip
    else:
        held = ", ".join(
            [console.human_count(restored.maps, "map"), console.human_count(restored.rows, "row"), *_holds(backup_)]
        )
        console.say(f"{folder}: {held}, as of position {restored.position:,}")
        _warn_of_left_out(backup_)


def _location(where: str) -> tuple[Settings, ObjectStore]:
    from millpond.client.snapshots.published import published_location
    from millpond.nodes.backups.layout import open_location
    from millpond.settings import load_settings

    settings = load_settings(said="command line", objects_place=where)
    return settings, open_location(published_location(settings).where)


def _source(pond: str, settings: Settings) -> AbstractContextManager[BackupSource]:
    """The pond as a source of backups: the first of its nodes, or a folder that no node serves."""
    from millpond.client.connections import node_urls
    from millpond.client.transport import Connection
    from millpond.nodes.replication.peer import Peer

    def of_node(urls: str) -> AbstractContextManager[BackupSource]:
        return nullcontext(Peer(Connection(node_urls(urls)[0], settings)))

    return parse_location(pond).either(_folder_source, of_node)


@contextmanager
def _folder_source(folder: Path) -> Iterator[BackupSource]:
    from millpond.nodes.backups.source import FolderSource

    with FolderLocation(folder).open_existing() as opened, closing(FolderSource(opened, SystemClock())) as source:
        yield source


@contextmanager
def _scratch(folder: Path | None) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="millpond-backup-", dir=folder) as scratch:
        yield Path(scratch)


def _row(backup: Backup) -> dict[str, Any]:
    rows = sum(shard.rows for shard in backup.shards) + sum(layers.rows for layers in backup.layers)
    size = sum(file.bytes for file in backup.files()) + sum(layers.bytes for layers in backup.layers)
    size += 0 if backup.own is None else backup.own.objects_bytes
    created = datetime.fromtimestamp(backup.created_ms // 1000, UTC).isoformat().replace("+00:00", "Z")
    maps = sum(shard.rows > 0 for shard in backup.shards) + sum(layers.rows > 0 for layers in backup.layers)
    return {
        "backup": backup.id, "created": created, "pond": backup.pond, "base": backup.base,
        "maps": maps, "rows": rows, "size": size,
        "first_position": backup.earliest, "position": backup.position, "holds": _holds(backup),
        "left_out": list(backup.left_out),
    }  # fmt: skip


def _holds(backup: Backup) -> list[str]:
    """The kinds of content beside maps."""
    return [] if backup.own is None else list(backup.own.kinds)


def _warn_of_left_out(backup: Backup) -> None:
    if backup.left_out:
        console.say(f"not in the backup: {' and '.join(backup.left_out)}. Back them up where they are")
