"""Publishing: rows that name an index are written only while its files are safe from a collection of garbage.

Files are named by content, so whoever builds an index may find a range in its place and not write it: one that no row
names, and that a collection is about to delete. So collections are counted, and each deletes in a short phase:

    builder      reads the count ─ builds ─ swap: is the count the same, and no collection deleting? ─ published
    collection   …finds garbage… ─ count + 1, deleting ─ looks again, deletes ─ over

Invariants:
* Nothing is published while a collection deletes, nor after one that deleted during the build: then the builder looks
  whether its files are there.
* A collection that died is over when its lease is.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from millpond.errors import Conflict, Unavailable
from millpond.json_forms import FormError, JsonForm
from millpond.ranges import index_name, range_name
from millpond.versions.keyspaces import COLLECTION

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from millpond.kernel.space import ReadTransaction, Transaction
    from millpond.versions.site import Site

__all__ = (
    "COLLECTING_MS_MAX",
    "Collected",
    "begin_collecting",
    "check_published",
    "check_there",
    "collections",
    "end_collecting",
    "publish",
)

COLLECTING_MS_MAX = 60_000
LOOK_SECONDS = 0.02
TRIES_MAX = 1_000


@dataclass(frozen=True, slots=True)
class _Count:
    count: int = 0
    deleting_until_ms: int = 0


_FORM = JsonForm(_Count)


class Collected(Unavailable):
    """A collection deleted meanwhile; it stays between a publication and its builder."""

    kind = "ranges_collected"


def _read(tx: ReadTransaction, uid: str) -> _Count:
    row = tx.get(COLLECTION.pack(uid))
    try:
        return _Count() if row is None else _FORM.decode(row)
    except FormError:
        return _Count()


def collections(site: Site) -> int:
    """The number of collections so far: read it before building."""
    with site.space.read() as tx:
        return _read(tx, site.uid).count


def check_published(site: Site, tx: ReadTransaction, count: int) -> None:
    """Refuse to publish what was built since the collections numbered `count`.

    Raises: `Collected`.
    """
    found = _read(tx, site.uid)
    if found.count != count or site.clock.now_ms() < found.deleting_until_ms:
        raise Collected("garbage was collected meanwhile", hint="try again")


def publish(site: Site, indexes: Iterable[str], count: int, change: Callable[[Transaction], object]) -> object:
    """Make the write that names indexes which were built since `count`.

    Raises: `Collected` when a collection deleted a file of theirs: build again; what the write raises.
    """
    names = tuple(indexes)

    def act(tx: Transaction) -> object:
        check_published(site, tx, count)
        return change(tx)

    never = threading.Event()
    for _ in range(TRIES_MAX):
        try:
            return site.space.write(act)
        except Collected:
            site.clock.wait(never, site.clock.monotonic() + LOOK_SECONDS)
            count = collections(site)
            check_there(site, names)
    raise Collected("garbage is being collected for too long", hint="try again")


def check_there(site: Site, indexes: Sequence[str]) -> None:
    """Refuse indexes whose files were collected.

    Raises: `Collected`.
    """
    for id_ in indexes:
        names = [index_name(id_), *(range_name(entry.id) for entry in site.index(id_).entries)]
        for name in names:
            if not site.ranges.exists(name):
                raise Collected("a range was collected before it was published", object=name, hint="try again")


def begin_collecting(site: Site) -> int:
    """Begin to delete; the time, in milliseconds, by which it must end.

    Raises: `Conflict` when another collection deletes.
    """
    now = site.clock.now_ms()

    def begin(tx: Transaction) -> int:
        found = _read(tx, site.uid)
        if now < found.deleting_until_ms <= now + COLLECTING_MS_MAX:
            raise Conflict("garbage is being collected", kind="collection_running", hint="wait until it is over")
        tx.put(COLLECTION.pack(site.uid), _FORM.encode(_Count(found.count + 1, now + COLLECTING_MS_MAX)))
        return now + COLLECTING_MS_MAX

    return site.space.write(begin)


def end_collecting(site: Site) -> None:
    """Let others publish again."""
    site.space.write(lambda tx: tx.put(COLLECTION.pack(site.uid), _FORM.encode(_Count(_read(tx, site.uid).count))))
