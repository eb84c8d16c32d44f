"""Patterns of tokens: each opens things of one kind."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from millpond.clock import ManualClock
from millpond.errors import Denied, Invalid
from millpond.events.names import StreamName
from millpond.nodes.tokens import Caller, TokenFile, Tokens, draw_access_key
from millpond.server.lakefs.access import may as may_repository
from millpond.server.lakefs.access import need as need_repository
from millpond.server.stream_rights import need_queue, need_stream
from millpond.server.workflows.access import EVERY_TENANT, need_tenant


def test_a_pattern_opens_things_of_one_kind() -> None:
    """The things that each pattern opens: a map, a stream, a tenant, a repository, the node."""

    def opened(pattern: str) -> str:
        caller = Caller("x", {"write": (pattern,)})
        tries: dict[str, Callable[[], object]] = {
            "map": lambda: caller.need("write", "weather"),
            "stream": lambda: need_stream(caller, "write", StreamName("weather", "run")),
            "queue": lambda: need_queue(caller, "write", "weather"),
            "tenant": lambda: need_tenant(caller, "read", "weather"),
            "tenants": lambda: need_tenant(caller, "write", EVERY_TENANT),
            "repository": lambda: need_repository(caller, "write", "weather", "main"),
            "node": lambda: caller.need("write"),
        }
        found = []
        for name, act in tries.items():
            with suppress(Denied):
                act()
                found.append(name)
        return " ".join(found)

    assert opened("weather") == opened("map:*") == opened("map:weath*") == "map"
    assert opened("weather/*") == opened("other:weather") == opened("map:weather/*") == opened("tenant:?") == ""
    assert opened("stream:weather/*") == opened("stream:weather") == opened("stream:*") == "stream queue"
    assert opened("stream:weather/r*") == "stream"
    assert opened("tenant:weather") == "tenant"
    assert opened("tenant:*") == "tenant tenants"
    assert opened("repo:weather/m*") == opened("repo:*") == "repository"
    assert opened("*") == "map stream queue tenant tenants repository node"


def test_a_pattern_that_opens_nothing_is_refused(tmp_path: Path) -> None:
    file, key = TokenFile(tmp_path), draw_access_key(ManualClock())
    for pattern in ("etl/*", "map:etl/*", "tenant:default/*", "maps:etl", "stream:", ":x"):
        with pytest.raises(Invalid, match="stream:etl/night-\\*") as refused:
            file.add("b", "u", {"read": ["weather"], "write": [pattern]})
        assert (refused.value.kind, refused.value.values["pattern"]) == ("token_pattern", pattern)
    with pytest.raises(Invalid, match="opens nothing"):
        file.add("b", "u", {"read": ["map:weather"]}, access_key=key)
    file.add("pair", "u", {"read": ["Flights"], "write": ["repo:flights/fix-*"]}, access_key=key)
    file.add("loader", "v", {"write": ["Weather", "map:Rain", "stream:Etl", "repo:pond/fix-*"]})
    tokens = Tokens(file, (), ManualClock(), required=True)
    pair, loader = tokens.caller_of_pair(key, "u"), tokens.caller("v")
    assert may_repository(pair, "read", "Flights") and may_repository(pair, "write", "flights", "fix-1")
    assert loader.may("write", "weather") and loader.may("write", "rain"), "names of maps have no case"
    need_stream(loader, "write", StreamName("Etl", "x"))
    assert may_repository(loader, "write", "pond", "fix-1") and not may_repository(loader, "write", "pond", "main")
    assert loader.names("repo") and not loader.of_pair and pair.of_pair
