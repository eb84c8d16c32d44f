"""Spaces in buckets of a server, and what is in them, for suites that go round the API."""

from __future__ import annotations

from itertools import count

from millpond.clock import SystemClock
from millpond.json_forms import parse_object, to_json
from millpond.stores.bucket_space.batch_log import LogObjects, batch_name
from millpond.stores.bucket_space.forms import NO_CHAIN, Batch, Trimmed, decode_batch
from millpond.stores.bucket_space.space import BucketSpace
from millpond.stores.objects import open_objects
from tests.s3_server import S3Server

__all__ = ("look_into", "new_location", "open_at", "put_into")

_NUMBERS = count(1)


def new_location(server: S3Server) -> str:
    """A place for a space in a fresh bucket, with what is needed to reach it, as text."""
    url = server.make_bucket(f"space-{SystemClock().random_id()}-{next(_NUMBERS)}")
    return to_json({"where": f"{url}/pond/space", **server.config()}).decode()


def open_at(location: str, *, max_staleness: float = 0) -> BucketSpace:
    """The space at a place of `new_location`, or in a folder."""
    about = parse_object(location) if location.startswith("{") else {"where": location}
    return BucketSpace(open_objects(about.pop("where"), **about), SystemClock(), max_staleness=max_staleness)


def _batches(objects: LogObjects) -> list[tuple[Batch, bytes]]:
    batches = []
    for number, named in enumerate(list(objects.list("log")), 1):
        found = decode_batch(number, objects.get(batch_name(number)).to_pybytes(), named.name, objects.where)
        assert not isinstance(found, Trimmed)
        batches.append(found)
    return batches


def look_into(objects: LogObjects, key: bytes) -> bytes | None:
    """The value at a key, from the objects of a space that was never trimmed."""
    values = [value for batch, _ in _batches(objects) for changed, value in batch.changes if changed == key]
    return values[-1] if values else None


def put_into(objects: LogObjects, key: bytes, value: bytes) -> None:
    """Put a batch with one row behind the last."""
    batches = _batches(objects)
    chain = batches[-1][1] if batches else NO_CHAIN
    batch = Batch(len(batches) + 1, 0, bytes(16), chain, ((key, value),))
    objects.swap(batch_name(batch.number), batch.encode(), None)
