"""Shared by all tests: Hypothesis without deadlines (kernels compile on first use).

`quick` is what `make test` runs; `pytest --hypothesis-profile=full` looks much further, `explore` shows the first
failure as it was found, without making it smaller. `HYPOTHESIS_PROFILE=ci`, as CI sets it, tries the same things in
every run: what fails there is the change that is tested, and what chance finds is found where somebody looks.
"""

from __future__ import annotations

import functools
import itertools
import os
from typing import TYPE_CHECKING

import pytest
import typer.testing
from hypothesis import HealthCheck, Phase, settings

from millpond.stores.objects import ObjectStore, open_objects
from tests.s3_server import S3Server, running

if TYPE_CHECKING:
    from collections.abc import Iterator

os.environ.setdefault("MILLPOND_EVENTS_REPORTS", "off")  # tests of other things count syncs, steps and streams

# The tree of commands is the same for every run of one: to build it takes a tenth of a second.
typer.testing._get_command = functools.cache(typer.testing._get_command)  # type: ignore[attr-defined]

_SLOW_IS_FINE = [HealthCheck.too_slow, HealthCheck.data_too_large]
_FOUND = (Phase.explicit, Phase.reuse, Phase.generate)

settings.register_profile("quick", deadline=None, max_examples=30, suppress_health_check=_SLOW_IS_FINE)
settings.register_profile("ci", settings.get_profile("quick"), derandomize=True)
settings.register_profile("full", deadline=None, max_examples=500, suppress_health_check=_SLOW_IS_FINE)
settings.register_profile(
    "explore", deadline=None, max_examples=100, phases=_FOUND, suppress_health_check=_SLOW_IS_FINE
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))

_BUCKETS = itertools.count()


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A real S3 server, started when a test first asks for it."""
    with running(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture
def bucket(s3_server: S3Server) -> ObjectStore:
    """Objects of a fresh bucket, below a prefix."""
    return open_objects(f"{s3_server.make_bucket(f'bucket-{next(_BUCKETS)}')}/some/prefix", **s3_server.config())
