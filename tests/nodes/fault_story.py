"""A cluster under faults, its client, and the model of everything that was acknowledged.

A story does things to a pond of several nodes and does the same to models. What fails because something is down is
done again, as a pipeline would; `check` then holds every node against the models.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
import pytest
from urllib3.exceptions import HTTPError

import millpond
from millpond.errors import Unavailable
from millpond.maps.model.columns import INSTANT
from millpond.maps.model.definition import Kind
from tests.harness.cluster import Cluster, wait_for
from tests.harness.cluster_audit import audit_cluster, audit_queue, settle
from tests.harness.faulty_proxy import FaultyProxy
from tests.harness.models import MapModel
from tests.harness.rows import canonical_of, table_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from millpond.maps.loads.load import LoadResult
    from millpond.maps.model.definition import MapDefinition
    from tests.harness.models import Row

Done = TypeVar("Done")
TRIES = 12
CLIENT = {
    "MILLPOND_CLIENT_MIN_TIME_TO_KEEP_SNAPSHOTS": "0s",
    "MILLPOND_CLIENT_READ_TIMEOUT": "20s",
}


def rows_of(kind: Kind, load: int, count: int = 40, key_bytes: int = 6) -> list[Row]:
    """The rows a load brings: some keys are new, some replace what the load before brought."""
    keys = [f"k{load * count // 2 + number:05d}".ljust(key_bytes, "-") for number in range(count)]
    if kind is Kind.STATE:
        return [((key,), load * 1000 + number) for number, key in enumerate(keys)]
    assert kind is Kind.TEMPORAL_STATE, kind
    return [((key, 1000 * (load + at)), load // 3) for key in keys for at in (0, 1)]


def state_table(keys: Sequence[str], value: int) -> pa.Table:
    """The same value for many keys."""
    return pa.table({"key": list(keys), "value": pa.array([value] * len(keys), pa.int64())})


class Story:
    """The events of one cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.world: dict[str, tuple[MapDefinition, MapModel]] = {}
        self.deaths: Counter[int] = Counter()
        self.pond: Any = millpond.open(cluster.url)

    def create(self, name: str, kind: str = "state", **settings: Any) -> Any:
        """A map of long values on all nodes, and its model."""
        made = patient(self, lambda: self.pond.create_map(name, kind=kind, value="long", exist_ok=True, **settings))
        self.world[name] = made.definition, MapModel(made.definition.kind)
        return made

    def definition(self, name: str) -> MapDefinition:
        return self.world[name][0]

    def model(self, name: str) -> MapModel:
        return self.world[name][1]

    def put(self, name: str, rows: Sequence[Row]) -> None:
        """Acknowledged: from now on it must be there."""
        self.model(name).put(rows)

    def load(self, name: str, load: int, **options: Any) -> LoadResult:
        """As `bring`, the rows of a load by its number."""
        return self.bring(name, rows_of(self.definition(name).kind, load), **options)

    def bring(self, name: str, rows: Sequence[Row], **options: Any) -> LoadResult:
        """One try; what it brings is in the model when it was acknowledged."""
        result = self.pond.map(name).load(table_of(self.definition(name), rows), **options)
        self.put(name, rows)
        return result

    def known(self, name: str, rows: Sequence[Row]) -> tuple[list[str], list[object]]:
        """The keys of some rows, and what a lookup must answer for each."""
        keys = [str(address[0]) for address, _ in rows]
        return keys, [self.model(name).answer(key) for key in keys]

    def load_all(self, load: int, **options: Any) -> LoadResult:
        """One load that brings a part to every map, and two to the first."""
        parts, brought = [], {}
        for at, name in enumerate(self.world):
            definition = self.definition(name)
            rows = brought[name] = rows_of(definition.kind, load)
            for piece in (rows[::2], rows[1::2]) if at == 0 else (rows,):
                writer = self.pond.part_writer(name)
                writer.write(canonical_of(definition, piece))
                parts += writer.finish()
        result = self.pond.commit_load(parts, **options)
        for name, rows in brought.items():
            self.put(name, rows)
        return result

    def revive(self) -> list[int]:
        """Start the nodes that died, and have them say what they have not merged; which."""
        dead = [node.number for node in self.cluster.nodes if not node.runs]
        self.deaths.update(dead)
        if dead:
            self.cluster.start(*dead)
        for number in dead:
            audit_queue(self.cluster, number)
        return dead

    def settle(self) -> int:
        """Wait until all nodes stand at one position and have merged it; those that died are started."""

        def level() -> int:
            try:
                return settle(self.cluster)
            except HTTPError as error:
                raise Unavailable("a node is away", reason=error) from error

        return patient(self, level)

    def calm(self) -> None:
        """Every line carries, every node runs, every clock is right."""
        for node in self.cluster.nodes:
            if node.proxy is not None:
                node.proxy.mend()
            node.clock_file.unlink(missing_ok=True)
        self.revive()

    def proxy(self, number: int) -> FaultyProxy:
        """The proxy before a node."""
        found = self.cluster.nodes[number].proxy
        assert found is not None, "this cluster has no proxies"
        return found

    def check(self, **options: Any) -> None:
        """Every node runs, and holds what the models hold."""
        audit_cluster(self.cluster, self.world, **options)


def patient(story: Story, act: Callable[[], Done]) -> Done:
    """Do it again while nodes are unavailable, starting those that died. Any other error is a fault of ours."""
    for attempt in range(TRIES):
        try:
            return act()
        except Unavailable:
            if attempt + 1 == TRIES:
                raise
            story.revive()
            threading.Event().wait(0.2)
    raise AssertionError


@contextmanager
def running_story(folder: Path, **options: Any) -> Iterator[Story]:
    """A cluster that runs, and a client of it in this process."""
    with pytest.MonkeyPatch.context() as patch, Cluster(folder, **options) as cluster:
        patch.setenv("MILLPOND_CLIENT_CACHE", str(folder / "cache"))
        for name, value in CLIENT.items():
            patch.setenv(name, value)
        story = Story(cluster)
        try:
            yield story
        finally:
            story.pond.close()


def wait_struck(trouble: Any, what: str) -> None:
    """Wait until a trouble has struck."""
    wait_for(trouble.struck.is_set, f"the proxy is to {trouble.act} {what}")


def instants(times: Sequence[int]) -> pa.Array:
    """Milliseconds as a column of times."""
    return pa.array(times, pa.int64()).cast(INSTANT)
