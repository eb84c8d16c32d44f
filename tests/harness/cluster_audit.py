"""Holding a cluster against the model: every node is asked by itself, and all must tell the same.

What is checked of each node:
* it stands at the position of the primary, with the same chain, and has nothing left to merge;
* each map holds exactly the model's rows, by scan, by `get` and by remote lookup; digests agree;
* `verify` finds nothing; each part it lists is kept, or quarantined with a reason where that was expected.
* when all of them are asked, they find of each other that they agree.

While something is still to be merged, `audit_queue` holds what a node lists against its log.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import pyarrow as pa

from millpond.client.transport import Connection
from millpond.clock import SystemClock
from millpond.maps.model.columns import INSTANT
from millpond.nodes.replication.log_agreement import agreement
from millpond.nodes.replication.peer import Peer
from millpond.settings import load_settings
from tests.harness.cluster import wait_for
from tests.harness.models import bits_of
from tests.harness.rows import presented, presented_rows

if TYPE_CHECKING:
    from millpond.maps.model.definition import MapDefinition
    from tests.harness.cluster import Cluster
    from tests.harness.models import MapModel

__all__ = ("audit_cluster", "audit_queue", "fetch_json", "log_of", "parts_of", "position_of", "rows_of_node", "settle")

SETTLE_SECONDS = 60.0
QUESTIONS_MAX = 40

World = Mapping[str, tuple["MapDefinition", "MapModel"]]


def fetch_json(cluster: Cluster, number: int, path: str, **query: object) -> Any:
    """A node's response to a GET, as Python values."""
    answer = cluster.ask(number, "GET", f"{path}?{urlencode(query)}" if query else path)
    assert answer.status == 200, (number, path, answer.status, answer.body[:2000])
    return answer.json()


def position_of(cluster: Cluster, number: int) -> tuple[int, str]:
    """The end of a node's log."""
    node = fetch_json(cluster, number, "/v1/node")
    return int(node["position"]), str(node["chain"])


def parts_of(cluster: Cluster, number: int) -> list[dict[str, Any]]:
    """The parts a node lists."""
    listed = fetch_json(cluster, number, "/v1/parts")
    return list(listed["parts"] if isinstance(listed, dict) else listed)


def _unmerged(cluster: Cluster, number: int) -> list[dict[str, Any]]:
    return [part for part in parts_of(cluster, number) if part["state"] in ("queued", "merging")]


def settle(cluster: Cluster, nodes: Iterable[int] | None = None, seconds: float = SETTLE_SECONDS) -> int:
    """Wait until the nodes (all: None) stand at one position and have merged all of it; that position."""
    numbers = list(range(len(cluster.nodes)) if nodes is None else nodes)

    def level() -> bool:
        return len({position_of(cluster, number) for number in numbers}) == 1

    def merged() -> bool:
        return not any(_unmerged(cluster, number) for number in numbers)

    try:
        wait_for(level, "the nodes to stand at one position", seconds)
        wait_for(merged, "the nodes to merge what they have", seconds)
    except AssertionError as error:
        states = {number: (position_of(cluster, number), _unmerged(cluster, number)) for number in numbers}
        raise AssertionError(f"{error}: {states}") from None
    return position_of(cluster, numbers[0])[0]


def audit_cluster(
    cluster: Cluster, world: World, *, nodes: Sequence[int] | None = None, quarantined: bool = False, full: bool = True
) -> None:  # fmt: skip
    """All nodes agree with each other and with the model; `quarantined`: some parts may lie in quarantine."""
    numbers = list(range(len(cluster.nodes)) if nodes is None else nodes)
    position = settle(cluster, numbers)
    digests = {name: set[str]() for name in world}
    for number in numbers:
        known = {description["name"] for description in _maps_of(cluster, number)}
        assert world.keys() <= known, (number, known)
        for name, (definition, model) in world.items():
            _audit_rows(cluster, number, definition, model)
            answer = fetch_json(cluster, number, f"/v1/maps/{name}/digest")
            assert (answer["position"], answer["rows"]) == (position, len(model.rows)), (number, name, answer)
            digests[name].add(answer["digest"])
        _audit_health(cluster, number, quarantined=quarantined, full=full)
    assert all(len(group) == 1 for group in digests.values()), digests
    if nodes is None:
        _audit_agreement(cluster)


