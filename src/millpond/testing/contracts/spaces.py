"""The contract of every driver of a space, as tests: subclass `SpaceContract` in a module that pytest collects.

A driver's suite supplies a `space` fixture, empty for each test, and two hooks that go round the API: they read
and write the driver's storage directly, so that the suite does not test the API with itself.

    class TestMine(SpaceContract):
        @pytest.fixture
        def space(self, tmp_path): ...
        def look_behind(self, space, key): ...
        def put_behind(self, space, key, value): ...
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from itertools import product, starmap
from typing import TypeVar

import pytest

from millpond.errors import Closed, Internal, Invalid, Uncertain
from millpond.kernel.keys import EVERYTHING, KeyRange, Prefix
from millpond.kernel.scans import put_rows
from millpond.kernel.space import KEY_BYTES_MAX, ReadTransaction, Space, Transaction, WouldBlock

__all__ = ("SpaceContract",)

T = TypeVar("T")

ROWS = {b"a": b"1", b"b": b"", b"b\x00": b"3", b"c\xff": b"4", b"d": b"5" * 5000}
STARTS, STOPS = (b"", b"a", b"b", b"b\x00", b"bb", b"d", b"e"), (None, b"", b"a", b"b", b"b\x00", b"c", b"d", b"e")


class SpaceContract(ABC):
    """The promises of `millpond.kernel.space`, one test each."""

    @abstractmethod
    def look_behind(self, space: Space, key: bytes) -> bytes | None:
        """The stored bytes at `key`, read behind the API's back."""

    @abstractmethod
    def put_behind(self, space: Space, key: bytes, value: bytes) -> None:
        """Store `value` at `key`, behind the API's back."""

    def losing_results(self, space: Space, *, committed: bool) -> AbstractContextManager[None] | None:
        """Lose the answers of commits meanwhile, after or before they are made; None where that cannot happen."""
        del space, committed
        return None

    # --- rows

    def test_a_committed_row_is_stored(self, space: Space) -> None:
        assert space.write(_putting({b"k": b"v"})) is None
        assert self.look_behind(space, b"k") == b"v"

    def test_a_stored_row_is_read(self, space: Space) -> None:
        self.put_behind(space, b"k", b"v")
        assert _get(space, b"k") == b"v"
        assert _scan(space) == [(b"k", b"v")]

    def test_a_row_is_overwritten(self, space: Space) -> None:
        space.write(_putting({b"k": b"long before"}))
        space.write(_putting({b"k": b"short"}))
        assert self.look_behind(space, b"k") == b"short"
        assert _scan(space) == [(b"k", b"short")]

    def test_an_absent_key_is_none_and_an_empty_value_is_not(self, space: Space) -> None:
        space.write(_putting({b"empty": b""}))
        assert _get(space, b"empty") == b""
        for absent in (b"other", b"", b"x" * (KEY_BYTES_MAX + 1)):
            assert _get(space, absent) is None

    def test_delete_says_whether_the_row_was_there(self, space: Space) -> None:
        self.put_behind(space, b"k", b"")
        assert space.write(lambda transaction: (transaction.delete(b"k"), transaction.delete(b"k"))) == (True, False)
        assert self.look_behind(space, b"k") is None
        assert space.write(lambda transaction: transaction.delete(b"")) is False

    def test_keys_up_to_the_limit_are_stored(self, space: Space) -> None:
        longest = b"\x00" * KEY_BYTES_MAX
        space.write(_putting({longest: b"long", b"\x00": b"short", b"\xff": b"high"}))
        assert [key for key, _ in _scan(space)] == [b"\x00", longest, b"\xff"]

    @pytest.mark.parametrize("key", [b"", b"x" * (KEY_BYTES_MAX + 1)], ids=["empty", "too long"])
    def test_other_keys_are_refused_and_nothing_of_the_write_stays(self, space: Space, key: bytes) -> None:
        with pytest.raises(Invalid) as caught:
            space.write(_putting({b"good": b"1", key: b"2"}))
        assert caught.value.kind == "space_key_length"
        assert self.look_behind(space, b"good") is None

    # --- scans

    @pytest.mark.parametrize("reverse", [False, True])
    def test_a_scan_holds_exactly_its_range(self, space: Space, reverse: bool) -> None:
        space.write(_putting(ROWS))
        for keys in starmap(KeyRange, product(STARTS, STOPS)):
            expected = sorted(((key, value) for key, value in ROWS.items() if keys.holds(key)), reverse=reverse)
            assert _scan(space, keys, reverse=reverse) == expected, keys

    @pytest.mark.parametrize("reverse", [False, True])
    @pytest.mark.parametrize(
        "keys", [EVERYTHING, KeyRange(b"b", b"c\xff"), KeyRange(b"bb", None), KeyRange(b"d", b"a")]
    )
    def test_keys_are_those_of_a_scan(self, space: Space, keys: KeyRange, reverse: bool) -> None:
        space.write(_putting(ROWS))
        with space.read() as transaction:
            assert list(transaction.keys(keys, reverse=reverse)) == [
                key for key, _ in transaction.scan(keys, reverse=reverse)
            ]

    def test_several_keys_are_looked_up_in_their_order(self, space: Space) -> None:
        space.write(_putting(ROWS))
        several = [b"d", b"absent", b"b", b"", b"b", b"x" * KEY_BYTES_MAX, b"x" * (KEY_BYTES_MAX + 1), b"a"]
        with space.read() as transaction:
            assert transaction.get_many(several) == [transaction.get(key) for key in several]
            assert transaction.get_many([]) == []

        def change(transaction: Transaction) -> list[bytes | None]:
            transaction.put(b"new", b"2")
            transaction.delete(b"a")
            return transaction.get_many([b"a", b"new", b"b"])

        assert space.write(change) == [None, b"2", b""]

    def test_rows_are_put_as_one_by_one(self, space: Space) -> None:
        rows = [(b"b", b"1"), (b"x" * KEY_BYTES_MAX, b"long"), (b"a", b""), (b"b", b"2")]
        for some in (rows, rows[:1], rows[2:], []):
            space.write(_putting({b"b": b"0"}))
            space.write(lambda tx, some=some: put_rows(tx, some))  # type: ignore[misc]
            with space.read() as transaction:
                assert {key: transaction.get(key) for key, _ in some} == dict(some)
        with pytest.raises(Invalid):
            space.write(lambda tx: put_rows(tx, [(b"c", b""), (b"", b"")]))
        with space.read() as transaction:
            assert transaction.get(b"c") is None

    def test_a_prefix_is_scanned_alone(self, space: Space) -> None:
        runs = Prefix("runs")
        rows = {runs[tenant].pack(run): b"" for tenant in ("a", "ab", "a\x00") for run in (-1, 0, 1)}
        space.write(_putting(rows))
        keys = [runs["a"].unpack(key) for key, _ in _scan(space, runs["a"].range(), reverse=True)]
        assert keys == [(1,), (0,), (-1,)]

    def test_two_scans_of_one_transaction_do_not_disturb_each_other(self, space: Space) -> None:
        space.write(_putting(ROWS))
        with space.read() as transaction:
            pairs = list(zip(transaction.scan(EVERYTHING), transaction.scan(EVERYTHING, reverse=True), strict=True))
        assert [left for left, _ in pairs] == sorted(ROWS.items())
        assert [right for _, right in pairs] == sorted(ROWS.items(), reverse=True)

    @pytest.mark.parametrize("reverse", [False, True])
    def test_rows_may_be_deleted_while_they_are_scanned(self, space: Space, reverse: bool) -> None:
        space.write(_putting(ROWS))

        def empty(transaction: Transaction) -> list[bytes]:
            return [key for key, _ in transaction.scan(EVERYTHING, reverse=reverse) if transaction.delete(key)]

        assert space.write(empty) == sorted(ROWS, reverse=reverse)
        assert _scan(space) == []

    @pytest.mark.parametrize("reverse", [False, True])
    def test_rows_may_be_put_while_others_are_scanned(self, space: Space, reverse: bool) -> None:
        space.write(_putting({b"a": b"", b"c": b"", b"e": b""}))

        def change(transaction: Transaction) -> list[bytes]:
            seen = []
            for key, _ in transaction.scan(EVERYTHING, reverse=reverse):
                seen.append(key)
                if key == b"c":
                    _putting({b"0": b"", b"b": b"", b"d": b"", b"f": b""})(transaction)
                    transaction.delete(b"a" if reverse else b"e")
            return seen

        seen = space.write(change)
        assert seen == sorted(seen, reverse=reverse), "in order, and none twice"
        # New rows ahead of a scan are met or not; those that stay are, and those that are gone are not.
        assert [key for key in seen if key in b"ace"] == ([b"e", b"c"] if reverse else [b"a", b"c"])
        assert [key for key, _ in _scan(space)] == sorted({*b"0 a b c d e f".split()} - {b"a" if reverse else b"e"})

    def test_a_range_is_deleted(self, space: Space) -> None:
        space.write(_putting(ROWS))
        assert space.write(lambda transaction: transaction.delete_range(KeyRange(b"b", b"d"))) == 3
        assert [key for key, _ in _scan(space)] == [b"a", b"d"]
        assert self.look_behind(space, b"b") is None
        assert space.write(lambda transaction: transaction.delete_range(EVERYTHING)) == 2
        assert space.write(lambda transaction: transaction.delete_range(EVERYTHING)) == 0

    def test_a_range_is_deleted_up_to_a_limit_from_its_first_key_on(self, space: Space) -> None:
        def change(transaction: Transaction) -> list[int]:
            _putting(ROWS)(transaction)
            transaction.delete(b"b")
            return [transaction.delete_range(KeyRange(b"a", b"d"), limit) for limit in (0, 2, 2, 2)]

        assert space.write(change) == [0, 2, 1, 0]
        assert [key for key, _ in _scan(space)] == [b"d"]

    # --- transactions

    def test_a_writer_sees_its_own_changes(self, space: Space) -> None:
        space.write(_putting({b"old": b"1"}))

        def change(transaction: Transaction) -> tuple[bytes | None, bytes | None, list[tuple[bytes, bytes]]]:
            transaction.put(b"new", b"2")
            transaction.delete(b"old")
            return transaction.get(b"new"), transaction.get(b"old"), list(transaction.scan(EVERYTHING))

        assert space.write(change) == (b"2", None, [(b"new", b"2")])

    def test_a_failed_write_leaves_nothing(self, space: Space) -> None:
        space.write(_putting({b"retained": b"1"}))

        def fail(transaction: Transaction) -> None:
            _putting({b"retained": b"2", b"new": b"3"})(transaction)
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            space.write(fail)
        assert _scan(space) == [(b"retained", b"1")]
        space.write(_putting({b"after": b"4"}))
        assert self.look_behind(space, b"after") == b"4"

    def test_a_reader_keeps_its_moment(self, space: Space) -> None:
        space.write(_putting(ROWS))
        with space.read() as before:
            _in_thread(lambda: space.write(_putting({b"a": b"changed"})))
            _in_thread(lambda: space.write(lambda transaction: transaction.delete(b"b")))
            assert list(before.scan(EVERYTHING)) == sorted(ROWS.items())
            assert before.get(b"a") == b"1"
            with space.read() as after:
                assert after.get(b"a") == b"changed"
                assert after.get(b"b") is None

    def test_a_reader_does_not_see_a_write_before_its_end(self, space: Space) -> None:
        def change(transaction: Transaction) -> bytes | None:
            transaction.put(b"k", b"v")
            return _get(space, b"k")

        assert space.write(change) is None
        assert _get(space, b"k") == b"v"

    def test_writes_of_many_threads_are_serializable(self, space: Space) -> None:
        def count(transaction: Transaction) -> None:
            transaction.put(b"n", b"%d" % (int(transaction.get(b"n") or b"0") + 1))

        def counting() -> None:
            for _ in range(10):
                space.write(count)

        threads = [threading.Thread(target=counting) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert _get(space, b"n") == b"40"

    def test_a_write_inside_a_write_is_refused(self, space: Space) -> None:
        with pytest.raises(Internal) as caught:
            space.write(lambda _: space.write(_putting({b"k": b"v"})))
        assert caught.value.kind == "nested_write"
        space.write(_putting({b"after": b""}))
        assert _scan(space) == [(b"after", b"")]

    def test_a_reader_that_may_not_wait_reads_the_same_moment(self, space: Space) -> None:
        space.write(_putting(ROWS))
        with space.read(wait=False) as before:
            _in_thread(lambda: space.write(_putting({b"a": b"changed"})))
            assert list(before.scan(EVERYTHING)) == sorted(ROWS.items())
            with space.read(wait=False) as after:
                assert after.get(b"a") == b"changed"

    def test_a_reader_that_may_not_wait_does_not_wait_for_a_writer(self, space: Space) -> None:
        space.write(_putting({b"k": b"before"}))
        inside, seen = threading.Event(), threading.Event()

        def change(transaction: Transaction) -> None:
            transaction.put(b"k", b"after")
            inside.set()
            assert seen.wait(60), "the reader waits for this write"

        writer = threading.Thread(target=space.write, args=(change,))
        writer.start()
        assert inside.wait(60)
        with suppress(WouldBlock), space.read(wait=False) as reader:
            assert reader.get(b"k") == b"before"
        seen.set()
        writer.join()
        assert _get(space, b"k") == b"after"

    @pytest.mark.parametrize("committed", [True, False])
    def test_a_write_whose_answer_is_lost_was_made_wholly_or_not_at_all(self, space: Space, committed: bool) -> None:
        losing = self.losing_results(space, committed=committed)
        if losing is None:
            pytest.skip("its commits happen in this process: their answers cannot be lost")
        with losing, pytest.raises(Uncertain):
            space.write(_putting(ROWS))
        assert _scan(space) == (sorted(ROWS.items()) if committed else [])
        space.write(_putting({b"z": b"later"}))
        assert self.look_behind(space, b"z") == b"later"

    # --- ends

    def test_a_transaction_cannot_be_used_after_its_end(self, space: Space) -> None:
        space.write(_putting(ROWS))
        with space.read() as reader:
            scan = reader.scan(EVERYTHING)
            next(scan)
        writer: Transaction = space.write(lambda transaction: transaction)
        uses: list[Callable[[], object]] = [
            lambda: next(scan),
            lambda: reader.get(b"a"),
            lambda: reader.scan(EVERYTHING),
            lambda: reader.keys(EVERYTHING),
            lambda: reader.get_many([b"a"]),
            lambda: writer.delete_range(EVERYTHING),
            lambda: writer.put(b"late", b""),
            lambda: writer.delete(b"a"),
        ]
        for use in uses:
            with pytest.raises(Closed) as caught:
                use()
            assert caught.value.kind == "transaction_over"
        assert self.look_behind(space, b"late") is None

    def test_a_closed_space_says_so(self, space: Space) -> None:
        space.close()
        space.close()
        with pytest.raises(Closed) as caught, space.read():
            pass
        assert caught.value.kind == "space_closed"
        with pytest.raises(Closed):
            space.write(_putting({b"k": b"v"}))


def _putting(rows: dict[bytes, bytes]) -> Callable[[Transaction], None]:
    def put(transaction: Transaction) -> None:
        for key, value in rows.items():
            transaction.put(key, value)

    return put


def _get(space: Space, key: bytes) -> bytes | None:
    with space.read() as transaction:
        return transaction.get(key)


def _scan(space: Space, keys: KeyRange = EVERYTHING, *, reverse: bool = False) -> list[tuple[bytes, bytes]]:
    transaction: ReadTransaction
    with space.read() as transaction:
        return list(transaction.scan(keys, reverse=reverse))


def _in_thread(act: Callable[[], T]) -> T:
    """Run `act` in a thread of its own, as another user of the space would."""
    results: list[T] = []
    thread = threading.Thread(target=lambda: results.append(act()))
    thread.start()
    thread.join()
    assert results, "the thread raised"
    return results[0]
