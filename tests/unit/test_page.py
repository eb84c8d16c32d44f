"""Pages of rows in an order, against the rows themselves."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.errors import Invalid
from millpond.kernel.keys import KeyRange
from millpond.kernel.page import Bookmarks, Page, all_behind, behind, check_limit, cut, pages

keys = st.binary(max_size=2)
rows = st.sets(keys, max_size=20).map(sorted)
ranges = st.builds(KeyRange, keys, st.none() | keys)


@given(rows=rows, keys=ranges, place=keys, reverse=st.booleans())
def test_the_keys_behind_a_place_are_those_that_a_scan_meets_after_it(
    rows: list[bytes], keys: KeyRange, place: bytes, reverse: bool
) -> None:
    expected = [key for key in rows if keys.holds(key) and (key < place if reverse else key > place)]
    assert [key for key in rows if behind(keys, place, reverse=reverse).holds(key)] == expected


@given(rows=rows, limit=st.integers(1, 5), gone=st.sets(keys, max_size=5), come=st.sets(keys, max_size=5))
def test_pages_joined_are_the_whole_whatever_comes_and_goes(
    rows: list[bytes], limit: int, gone: set[bytes], come: set[bytes]
) -> None:
    bookmarks, stored, whole = Bookmarks(b"a listing"), set(rows), KeyRange(b"", None)

    def read(bookmark: bytes) -> Page[bytes]:
        left = whole if not bookmark else behind(whole, bookmarks.position(bookmark))
        shown, more = cut((key for key in sorted(stored) if left.holds(key)), limit)
        stored.difference_update(gone)
        stored.update(come - gone)
        return Page(tuple(shown), bookmarks.of(shown[-1]) if more else None)

    read_pages = list(pages(read, b"", lambda page: page.bookmark))
    seen = [key for page in read_pages for key in page.rows]
    assert seen == sorted(set(seen))
    assert set(rows) - gone <= set(seen) <= set(rows) | come
    assert all(len(page.rows) == limit for page in read_pages[:-1])


@given(rows=rows, limit=st.integers(1, 5))
def test_rows_that_are_their_own_places_are_all_read(rows: list[bytes], limit: int) -> None:
    assert list(all_behind(lambda after: [key for key in rows if after is None or key > after][:limit])) == rows


@given(place=st.binary(min_size=1, max_size=40), at=st.integers(0, 43), bit=st.integers(0, 7))
def test_a_bookmark_serves_the_listing_that_gave_it_alone(place: bytes, at: int, bit: int) -> None:
    bookmarks = Bookmarks(b"runs")
    bookmark = bookmarks.of(place)
    assert bookmarks.position(bookmark) == place
    at %= len(bookmark)
    flipped = bookmark[:at] + bytes([bookmark[at] ^ 1 << bit]) + bookmark[at + 1 :]
    refused = [(bookmarks, flipped), (Bookmarks(b"tasks"), bookmark), (bookmarks, bookmark[:-1]), (bookmarks, place)]
    for listing, wrong in refused:
        with pytest.raises(Invalid) as error:
            listing.position(wrong)
        assert error.value.kind == "search_bookmark"
    with pytest.raises(Invalid):
        bookmarks.position(bookmark, KeyRange(place + b"\0", None))


@pytest.mark.parametrize("limit", [0, -1, 11])
def test_a_limit_has_bounds(limit: int) -> None:
    assert (check_limit(1, 10), check_limit(10, 10)) == (1, 10)
    with pytest.raises(Invalid) as error:
        check_limit(limit, 10)
    assert error.value.kind == "search_limit"
