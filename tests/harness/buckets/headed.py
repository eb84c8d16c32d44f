"""Ponds in buckets whose rows lie in PostgreSQL, for suites that open one or go round the API."""

from __future__ import annotations

from millpond.clock import SystemClock
from millpond.json_forms import parse_object, to_json
from millpond.stores.bucket_space.space import BucketSpace
from millpond.stores.objects import open_objects
from millpond.stores.postgres.head import Home, claim, open_head
from tests.postgres_server import server

__all__ = ("new_location", "open_at")


def new_location(folder: str) -> str:
    """A place for a space in a fresh database, beside a folder for what the bucket has; as text."""
    home = claim(server().url(), folder, SystemClock().random_id())
    return to_json({"home": {"id": home.id, "bucket": home.bucket, "home": home.home}, "url": server().url()}).decode()


def open_at(location: str, *, max_staleness: float = 0) -> BucketSpace:
    """The space at a place of `new_location`."""
    about = parse_object(location)
    home, bucket = Home(**about["home"]), open_objects(about["home"]["bucket"])
    return open_head(home, about["url"], bucket, SystemClock(), max_staleness=max_staleness,
                     before_writing=lambda: None)  # fmt: skip
