"""A pond and its follower, in one process, through loads, maintenance, faults and crashes: all of it from one seed."""

from __future__ import annotations

from tests.harness.simulation.simulation import simulate

__all__ = ("simulate",)
