"""`millpond init` and `version`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from millpond.cli.options import Json, PondFolder
from millpond.cli.terminal import console
from millpond.cli.verbs import verb

__all__ = ("init", "version")

_HERE = Path("pond")


@verb("init", "millpond init", "millpond init data/pond")
def init(
    folder: Annotated[Path | None, typer.Argument(metavar="[FOLDER]", help="The folder to make.")] = None,
    pond: PondFolder = _HERE,
    json: Json = False,
) -> None:
    """Make a pond. An existing pond is left as it is."""
    import millpond

    place = folder or pond
    made = not (place / "pond.json").is_file()
    with millpond.open(place):
        pass
    if json:
        console.print_json({"pond": str(place), "made": made})
    else:
        console.say(f"made a pond in {place}" if made else f"there is a pond in {place} already; nothing was changed")


@verb("version", "millpond version", "millpond version --json")
def version(json: Json = False) -> None:
    """Print the version."""
    from importlib.metadata import version as installed

    import lmdb
    import pyarrow

    versions = {
        "millpond": installed("millpond"),
        "lmdb": ".".join(str(piece) for piece in lmdb.version()),
        "pyarrow": pyarrow.__version__,
        "pyspark": _pyspark_version(),
    }
    if json:
        console.print_json(versions)
    else:
        console.print_facts(versions)


def _pyspark_version() -> str | None:
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed

    try:
        return installed("pyspark")
    except PackageNotFoundError:
        return None
