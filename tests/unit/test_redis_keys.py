"""Keys of streams in Redis: no two streams share one, and those of a stream are in one slot."""

from __future__ import annotations

import pytest

pytest.importorskip("redis")

from hypothesis import given
from hypothesis import strategies as st
from redis.crc import key_slot

from millpond.errors import Invalid
from millpond.events.names import StreamName
from millpond.events.protocol import Work
from millpond.events.redis.address import Address, parse_location
from millpond.events.redis.keys import SHARDS, PondKeys, is_hashed, parse_name

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=300) | st.text("_:{}%=/*a", max_size=4)
streams = st.builds(StreamName, texts, texts)
PLACE = PondKeys("p")


@given(streams, streams)
def test_streams_share_no_key(one: StreamName, other: StreamName) -> None:
    first, second = PLACE.keys_of(one), PLACE.keys_of(other)
    own = [first.head, first.index, first.raw, first.sources, first.batches_of(7)]
    assert len(set(own)) == len(own)
    assert (
        (first.name == second.name)
        == (one == other)
        == bool(set(own) & {second.head, second.index, second.raw, second.sources, second.batches_of(7)})
    )


@given(streams)
def test_the_keys_of_a_stream_and_its_registry_are_in_one_slot(stream: StreamName) -> None:
    keys = PLACE.keys_of(stream)
    used = [keys.head, keys.index, keys.raw, keys.sources, keys.batches_of(-1), *keys.due, keys.names]
    assert len({key_slot(key) for key in used}) == 1
    assert [PLACE.due(work, keys.shard) for work in Work] == list(keys.due)
    assert (PLACE.head(keys.name), PLACE.shard_of(keys.name)) == (keys.head, keys.shard)
    assert is_hashed(keys.name) or parse_name(keys.name) == stream
    assert len(keys.head) < 300


def test_shards_spread_over_the_servers_of_a_cluster() -> None:
    slots = [key_slot(tag.encode()) for tag in PLACE.tags]
    for servers in (2, 3, 5, 8):
        shares = [sum(slot * servers // 16384 == server for slot in slots) for server in range(servers)]
        assert min(shares) > 0.8 * SHARDS / servers


def test_locations_have_places_and_hide_passwords() -> None:
    location = parse_location("redis://user:secret@one,two:7000,[::1]:7001/3#flights")
    assert location.seeds == (Address("one", 6379), Address("two", 7000), Address("::1", 7001))
    assert (location.name, location.options["db"], location.options["password"]) == ("flights", 3, "secret")
    assert location.shown == "redis://user@one,two:7000,[::1]:7001/3#flights"
    assert parse_location("redis://one#p", "beside").options["password"] == "beside"
    assert parse_location("redis://:within@one#p", "beside").options["password"] == "within"
    assert parse_location("rediss://one#p").shown == "rediss://one#p"
    safe = parse_location("redis://one/0?replicas=2#p")
    assert (safe.replicas, safe.shown) == (2, "redis://one/0?replicas=2#p") and "replicas" not in safe.options


@pytest.mark.parametrize(
    "url",
    [
        "",
        "redis:",
        "redis://",
        "http://one",
        "redis://one:port#p",
        "redis://one/0?decode_responses=1#p",
        "redis://a,,b#p",
        "redis://one/0?replicas=-1#p",
        "redis://one/0?replicas=all#p",
        "redis://one",
        "redis://one/0#",
    ],
)
def test_other_urls_are_refused(url: str) -> None:
    with pytest.raises(Invalid) as caught:
        parse_location(url)
    assert caught.value.kind == "redis_url"


@pytest.mark.parametrize("name", ["a b", "{a}", "a:b", "x" * 64, "é"])
def test_other_places_are_refused(name: str) -> None:
    with pytest.raises(Invalid):
        PondKeys(name)
