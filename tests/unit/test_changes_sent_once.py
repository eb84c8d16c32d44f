"""Every changing method of the clients, when each answer is lost: sent once or safe to repeat, and then `Uncertain`."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
import urllib3

from millpond.client.catalogue import RemoteCatalogue
from millpond.client.connections import Broken, breaking
from millpond.client.events import RemoteEvents
from millpond.client.map import RemoteMap
from millpond.client.parts import RemoteParts
from millpond.client.transport import Connection, Nodes
from millpond.client.versions.api import VersionsApi
from millpond.client.versions.repositories import RemoteRepositories
from millpond.client.versions.repository import RemoteRepository
from millpond.clock import ManualClock
from millpond.errors import Unavailable, Uncertain
from millpond.events.ages import AgeRule
from millpond.kernel.operations import operation_of
from millpond.maps.model.aggregate_fields import aggregated_type
from millpond.maps.model.definition import Kind, MapDefinition, Store
from millpond.maps.protocols import CatalogueOperations
from millpond.settings import load_settings
from millpond.versions.objects.entries import Entry
from millpond.versions.repository_context import RepositoryRecord, Retention

ATTEMPTS = 3


@dataclass
class Lost:
    """Sockets that take every request, and cut the connection before its answer. What was sent is written down."""

    sent: list[str] = field(default_factory=list)

    def pool(self) -> Lost:
        return self

    fresh = pool

    def urlopen(self, **request: Any) -> Any:
        path = request["url"].partition("?")[0]
        if request["method"] != "GET":
            self.sent.append(f"{request['method']} {path}")
        raise urllib3.exceptions.ProtocolError("Connection aborted.", ConnectionResetError(104, "reset"))

    def close(self) -> None:
        pass


@pytest.fixture
def lost() -> Lost:
    return Lost()


@pytest.fixture
def nodes(lost: Lost) -> Nodes:
    settings = load_settings(client_attempts=ATTEMPTS, client_read_timeout="50ms")  # and it tries again at once
    found = Nodes("http://n1:1", settings, clock=ManualClock())
    found.connections[0]._sockets = lost  # type: ignore[assignment]
    return found


def connection(nodes: Nodes) -> Connection:
    return nodes.primary()


def events(nodes: Nodes) -> RemoteEvents:
    return RemoteEvents(nodes, nodes.clock)


def repository(nodes: Nodes) -> RemoteRepository:
    return RemoteRepository(VersionsApi(connection(nodes)), RepositoryRecord("r", "i", "local://r"))


def staging(nodes: Nodes) -> Any:
    return repository(nodes).branch("main").staging


def aggregate(nodes: Nodes) -> RemoteMap:
    value, aggregation = aggregated_type("n long count", "1 hour", None)
    definition = MapDefinition(
        name="m", kind=Kind.AGGREGATE, incarnation="1", value=value, store=Store.LAYERS, aggregation=aggregation
    )
    return RemoteMap(definition, cast("Any", SimpleNamespace(nodes=nodes, at={})), cast("Any", SimpleNamespace(at={})))


ENTRY = Entry("p", "a")


def made(nodes: Nodes, *, exist_ok: bool) -> MapDefinition:
    create = operation_of(CatalogueOperations.create_map)
    return RemoteCatalogue(nodes, nodes.clock).create(create, {"name": "m", "value": None, "exist_ok": exist_ok})


ONCE: dict[str, Callable[[Nodes], object]] = {
    "events.append": lambda nodes: events(nodes).append("q", "j", [b"x"]),
    "catalogue.create": lambda nodes: made(nodes, exist_ok=False),
    "catalogue.alter, fields": lambda nodes: RemoteCatalogue(nodes, nodes.clock).alter("m", {"rename": {"a": "b"}}),
    "catalogue.copy": lambda nodes: RemoteCatalogue(nodes, nodes.clock).copy("m", "n"),
    "catalogue.rename": lambda nodes: RemoteCatalogue(nodes, nodes.clock).rename("m", "n"),
    "map.delete": lambda nodes: aggregate(nodes).delete("key = 'a'"),
    "alerts.add": lambda nodes: aggregate(nodes).alerts.add("n > 1", name="many"),
    "alerts.remove": lambda nodes: aggregate(nodes).alerts.remove("many"),
    "events.settings.drop": lambda nodes: events(nodes).settings._drop("q", None),
    "events.delete": lambda nodes: events(nodes).delete("q", "j"),
    "catalogue.drop": lambda nodes: RemoteCatalogue(nodes, nodes.clock).drop("m"),
    "repositories.create": lambda nodes: RemoteRepositories(connection(nodes)).create("r"),
    "repositories.delete": lambda nodes: RemoteRepositories(connection(nodes)).delete("r"),
    "repositories.restore": lambda nodes: RemoteRepositories(connection(nodes)).restore("r", [b"x"]),
    "repository.create_branch": lambda nodes: repository(nodes).create_branch("b", "main"),
    "repository.delete_branch": lambda nodes: repository(nodes).delete_branch("b"),
    "repository.create_tag": lambda nodes: repository(nodes).create_tag("t", "main"),
    "repository.delete_tag": lambda nodes: repository(nodes).delete_tag("t"),
    "repository.collect": lambda nodes: repository(nodes).collect(),
    "repository.set, expected": lambda nodes: repository(nodes).set(Retention(), expected="tag"),
    "branch.put, absent": lambda nodes: repository(nodes).branch("main").put("p", b"x", if_absent=True),
    "branch.delete": lambda nodes: repository(nodes).branch("main").delete("p"),
    "branch.commit": lambda nodes: repository(nodes).branch("main").commit("m"),
    "branch.merge": lambda nodes: repository(nodes).branch("main").merge("b"),
    "branch.revert": lambda nodes: repository(nodes).branch("main").revert("b"),
    "branch.cherry_pick": lambda nodes: repository(nodes).branch("main").cherry_pick("b"),
    "staging.stage": lambda nodes: staging(nodes).stage(pa.table({"path": ["p"]})),
    "staging.copy_prefix": lambda nodes: staging(nodes).copy_prefix("a", "b"),
    "staging.move": lambda nodes: staging(nodes).move("p", "q"),
    "staging.restore": lambda nodes: staging(nodes).restore("a", "main"),
    "staging.reset_hard": lambda nodes: staging(nodes).reset_hard("main"),
    "staging.compact": lambda nodes: staging(nodes).compact(),
    "staging.link, absent": lambda nodes: staging(nodes).link(ENTRY, if_absent=True),
}
REPEATED: dict[str, Callable[[Nodes], object]] = {
    "events.append, source": lambda nodes: events(nodes).append("q", "j", [b"x"], source="s", positions=[1]),
    "events.compress": lambda nodes: events(nodes).compress(),
    "events.expire": lambda nodes: events(nodes).expire(),
    "catalogue.create, exist_ok": lambda nodes: made(nodes, exist_ok=True),
    "catalogue.alter": lambda nodes: RemoteCatalogue(nodes, nodes.clock).alter("m", {"condense": "1d"}),
    "events.settings.put": lambda nodes: events(nodes).settings._put(AgeRule("q")),
    "map.retain": lambda nodes: aggregate(nodes).retain("2020-01-01T00:00Z"),
    "parts.retry": lambda nodes: RemoteParts(nodes).retry(),
    "repository.set": lambda nodes: repository(nodes).set(Retention()),
    "repository.clear": lambda nodes: repository(nodes).clear(Retention),
    "repository.alter": lambda nodes: repository(nodes).alter(read_only=True),
    "branch.put": lambda nodes: repository(nodes).branch("main").put("p", b"x"),
    "branch.copy": lambda nodes: repository(nodes).branch("main").copy("p", "q"),
    "branch.reset": lambda nodes: repository(nodes).branch("main").reset(),
    "staging.link": lambda nodes: staging(nodes).link(ENTRY),
    "staging.delete_prefix": lambda nodes: staging(nodes).delete_prefix("a"),
    "staging.set_metadata": lambda nodes: staging(nodes).set_metadata("p", {}),
}


@pytest.mark.parametrize("name", [*ONCE, *REPEATED])
def test_a_change_whose_answers_are_lost_is_uncertain(nodes: Nodes, lost: Lost, name: str) -> None:
    with pytest.raises(Uncertain) as caught:
        (ONCE | REPEATED)[name](nodes)
    assert caught.value.kind == "answer_lost"
    assert caught.value.values["node"] == "http://n1:1"
    assert len(lost.sent) == (1 if name in ONCE else ATTEMPTS), lost.sent


def test_a_request_that_says_nothing_of_itself_is_sent_once(nodes: Nodes, lost: Lost) -> None:
    for method in ("POST", "PUT", "PATCH", "DELETE"):
        with pytest.raises(Uncertain):
            connection(nodes).request(method, "/x")
    assert lost.sent == ["POST /x", "PUT /x", "PATCH /x", "DELETE /x"]


def test_a_question_is_asked_again_and_nothing_is_uncertain(nodes: Nodes, lost: Lost) -> None:
    with pytest.raises(Unavailable) as caught:
        connection(nodes).request("POST", "/lookup", question=True)
    assert (type(caught.value), len(lost.sent)) == (Unavailable, ATTEMPTS)


def test_a_cut_within_tls_may_have_come_after_the_request() -> None:
    settings = load_settings()
    with pytest.raises(Broken) as caught, breaking(settings):
        raise urllib3.exceptions.SSLError(ssl.SSLEOFError(8, "UNEXPECTED_EOF_WHILE_READING"))
    assert caught.value.sent and not caught.value.lasting
    with pytest.raises(Broken) as caught, breaking(settings):
        raise urllib3.exceptions.SSLError(ssl.SSLCertVerificationError(1, "self-signed certificate"))
    assert caught.value.lasting and not caught.value.sent