def audit_queue(cluster: Cluster, number: int) -> list[dict[str, Any]]:
    """Check that a node lists every part that it entered and has not merged, quarantine with reasons; return the list.

    Other parts may be merged meanwhile. The log is asked for first and where its maps stand last: so what is in that
    log and neither listed nor merged was lost.
    """
    entries = log_of(cluster, number)
    listed = [part for part in parts_of(cluster, number) if part["state"] != "retained"]
    named = {part["part"] for part in listed}
    for name in (description["name"] for description in _maps_of(cluster, number)):
        applied = fetch_json(cluster, number, "/v1/log", map=name, after=10**9)["applied"]
        for entry in entries:
            mine = {part["id"] for part in entry["body"].get("parts", ()) if part["map"] == name}
            assert entry["position"] <= applied or mine <= named, (number, name, applied, entry, listed)
    for part in listed:
        assert part["state"] in ("queued", "merging") or (part["state"], bool(part["reason"])) == ("quarantined", True)
        assert part["position"] <= position_of(cluster, number)[0], part
    return listed


def log_of(cluster: Cluster, number: int) -> list[dict[str, Any]]:
    """The entries that a node keeps; some may be trimmed while they are asked for."""
    for _ in range(5):
        first = fetch_json(cluster, number, "/v1/log", after=10**9)["first"]
        answer = cluster.ask(number, "GET", f"/v1/log?after={first - 1}")
        if answer.status == 200:
            return list(answer.json()["entries"])
    raise AssertionError((number, answer.status, answer.body[:2000]))


def _audit_agreement(cluster: Cluster) -> None:
    """Ask the nodes themselves, past their lines."""
    settings = load_settings()
    peers = [Peer(Connection(cluster.nodes[number].direct_url, settings)) for number in cluster.order]
    found = agreement(peers, SystemClock(), seconds=SETTLE_SECONDS)
    assert found.ok, found.to_dict()


def _maps_of(cluster: Cluster, number: int) -> list[dict[str, Any]]:
    listed = fetch_json(cluster, number, "/v1/maps")
    return list(listed["maps"] if isinstance(listed, dict) else listed)


def rows_of_node(cluster: Cluster, number: int, definition: MapDefinition) -> list[object]:
    """The rows of a map as one node scans them, in the form of `presented`."""
    answer = cluster.ask(number, "POST", f"/v1/maps/{definition.name}/scan", body={})
    assert answer.status == 200, (number, definition.name, answer.body[:2000])
    return presented_rows(definition, _table(answer.body))


def _audit_rows(cluster: Cluster, number: int, definition: MapDefinition, model: MapModel) -> None:
    held = rows_of_node(cluster, number, definition)
    wanted = presented(definition, model.scan())
    if held != wanted:
        first = next(at for at in range(len(wanted) + 1) if held[at : at + 1] != wanted[at : at + 1])
        differ = f"row {first}: {held[first : first + 3]} and not {wanted[first : first + 3]}"
        raise AssertionError(f"node {number}, {definition.name}: {len(held)} rows, {len(wanted)} wanted; {differ}")
    _audit_answers(cluster, number, definition, model)


def _table(body: bytes) -> pa.Table:
    with pa.ipc.open_stream(io.BytesIO(body)) as reader:
        return reader.read_all()


def _audit_answers(cluster: Cluster, number: int, definition: MapDefinition, model: MapModel) -> None:
    """Some questions in bulk, a few of them one by one; for maps with text keys and declared scalar values."""
    if not definition.kind.keyed or not definition.kind.valued or definition.value is None:
        return
    addresses = sorted(model.rows)
    chosen = addresses[:: max(1, len(addresses) // QUESTIONS_MAX)]
    keys = [str(address[0]) for address in chosen] + ["nobody at all"]
    times = [int(address[-1]) + 1 for address in chosen] + [0] if definition.kind.timed else None
    columns = {"key": pa.array(keys)} | ({} if times is None else {"at": pa.array(times, pa.int64()).cast(INSTANT)})
    sink = io.BytesIO()
    table = pa.table(columns)
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    answer = cluster.ask(number, "POST", f"/v1/maps/{definition.name}/lookup", body=sink.getvalue())
    assert answer.status == 200, (number, definition.name, answer.body[:2000])
    wanted = [model.answer(key, times[at] if times else 0) for at, key in enumerate(keys)]
    found = _table(answer.body).column("value").to_pylist()
    assert bits_of(found) == bits_of(wanted), (number, definition.name, keys, found, wanted)
    for at in range(0, len(keys), max(1, len(keys) // 3)):
        query = {"key": keys[at]} | ({"at": times[at]} if times else {})
        single = fetch_json(cluster, number, f"/v1/maps/{definition.name}/get", **query)
        assert single["value"] == wanted[at], (number, query, single, wanted[at])


def _audit_health(cluster: Cluster, number: int, *, quarantined: bool, full: bool) -> None:
    for part in parts_of(cluster, number):
        assert part["state"] == "retained" or (quarantined and part["state"] == "quarantined" and part["reason"]), part
    answer = cluster.ask(number, "POST", "/v1/verify", body={"full": full})
    assert answer.status == 200, (number, answer.body[:2000])
    report = answer.json()
    assert not report["problems"], (number, report["problems"])
