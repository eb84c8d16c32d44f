"""Parts that lie, uploaded to a node of its own process: it answers with an error that is documented, and lives on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import millpond
from millpond.errors import Conflict, Corrupt, Invalid, NotFound
from millpond.maps.model.definition import MapDefinition
from millpond.maps.parts.part import PartFile
from millpond.maps.parts.tail import MANIFEST
from tests.harness import strategies
from tests.harness.scratch import scratch_folder
from tests.rings.sampling import examples
from tests.unit.mutations import Mutation, give_its_id, mutate, mutations, sealed

MAPS: dict[str, dict[str, Any]] = {
    "plain": {"kind": "state", "value": "string"},
    "clashing": {"kind": "temporal_state", "value": "a long, b string", "scheme": "hash", "hash_bits": 2},
    "nets": {"kind": "temporal_ranged_state", "value": "long"},
    "seen": {"kind": "session", "scheme": "direct"},
    "interned": {"kind": "state", "value": None, "scheme": "lookup"},
}


@contextmanager
def served(folder: Path) -> Iterator[Any]:
    """A node in a process of its own, which is alive at the end."""
    command = [sys.executable, "-m", "millpond", "serve", "--data", str(folder / "pond"), "--port", "0", "--json"]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "MILLPOND_SERVER_ACCESS": "open"},
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        try:
            with millpond.open(json.loads(line)["url"]) as pond:
                yield pond
            assert process.poll() is None, "it is alive"
        finally:
            process.terminate()
            process.communicate()


@pytest.fixture(scope="module")
def pond(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with served(tmp_path_factory.mktemp("node")) as remote:
        for name, about in MAPS.items():
            remote.create_map(name, **about)
        yield remote


def definition_of(pond: Any, name: str) -> MapDefinition:
    definition: MapDefinition = pond.map(name).definition
    return definition


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", MAPS)
@settings(max_examples=examples(4, 12), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_node_survives_every_upload(pond: Any, name: str, data: st.DataObject) -> None:
    definition = definition_of(pond, name)
    rows = data.draw(strategies.rows(definition, data.draw(strategies.pools(definition)), most=30))
    with scratch_folder() as folder:
        part = sealed(definition, folder / "made", rows)
        mutate(part, data.draw(mutations()))
        changed = give_its_id(part, definition)
        if changed is None or changed.manifest.map not in MAPS:
            return
        with suppress(Corrupt, Conflict, Invalid, NotFound):
            pond.commit_load([changed], source="lie", wait=True)
    sound = {"key": ["k"], "value": ["v"]}
    assert pond.map("plain").load(sound, again=True).rows == 1
    assert pond.map("plain").get("k") in ("v", None), "it is merged after the call returns"


def test_a_lie_is_named_and_the_load_is_not_entered(pond: Any, tmp_path: Path) -> None:
    definition = definition_of(pond, "plain")
    part = sealed(definition, tmp_path, [(("lie",), "v")])
    mutate(part, [Mutation(page=2, at=16, data=b"\xff\xff")])
    changed = give_its_id(part, definition)
    assert changed is not None
    with pytest.raises(Corrupt) as caught:
        pond.commit_load([changed])
    assert caught.value.kind == "part_damaged"
    assert pond.map("plain").get("lie") is None


def test_an_id_of_another_map_cannot_be_used_up(pond: Any, tmp_path: Path) -> None:
    wanted = sealed(definition_of(pond, "interned"), tmp_path / "wanted", [(("w",), "v")])
    forged = sealed(definition_of(pond, "plain"), tmp_path / "forged", [(("w",), "v")])
    mutate(forged, [Mutation(piece=MANIFEST, field="id", value=wanted.manifest.id)])
    with pytest.raises(Corrupt) as caught:
        pond.commit_load([PartFile(forged.file, replace(forged.manifest, id=wanted.manifest.id))])
    assert caught.value.kind == "part_other"
    assert pond.commit_load([wanted], wait=True).parts == 1
    assert pond.map("interned").get("w") == "v"
