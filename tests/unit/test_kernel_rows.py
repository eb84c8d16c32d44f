"""Small helpers over rows: scans that skip, prefixes of texts, and writes whose answer is lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.errors import Unavailable, Uncertain
from millpond.kernel.keys import Prefix
from millpond.kernel.scans import first_parts
from millpond.maps.loads.outcomes import write_certainly
from millpond.stores.memory import MemorySpace
from millpond.testing.faulty_space import FaultySpace

if TYPE_CHECKING:
    from millpond.kernel.keys import Part
    from millpond.kernel.space import ReadTransaction, Space, Transaction

TEXTS = st.text("ab/\x00\x01\xff", max_size=4)


def value_of(space: Space, key: bytes) -> bytes | None:
    with space.read() as tx:
        return tx.get(key)


# --- prefixes and skips


@given(rows=st.lists(st.tuples(TEXTS, st.integers(0, 2)), max_size=20), text=TEXTS)
def test_texts_that_begin_so_are_one_range_and_what_follows_them_another(
    rows: list[tuple[str, int]], text: str
) -> None:
    prefix = Prefix("staged")["main"]
    keys = sorted(prefix.pack(*parts) for parts in rows)
    inside = [key for key in keys if str(prefix.unpack(key)[0]).startswith(text)]
    assert [key for key in keys if prefix.starting(text).holds(key)] == inside
    last = max(inside, default=prefix.starting(text).start)
    assert [key for key in keys if prefix.after(text).holds(key)] == [key for key in keys if key > last]
    assert not prefix.after(text).holds(Prefix("staged")["main2"].pack("z"))


@given(rows=st.lists(st.tuples(st.one_of(st.none(), st.booleans(), st.integers(-2, 2), TEXTS), TEXTS), max_size=20))
def test_first_parts_are_met_once_and_in_order(rows: list[tuple[Part, str]]) -> None:
    space, prefix = MemorySpace(), Prefix("queue")

    def change(tx: Transaction) -> None:
        for other in (prefix.pack(), Prefix("queu").pack("a"), Prefix("queue2").pack("a")):
            tx.put(other, b"")
        for parts in rows:
            tx.put(prefix.pack(*parts), b"")

    space.write(change)
    with space.read() as tx:
        found = list(first_parts(tx, prefix))
    assert [prefix.pack(part) for part in found] == sorted({prefix.pack(first) for first, _ in rows})


# --- lost answers


def count(tx: Transaction) -> bytes:
    number = b"%d" % (int(tx.get(b"n") or b"0") + 1)
    tx.put(b"n", number)
    return number


def made(tx: ReadTransaction) -> bytes | None:
    return tx.get(b"n")


def write_once(space: Space, token: bytes) -> bytes:
    """Count, if no write with this token did."""

    def change(tx: Transaction) -> bytes:
        answer = tx.get(token) or count(tx)
        tx.put(token, answer)
        return answer

    return write_certainly(space, change, lambda tx: tx.get(token))


@pytest.mark.parametrize("committed", [True, False])
def test_a_write_with_a_token_is_made_once_however_often_its_answer_is_lost(committed: bool) -> None:
    space = FaultySpace(MemorySpace())
    for _ in range(3):
        with space.losing_results(committed=committed):
            if committed:
                assert write_once(space, b"token") == b"1"
            else:
                with pytest.raises(Unavailable) as caught:
                    write_once(space, b"token")
                assert caught.value.kind == "write_not_made"
                assert not isinstance(caught.value, Uncertain)
    assert write_once(space, b"token") == b"1"
    assert write_once(space, b"other") == b"2"
    assert value_of(space, b"n") == b"2"


@pytest.mark.parametrize("committed", [True, False])
def test_who_gets_no_answer_at_all_may_ask_later(committed: bool) -> None:
    space = FaultySpace(MemorySpace())
    with space.losing_results(committed=committed, silent=True), pytest.raises(Uncertain) as caught:
        write_once(space, b"token")
    assert caught.value.kind == "write_uncertain"
    assert (value_of(space, b"token") is not None) is committed
    assert write_once(space, b"token") == b"1"
    assert value_of(space, b"n") == b"1"


def test_a_write_whose_answer_comes_is_not_looked_for() -> None:
    space = MemorySpace()
    assert write_certainly(space, count, lambda _: pytest.fail("nothing was lost")) == b"1"
    with pytest.raises(ZeroDivisionError):
        write_certainly(space, lambda _: 1 // 0, lambda _: 1)
    assert write_certainly(space, count, made) == b"2"
