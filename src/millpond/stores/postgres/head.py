"""PostgreSQL as the head of a pond in a bucket: the log of its space is in a database, all else in the bucket.

    pond.json         in the bucket: {"space": "postgresql://user@server/database#name", "id": …}, without a password
    space/witness     in the bucket: {"batch": 7, "chain": …}, the database had come so far
    "pond"            in the database: {"id", "bucket", "home"}: the pond, its bucket, and the address of this database

Both sides name each other, and every transaction reads the row as it begins. A database that was set back, or a copy of
it that went on by itself, does not have the batch of the witness.

    move    the old row names the new home, so that nothing is written there any more ─▶ rows are copied
            ─▶ the new row, then pond.json, name the new home. Whoever dies leaves a pond that only a move can open: to
            the same database, or, while pond.json names the old one, to any other.

Invariants:
* no transaction is committed in a database that is emptied, another pond's, or not the home of the pond any more;
* a process that writes leaves a witness with its first batch, then once in `WITNESS_SECONDS`, and when it closes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice

from psycopg import ProgrammingError
from psycopg.conninfo import conninfo_to_dict

from millpond.clock import Clock
from millpond.error_values import without_password
from millpond.errors import Conflict, Corrupt, Fenced, Invalid, MillpondError, NotFound
from millpond.json_forms import JsonForm
from millpond.kernel.keys import EVERYTHING
from millpond.kernel.schedule import Recurring
from millpond.kernel.space import Transaction
from millpond.kernel.steps import step
from millpond.stores.bucket_space.batch_log import batch_name
from millpond.stores.bucket_space.forms import CHAIN_BYTES, Trimmed
from millpond.stores.bucket_space.space import UNWATCHED, BucketSpace, Watched
from millpond.stores.objects import ObjectStore
from millpond.stores.postgres.batches import DatabaseLog, DatabaseObjects, set_back
from millpond.stores.postgres.space import Guard, PostgresSpace

__all__ = (
    "CHECKPOINT_BATCHES", "FOLLOWER_MS", "WITNESS_SECONDS", "Home", "claim", "full_address", "move", "open_head",
    "same_database",
)  # fmt: skip

WITNESS_SECONDS = 10.0
"""So much of what was acknowledged may be missing from a database that was set back, without being noticed."""
CHECKPOINT_BATCHES, FOLLOWER_MS = 512, 60_000
"""As of a bucket, for many more batches a second: rows are read, and go, at less cost than objects."""
_HOME, _WITNESS_NAME = b"pond", "space/witness"
_COPIED_ROWS, _COPIED_BYTES = 5_000, 8 << 20
_ADDRESS_OPTIONS = ("host", "hostaddr", "port", "dbname", "service")
_URL_HINT = "such as postgresql://user@server:5432/database"


@dataclass(frozen=True, slots=True)
class Home:
    """The row of the database; an empty home says that rows are still being copied there."""

    id: str
    bucket: str
    home: str


@dataclass(frozen=True, slots=True)
class _Witness:
    """The object in the bucket: a number of the log, and the chain of its batch."""

    batch: int
    chain: str


_ROW, _WITNESS = JsonForm(Home, format=1), JsonForm(_Witness, format=1)


def open_head(
    home: Home, stated: str, bucket: ObjectStore, clock: Clock, *, max_staleness: float,
    before_writing: Callable[[], None], watched: Watched = UNWATCHED,
) -> BucketSpace:  # fmt: skip
    """The space of a pond in a bucket whose log is at home in a database; `stated` is the same address, with what is
    not written down.

    Raises: `Corrupt`, kinds `head_missing` and `head_behind`; `Invalid`, kind `head_other`; `Fenced`, kind
    `head_moved`; `Unavailable` when the database cannot be reached.
    """
    if stated and not same_database(stated, home.home):
        raise Invalid(
            "the rows of the pond lie in another database", kind="head_other", pond=home.bucket, space=home.home,
            stated=without_password(stated),
            hint=f"leave space out; or move them: millpond init {home.bucket} --space …",
        )  # fmt: skip
    url = full_address(stated, _name(home.home)) if stated else home.home
    database = PostgresSpace(url, guard=Guard(_HOME, partial(_check, home, _ROW.encode(home))))
    try:
        witnesses = _Witnesses(bucket, clock)
        objects = DatabaseObjects(database, home.home, witnesses.landed)
        log = DatabaseLog(objects, clock)
        witnesses.log = log
        witnesses.check()
        return BucketSpace(
            objects, clock, max_staleness=max_staleness, checkpoint_batches=CHECKPOINT_BATCHES,
            follower_ms=FOLLOWER_MS, before_writing=before_writing, log=log,
            turn=database.turn, on_close=(witnesses.close, database.close), watched=watched,
        )  # fmt: skip
    except BaseException:
        database.close()
        raise


class _Witnesses:
    """The witness, as this process checks and leaves it."""

    log: DatabaseLog

    def __init__(self, bucket: ObjectStore, clock: Clock) -> None:
        self._bucket, self._clock = bucket, clock
        self._times = Recurring(clock.monotonic(), WITNESS_SECONDS)
        self._last: _Witness | None = None

    def landed(self, name: str, data: bytes) -> None:
        """Leave a witness of a batch that is in the database, if it is time.

        Raises: `Corrupt`, kind `head_behind`: the batch is where it was put, and those before it are not.
        """
        self._last = _Witness(int(name.rpartition("/")[2]), data[-CHAIN_BYTES:].hex())
        if self._times.begin(self._clock.monotonic()):
            self._leave()

    def close(self) -> None:
        """Leave a witness of the last batch."""
        with suppress(MillpondError):
            self._leave()

    def check(self) -> tuple[_Witness, str | None]:
        """See that the database has come as far as the bucket knows; the witness there, and its tag.

        Raises: `Corrupt`, kinds `head_behind` and `head_damaged`.
        """
        witness, tag = self._there()
        if witness.batch:
            content = self.log.read(witness.batch)
            if content is None or (not isinstance(content, Trimmed) and content[1].hex() != witness.chain):
                raise set_back(self._bucket.where, batch_name(witness.batch))
        return witness, tag

    def _leave(self) -> None:
        last = self._last
        if last is None:
            return
        try:
            there, tag = self.check()
            step("head.witness_checked")
            if there.batch < last.batch:
                self._bucket.swap(_WITNESS_NAME, _WITNESS.encode(last), tag)
                step("head.witness_left")
            self._last = None
        except Corrupt:
            raise
        except Conflict:
            self._last = None  # another process left one
        except MillpondError:
            self._times.due = self._clock.monotonic()  # the bucket is away, which others say: with the next batch

    def _there(self) -> tuple[_Witness, str | None]:
        try:
            tagged = self._bucket.get_tagged(_WITNESS_NAME)
        except NotFound as error:
            if error.kind != "object_not_found":
                raise
            return _Witness(0, ""), None
        return _WITNESS.stored(
            tagged.data.to_pybytes(), "the witness of the pond's database cannot be read", kind="head_damaged",
            object=_WITNESS_NAME, where=self._bucket.where,
            hint="remove the object when you are sure that the database is the newest",
        ), tagged.tag  # fmt: skip


# -- the row of the database --------------------------------------------------------------------------


def _check(expected: Home, encoded: bytes, row: bytes | None) -> None:
    if row == encoded:
        return
    values = {"pond": expected.bucket, "space": expected.home}
    if row is None:
        raise Corrupt(
            "the database does not have the rows of this pond", kind="head_missing", **values,
            hint="restore the database from its newest copy: without them nobody can tell what the bucket holds",
        )  # fmt: skip
    there = _decoded(row, expected.home)
    if (there.id, there.bucket) != (expected.id, expected.bucket):
        raise Invalid(
            "the database holds the rows of another pond", kind="head_other", **values, found=there.bucket,
            hint="open that one; a second pond is made by millpond copy, not by copying objects",
        )  # fmt: skip
    raise Fenced(
        "the rows of the pond were moved to another database", kind="head_moved", **values, home=there.home,
        hint=f"open the pond again; if the move was interrupted: millpond init {expected.bucket} --space …",
    )  # fmt: skip


def _decoded(row: bytes, space: str) -> Home:
    return _ROW.stored(
        row, "the row of the pond in its database cannot be read", kind="head_damaged", space=space,
        hint="restore the database from its newest copy",
    )  # fmt: skip


# -- addresses ----------------------------------------------------------------------------------------


def full_address(url: str, name: str) -> str:
    """The address of a database, with a name for the rows of a pond behind it: by default a given one.

    >>> full_address("postgresql://db/rows", "5f1c"), full_address("postgresql://db/rows#mine", "5f1c")
    ('postgresql://db/rows#5f1c', 'postgresql://db/rows#mine')

    Raises: `Invalid`, kind `space_url`.
    """
    if not url.startswith(("postgresql://", "postgres://")):
        raise Invalid("this is no address of PostgreSQL", kind="space_url", space=without_password(url), hint=_URL_HINT)
    return url if _name(url) else f"{url.rstrip('#')}#{name}"


def same_database(url: str, other: str) -> bool:
    """True when two addresses name the same place in a database; without a name, an address has that of the other."""
    return len({_name(url), _name(other)} - {""}) <= 1 and _server(url) == _server(other)


def _server(url: str) -> tuple[object, ...]:
    try:
        options = conninfo_to_dict(url.partition("#")[0])
    except ProgrammingError as error:
        raise Invalid(
            "this is no address of PostgreSQL", kind="space_url", space=without_password(url), hint=_URL_HINT
        ) from error
    return tuple(options.get(name) for name in _ADDRESS_OPTIONS)


def _name(url: str) -> str:
    return url.partition("#")[2]


# -- making and moving --------------------------------------------------------------------------------


def claim(url: str, bucket: str, id_: str) -> Home:
    """Make a database the home of a pond that is about to be made.

    Raises: `Invalid`, kind `head_other`, when the place is taken; `Unavailable`.
    """
    claimed = Home(id_, bucket, without_password(full_address(url, id_)))

    def act(tx: Transaction) -> Home:
        keys = list(islice(tx.keys(EVERYTHING), 2))
        if keys == [_HOME]:
            there = _decoded(tx.get(_HOME) or b"", claimed.home)
            if (there.bucket, there.home) == (bucket, claimed.home):
                return there  # of one that died before it made the pond
        if keys:
            raise _taken(claimed)
        tx.put(_HOME, _ROW.encode(claimed))
        return claimed

    with closing(PostgresSpace(full_address(url, id_))) as database:
        home = database.write(act)
    step("head.claimed")
    return home


def _taken(home: Home) -> Invalid:
    return Invalid("the place in the database is taken", kind="head_other", pond=home.bucket, space=home.home,
                   hint="name another one behind #, or none")  # fmt: skip


def move(before: Home, url: str) -> Home:
    """Copy the rows of a pond to another database, and let nobody write to the old one from now on; the new home.

    `before` is what pond.json says: of several moves the one counts that changes it first.

    Raises: `Invalid`, kind `head_other`, when the new place is taken; as `open_head` for the old one.
    """
    address = full_address(url, before.id)
    after, copying = (Home(before.id, before.bucket, home) for home in (without_password(address), ""))
    with closing(PostgresSpace(before.home)) as source, closing(PostgresSpace(address)) as target:
        with target.read() as tx:
            row, empty = tx.get(_HOME), next(tx.keys(EVERYTHING), None) is None
        if not empty and row not in (_ROW.encode(copying), _ROW.encode(after)):
            raise _taken(after)
        copied = row == _ROW.encode(after)
        source.write_alone(partial(_leave_home, before, after, copied))
        step("head.fenced")
        if not copied:
            target.write(partial(_begin_copy, copying))
            with source.read() as tx:
                for rows in _batches(tx.scan(EVERYTHING)):
                    target.write(partial(_put_all, rows))
                    step("head.rows_copied")
            target.write(partial(_put_all, [(_HOME, _ROW.encode(after))]))
        step("head.copied")
    return after


def _leave_home(before: Home, after: Home, copied: bool, tx: Transaction) -> None:
    row = tx.get(_HOME)
    if copied and row != _ROW.encode(after):  # by an earlier move, which another one came after: the copy is old
        raise _taken(after)
    with suppress(Fenced):  # an earlier move was interrupted: nobody wrote where pond.json does not point
        _check(before, _ROW.encode(before), row)
    tx.put(_HOME, _ROW.encode(after))


def _begin_copy(copying: Home, tx: Transaction) -> None:
    tx.delete_range(EVERYTHING)
    tx.put(_HOME, _ROW.encode(copying))


def _put_all(rows: Sequence[tuple[bytes, bytes]], tx: Transaction) -> None:
    for key, value in rows:
        tx.put(key, value)


def _batches(rows: Iterator[tuple[bytes, bytes]]) -> Iterator[list[tuple[bytes, bytes]]]:
    """Rows but the pond's own, in lists of bounded size."""
    batch: list[tuple[bytes, bytes]] = []
    size = 0
    for key, value in rows:
        if key == _HOME:
            continue
        batch.append((key, value))
        size += len(key) + len(value)
        if len(batch) == _COPIED_ROWS or size > _COPIED_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
