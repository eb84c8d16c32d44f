"""URLs of Redis: `redis://user@host:6379/0#name`, `rediss://…` with TLS, several hosts of a cluster with commas."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlsplit

from redis.connection import parse_url

from millpond.errors import Invalid

__all__ = ("Address", "Location", "parse_location")

_PORT = 6379
_HINT = "such as redis://host:6379/0#place, or redis://host1,host2,host3 for a cluster"


class Address(NamedTuple):
    """A server."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Location:
    """A URL in parts. `shown` is the URL without its password.

    `replicas`: how many replicas must have an append before it is acknowledged.
    """

    shown: str
    name: str
    seeds: tuple[Address, ...]
    options: Mapping[str, Any]
    replicas: int = 0


def parse_location(url: str, password: str | None = None) -> Location:
    """The parts of a URL; a password that it does not have may come beside it.

    Raises:
        Invalid: this is no URL of Redis.
    """
    location, _, fragment = url.partition("#")
    try:
        netloc = re.split("[/?]", location.partition("://")[2], maxsplit=1)[0]
        user, _, hosts = netloc.rpartition("@")
        seeds = tuple(_seed(host) for host in hosts.split(","))
        first = hosts.split(",")[0]
        # Newer releases of Python refuse to split a URL with an address in brackets behind another host.
        parts = urlsplit(location.replace(netloc, f"{user}@{first}" if user else first, 1))
        query = dict(parse_qsl(parts.query, strict_parsing=bool(parts.query)))
        replicas = int(query.pop("replicas", "0"))
        options = dict(parse_url(parts.geturl()))
    except (ValueError, TypeError) as error:
        raise _no_url() from error
    if parts.scheme not in ("redis", "rediss") or replicas < 0 or not all(name.startswith("ssl_") for name in query):
        raise _no_url()
    if not fragment:
        raise Invalid(
            "the URL of Redis does not name the place of the pond's streams", kind="redis_url",
            hint="give each pond a name of its own, after a #: redis://host:6379/0#flights",
        )  # fmt: skip
    for name in ("host", "port", "replicas"):
        options.pop(name, None)
    if password is not None and "password" not in options:
        options["password"] = password
    shown_user = user.partition(":")[0]
    waits = f"?replicas={replicas}" if replicas else ""
    shown = f"{parts.scheme}://{shown_user + '@' if shown_user else ''}{hosts}{parts.path}{waits}#{fragment}"
    return Location(shown, fragment, seeds, options, replicas)


def _seed(host: str) -> Address:
    parts = urlsplit(f"//{host}")
    if not parts.hostname:
        raise _no_url()
    return Address(parts.hostname, parts.port or _PORT)


def _no_url() -> Invalid:
    return Invalid("this is no URL of Redis", kind="redis_url", hint=_HINT)
