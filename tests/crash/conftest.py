"""Tests that end processes."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _process(process: None) -> None:
    """Tests of this folder may start processes and open sockets."""
