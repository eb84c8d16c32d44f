"""`millpond init` and `version`."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed
from typing import Annotated, Any

import typer

from millpond.cli.options import PondLocation
from millpond.cli.terminal import console
from millpond.cli.verbs import verb
from millpond.client.location import BucketLocation, NodesLocation, parse_location
from millpond.errors import Invalid, NotFound

__all__ = ("init", "version")


@verb(
    "init", "millpond init", "millpond init data/pond", "millpond init s3://bucket/pond",
    "millpond init s3://bucket/pond --space postgresql://user@server:5432/database",
)  # fmt: skip
def init(
    address: Annotated[
        str | None, typer.Argument(metavar="[FOLDER|s3://BUCKET/PREFIX]", help="The folder, or the bucket.")
    ] = None,
    pond: PondLocation = "pond",
    space: Annotated[
        str,
        typer.Option("--space", metavar="URL", help="The database of a bucket's rows.", show_default="the bucket"),
    ] = "",
) -> console.Shown:
    """Make a pond. An existing pond is left as it is; but rows in a database are moved to another --space."""
    import millpond

    address = address or pond
    location = parse_location(address)
    if isinstance(location, NodesLocation):
        raise Invalid(
            "a node makes its own pond", kind="pond_folder", pond=address, hint="millpond serve --data FOLDER"
        )
    if space and not isinstance(location, BucketLocation):
        raise Invalid("only a pond in a bucket has its rows elsewhere", kind="head_other", pond=address, space=space,
                      hint="name a bucket, or leave --space out")  # fmt: skip
    settings: dict[str, Any] = {"space": space} if space else {}
    moved = isinstance(location, BucketLocation) and bool(space) and location.move_head(space)
    try:
        opened: Any = location.open_existing(**settings)
        is_new = False
    except NotFound as error:
        if error.kind != "pond_not_found":
            raise
        opened, is_new = millpond.open(address, **settings), True
    opened.close()
    text = f"made a pond in {address}" if is_new else f"there is a pond in {address} already; nothing was changed"
    text = f"the rows of the pond in {address} were moved" if moved else text
    return console.said({"pond": address, "made": is_new, "moved": moved}, text)


@verb("version", "millpond version", "millpond version --json")
def version() -> console.Shown:
    """Print the version."""
    import lmdb
    import pyarrow

    versions = {
        "millpond": installed("millpond"),
        "lmdb": ".".join(str(piece) for piece in lmdb.version()),
        "pyarrow": pyarrow.__version__,
        "pyspark": _pyspark_version(),
    }
    return console.facts(versions)


def _pyspark_version() -> str | None:
    try:
        return installed("pyspark")
    except PackageNotFoundError:
        return None
