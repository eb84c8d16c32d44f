"""A node in a network of its own, whose cable is pulled: nothing is reset, packets are simply gone."""

from __future__ import annotations

import os
import subprocess
from hashlib import sha256
from typing import TYPE_CHECKING

import pytest

from millpond.errors import Unavailable
from tests.harness.cluster import Place
from tests.harness.cluster_audit import settle
from tests.nodes.fault_story import Story, patient, running_story

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.full

SPACE = f"millpond{os.getpid() % 10_000}"
NEAR, FAR = f"mpn{os.getpid() % 10_000}", f"mpf{os.getpid() % 10_000}"
BLOCK = f"10.{200 + os.getpid() % 50}.{os.getpid() // 50 % 250}"
TOKEN = "a token that all nodes of the test share"


def run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True)


@pytest.fixture(scope="module")
def network() -> Iterator[str]:
    """A network namespace, joined to this one by a cable; the name of the namespace."""
    if os.geteuid() != 0:
        pytest.skip("a network of one's own needs root")
    try:
        run("ip", "netns", "add", SPACE)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"network namespaces are not allowed here: {error}")
    try:
        try:
            run("ip", "link", "add", NEAR, "type", "veth", "peer", "name", FAR, "netns", SPACE)
        except subprocess.CalledProcessError as error:
            pytest.skip(f"cables are not allowed here: {error.stderr.decode().strip()}")
        run("ip", "addr", "add", f"{BLOCK}.1/24", "dev", NEAR)
        run("ip", "link", "set", NEAR, "up")
        for words in (("addr", "add", f"{BLOCK}.2/24", "dev", FAR), ("link", "set", FAR, "up"),
                      ("link", "set", "lo", "up")):  # fmt: skip
            run("ip", "netns", "exec", SPACE, "ip", *words)
        yield SPACE
    finally:
        subprocess.run(["ip", "netns", "del", SPACE], check=False, capture_output=True)


@pytest.fixture(scope="module")
def story(network: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    """Two nodes here, the third at the other end of the cable."""
    here = Place(host=f"{BLOCK}.1")
    shared = {
        "name": "cluster", "sha256": sha256(TOKEN.encode()).hexdigest(),
        "rights": {"read": ["*"], "write": ["*"], "admin": ["*"]},
    }  # fmt: skip
    settings = {
        "client_token": TOKEN,
        "server_tokens": [shared],
        "client_read_timeout": "3s",
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MILLPOND_CLIENT_TOKEN", TOKEN)
        with running_story(
            tmp_path_factory.mktemp("cable"), settings=settings,
            places={0: here, 1: here, 2: Place(host=f"{BLOCK}.2", space=network)},
        ) as opened:  # fmt: skip
            yield opened


def test_a_node_whose_cable_is_pulled_during_loads_comes_back_and_agrees(story: Story) -> None:
    story.create("cable")
    story.load("cable", 0)
    story.settle()
    run("ip", "netns", "exec", SPACE, "ip", "link", "set", FAR, "down")
    try:
        with pytest.raises(Unavailable) as caught:
            story.load("cable", 1)
        assert story.cluster.nodes[2].url in str(caught.value)
        settle(story.cluster, [0, 1])
        key = next(iter(story.model("cable").rows))[0]
        assert story.pond.map("cable").get(key) == story.model("cable").answer(key)
    finally:
        run("ip", "netns", "exec", SPACE, "ip", "link", "set", FAR, "up")
    patient(story, lambda: story.load("cable", 1))
    patient(story, lambda: story.load("cable", 2))
    story.check()
