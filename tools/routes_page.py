"""Writes docs/reference/routes.md from the routes and methods of a node: `make docs`. A test compares the two.

python tools/routes_page.py            prints the page
python tools/routes_page.py --write    writes docs/reference/routes.md
"""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

from grpc_health.v1.health import SERVICE_NAME

from millpond.server.console.pages import CONSOLE
from millpond.server.dialect import OWN
from millpond.server.dispatch import Route
from millpond.server.lakefs.dialect import LAKEFS
from millpond.server.lakefs.needs import PREFIX
from millpond.server.routes.table import On, RouteNeeds
from millpond.server.rpc.health import NEEDS
from millpond.server.rpc.serving import SERVICES
from millpond.server.run import Service
from millpond.server.workflows.methods import peer_methods, workflow_methods
from millpond.settings import load_settings
from millpond.sizes import size_in_words

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "routes.md"
OPENING = """\
# Routes of a node

<!-- written by `make docs` from the routes of a node -->

What each route needs, and each method of gRPC. `/docs` on a node shows parameters, bodies and responses.

* *Right*: the right that the [token](../nodes.md#access) needs, and on what. It is decided before a body is read; a map
  that only the body names is checked when it was read. On a node without tokens everybody has every right.
* *Body*: the largest body; a larger one is answered with 413 `body_too_large`.
* *Audited*: the request is a line of the audit log.

"""
_HEAD = """\
| route | right | body | class of work | audited |
|---|---|---|---|---|
"""
_VERSIONS = f"""
## Versions

Below `{PREFIX}`. The right is that of a [pair](../versions.md#over-http); on a node without tokens everybody has every
right.

"""
_CONSOLE = """
## Console

The right is that of the token with which the caller signed in; pages show what it may see.

"""

_METHODS = """
## gRPC

The methods of [Armada's API](../events.md), of [workflows](../workflows.md), of the nodes among themselves, and health.
A worker polls by a stream of messages; a watcher sends one, and many answer it.

* *The queue*: all its streams; to see it, any of them. *The streams shown*: the answer has what the caller may read.
* *Message*: the largest one to the node; a longer one is `INVALID_ARGUMENT` or `RESOURCE_EXHAUSTED`.

| method | right | message | class of work | audited |
|---|---|---|---|---|
"""


def routes() -> tuple[Route, ...]:
    """The routes of a node, in the order in which they are declared."""
    with TemporaryDirectory() as folder:
        settings = load_settings(server_data=folder, server_port=0, server_grpc_port="off")
        with Service(settings) as service:
            found: tuple[Route, ...] = service.app.state.routes
            return found


def page() -> str:
    """The page."""
    parts = ((OPENING, OWN), (_VERSIONS, LAKEFS), (_CONSOLE, CONSOLE))
    shown = routes()
    tables = ("".join(_row(route) for route in shown if route.dialect is dialect) for _, dialect in parts)
    over_http = (words + _HEAD + table for (words, _), table in zip(parts, tables, strict=True))
    return "".join((*over_http, _METHODS, *(_line(name, needs) for name, needs in methods().items())))


def methods() -> dict[str, RouteNeeds]:
    """The methods of gRPC, and what they need."""
    nothing = cast("Any", None)  # what the methods are about
    rows = {**SERVICES, **{made.name: made.rows for made in (workflow_methods(nothing), peer_methods(nothing))}}
    found = {f"{service}/{name}": row.needs for service, methods in rows.items() for name, row in methods.items()}
    return found | {f"{SERVICE_NAME}/{name}": needs for name, needs in NEEDS.items()}


def _row(route: Route) -> str:
    return _line(f"{route.method} {route.path.replace(':path}', '}')}", route.needs)


def _line(name: str, needs: RouteNeeds) -> str:
    cells = (_right(needs), _body(needs.body_bytes_max), needs.work.value, "yes" if needs.audited else "")
    return f"| `{name}` | {' | '.join(cells)} |\n"


def _body(bytes_max: int | None) -> str:
    if bytes_max is None:
        return "to the disk"
    return size_in_words(bytes_max) if bytes_max else "none"


def _right(needs: RouteNeeds) -> str:
    if needs.right is None:
        return "none" if needs.on is On.NOTHING else needs.on.value
    return f"{needs.right} on {'`*`' if needs.on is On.POND else needs.on.value.replace('*', '`*`')}"


if __name__ == "__main__":
    if "--write" in sys.argv:
        PAGE.write_text(page(), encoding="utf-8")
    else:
        sys.stdout.write(page())
