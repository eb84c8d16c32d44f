"""A shell for the guides."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.docs.shell import Shell


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    with closing(Shell(tmp_path)) as made:
        yield made


@pytest.fixture(autouse=True)
def _process(process: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests of this folder may start processes and open sockets, and make maps where readers of the docs do."""
    monkeypatch.delenv("MILLPOND_MAPS_STORE", raising=False)
