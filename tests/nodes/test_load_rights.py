"""Loads and streams of others: a token can neither enter, repeat nor see what belongs to maps it may not write to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import millpond
from millpond.client.upload import upload_parts
from millpond.errors import Denied, NotFound
from millpond.maps.log.deduplication import EPOCHS_AHEAD_MAX
from millpond.nodes.tokens import hash_token
from tests.harness.rows import canonical_of
from tests.nodes.conftest import Answer, Served

RIGHTS: dict[str, dict[str, list[str]]] = {
    "reader": {"read": ["*"]}, "weather": {"write": ["weather"]}, "people": {"write": ["people"]},
    "all": {"admin": ["*"]},
}  # fmt: skip
TOKENS = [{"name": name, "sha256": hash_token(name), "rights": rights} for name, rights in RIGHTS.items()]
FAR = 10**9


def headers(who: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {who}"}


@pytest.fixture
def guarded(serve: Callable[..., Served]) -> Served:
    node = serve(server_tokens=TOKENS)
    for name in ("weather", "people"):
        node.pond.create_map(name, kind="state", value="long")
    return node


def uploaded(node: Served, who: str, map: str, value: int, **entered: Any) -> millpond.LoadResult:
    """Load one row by a token."""
    with millpond.open(node.url, client_token=who) as pond:
        writer = pond.part_writer(map)
        writer.write(canonical_of(pond.map(map).definition, [(("a",), value)]))
        return pond.commit_load(writer.finish(), wait=True, **entered)


def uploaded_to_both(node: Served, value: int, **entered: Any) -> millpond.LoadResult:
    """Load one row to each of both maps at once, by a token that may."""
    with millpond.open(node.url, client_token="all") as pond:
        parts = []
        for name in ("people", "weather"):
            writer = pond.part_writer(name)
            writer.write(canonical_of(pond.map(name).definition, [(("a",), value)]))
            parts += writer.finish()
        return pond.commit_load(parts, wait=True, **entered)


def enter(node: Served, who: str, **body: Any) -> Answer:
    return node.post("/v1/loads", {"load_id": "l", "parts": [], **body}, headers=headers(who))


def test_a_load_has_parts(guarded: Served) -> None:
    """An empty one would take the epoch of a stream, and the rows of the real one would be stored nowhere."""
    for who in RIGHTS:
        for stream in (None, ["q", 3], ["q", FAR]):
            answer = enter(guarded, who, stream=stream)
            assert answer.status == (403 if who == "reader" else 400), answer.body
    assert guarded.pond.log.position()[0] == 2, "the two maps, and nothing else"
    stream_of = uploaded(guarded, "weather", "weather", 1, stream=("q", 0))
    assert stream_of.rows == 1
    assert guarded.pond.map("weather").get("a") == 1, "no one came before the real stream"


def test_a_stream_of_a_map_is_nobody_elses(guarded: Served) -> None:
    """Writers of another map can know its query, and come first: its epochs count from its own loads."""
    uploaded(guarded, "people", "people", 1, stream=("q", EPOCHS_AHEAD_MAX))
    for epoch in range(3):
        uploaded(guarded, "weather", "weather", epoch, stream=("q", epoch))
        assert guarded.pond.map("weather").get("a") == epoch
        uploaded(guarded, "people", "people", 7 + epoch, stream=("q", EPOCHS_AHEAD_MAX + 1 + epoch))
    both = uploaded_to_both(guarded, 9, stream=("q", 1))
    assert both.maps == {"people": 1, "weather": 1}, "nor do streams to several maps count for one of them"
    assert guarded.pond.map("weather").get("a") == 9


def test_an_epoch_that_comes_again_is_entered_once(guarded: Served) -> None:
    first = uploaded(guarded, "weather", "weather", 1, stream=("q", 0))
    position = guarded.pond.log.position()
    again = uploaded(guarded, "weather", "weather", 1, stream=("q", 0))
    other = uploaded(guarded, "weather", "weather", 2, stream=("q", 0))
    assert again.load == other.load == first.load
    uploaded_to_both(guarded, 5, stream=("q", 1))
    assert guarded.pond.log.position()[0] == position[0] + 1
    assert uploaded_to_both(guarded, 6, stream=("q", 1)).maps == {"people": 1, "weather": 1}
    assert guarded.pond.log.position()[0] == position[0] + 1
    assert guarded.pond.map("weather").get("a") == 5


def test_an_epoch_from_before_the_pond_was_served_is_entered_once(guarded: Served) -> None:
    """Rows of earlier releases name no maps with the query, either."""
    for name, value in (("people", 1), ("weather", 1)):
        writer = guarded.pond.part_writer(name)
        writer.write(canonical_of(guarded.pond.map(name).definition, [(("a",), value)]))
        guarded.pond.commit_load(writer.finish(), stream=(f"old-{name}", 4))
    uploaded(guarded, "weather", "weather", 2, stream=("old-weather", 4))
    assert guarded.pond.map("weather").get("a") == 1
    uploaded(guarded, "weather", "weather", 3, stream=("old-weather", 5))
    uploaded(guarded, "weather", "weather", 4, stream=("old-people", 4))
    assert guarded.pond.map("weather").get("a") == 4, "that epoch was another map's"


def test_an_epoch_far_ahead_is_refused(guarded: Served) -> None:
    for epoch in (FAR, EPOCHS_AHEAD_MAX + 1):
        with pytest.raises(millpond.Invalid) as ahead:
            uploaded(guarded, "weather", "weather", 1, stream=("q", epoch))
        assert ahead.value.kind == "stream_epoch"
    for epoch in (0, EPOCHS_AHEAD_MAX, 2 * EPOCHS_AHEAD_MAX):
        uploaded(guarded, "weather", "weather", epoch, stream=("q", epoch))
    assert guarded.pond.map("weather").get("a") == 2 * EPOCHS_AHEAD_MAX
    with pytest.raises(millpond.Invalid):
        uploaded(guarded, "weather", "weather", 1, stream=("another", -1))


def test_a_load_of_others_is_not_repeated_for_its_numbers(guarded: Served) -> None:
    uploaded(guarded, "weather", "weather", 1, load_id="known")
    with pytest.raises(millpond.Conflict) as taken:
        uploaded(guarded, "people", "people", 1, load_id="known")
    assert taken.value.kind == "load_taken"
    assert "weather" not in str(taken.value)
    assert uploaded(guarded, "weather", "weather", 1, load_id="known").rows == 1


def test_a_part_of_others_is_as_absent(guarded: Served) -> None:
    uploaded(guarded, "weather", "weather", 1)
    [known] = guarded.pond.parts.list("weather")
    with millpond.open(guarded.url, client_token="all") as pond:
        writer = pond.part_writer("weather")
        writer.write(canonical_of(pond.map("weather").definition, [(("z",), 1)]))
        [sealed] = writer.finish()
        upload_parts(pond.nodes, [sealed])
    absent = enter(guarded, "people", parts=["0" * 32])
    assert (absent.status, absent.json()["kind"]) == (404, "part_not_uploaded")
    for part in (known.part, sealed.manifest.id):
        foreign = enter(guarded, "people", parts=[part])
        assert foreign.status == 404
        assert foreign.body.replace(part.encode(), b"0" * 32) == absent.body
        state = guarded.get(f"/v1/parts/{part}/upload", headers=headers("people")).json()
        assert state == {"state": "absent", "offset": 0}
        gone = guarded.delete(f"/v1/parts/{part}/upload", headers=headers("people")).json()
        assert gone == {"discarded": False}
    state = guarded.get(f"/v1/parts/{sealed.manifest.id}/upload", headers=headers("weather")).json()
    assert state["state"] == "here"


def test_the_log_of_a_map_names_no_stream(guarded: Served) -> None:
    uploaded(guarded, "all", "weather", 1, stream=("secret-query", 0))
    shown = guarded.get("/v1/log?map=weather", headers=headers("weather"))
    assert shown.status == 200
    assert b"secret-query" not in shown.body
    assert b"secret-query" in guarded.get("/v1/log", headers=headers("all")).body


def test_a_load_needs_the_right_on_its_map(guarded: Served) -> None:
    with millpond.open(guarded.url, client_token="people") as pond, pytest.raises((Denied, NotFound)):
        pond.map("weather").load([{"key": "b", "value": 1}])
