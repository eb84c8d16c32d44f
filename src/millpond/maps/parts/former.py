"""Parts as earlier versions kept them: each a folder of three files, and of a quarantined one with its reason.

Invariant: whatever a crash leaves, either the folder has all its files, or what was made of it is whole on the disk.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from millpond.kernel.steps import step
from millpond.maps.parts.tail import Tail
from millpond.stores.files import move, remove_tree, whole_file

__all__ = ("join_pieces",)


def join_pieces(pond: Path) -> None:
    """Make files of the parts in the folder of a pond; one whose pieces are not all there is missing then.

    Raises: `Unavailable` when the disk is full.
    """
    for parent in (pond / "parts", pond / "quarantine"):
        for folder in [place for place in parent.glob("[!.]*") if place.is_dir()]:
            pieces = [folder / name for name in ("data.mdb", "touched.arrow", "manifest.json")]
            if all(piece.is_file() for piece in pieces):
                with whole_file(Path(f"{folder}.joined")) as joined:
                    for piece in pieces:
                        with piece.open("rb") as source:
                            shutil.copyfileobj(source, joined)
                    joined.write(Tail(*(piece.stat().st_size for piece in pieces)).pack())
            if (reason := folder / "reason.json").exists():
                move(reason, Path(f"{folder}.json"))
            step("pond.part_joined")
            remove_tree(folder)
        for file in parent.glob("*.joined"):
            move(file, file.with_suffix(""))
    remove_tree(pond / "fetched")  # it is fetched again
