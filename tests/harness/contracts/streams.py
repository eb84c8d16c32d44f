"""The contract of every backend of streams, as tests: subclass `StreamContract` in a module that pytest collects.

    class TestMine(StreamContract):
        @pytest.fixture
        def site(self): ...             # a `StreamSite`, empty for each test

A site is a place with streams: it has a clock that tests move, and opens any number of stores, as processes do.
"""

from __future__ import annotations

import pytest

from millpond.events.protocol import StreamStore
from tests.harness.contracts.stream_appends import AppendContract
from tests.harness.contracts.stream_days import DayContract
from tests.harness.contracts.stream_deletions import DeletionContract
from tests.harness.contracts.stream_filters import FilterContract
from tests.harness.contracts.stream_registry import RegistryContract
from tests.harness.contracts.stream_site import StreamSite

__all__ = ("StreamContract",)


class StreamContract(AppendContract, DayContract, DeletionContract, FilterContract, RegistryContract):
    """The promises of `millpond.events` and of `StreamStore`."""

    @pytest.fixture
    def store(self, site: StreamSite) -> StreamStore:
        """A store of the site."""
        return site.open()
