"""The contract of every pond, as tests: subclass `PondContract` in a module that pytest collects.

    class TestMine(PondContract):
        @pytest.fixture(scope="class")
        def pond(self, tmp_path_factory): ...        # open; loads are merged when they return

The pond may be shared by all tests: each makes maps of its own, under names that `fresh` gives. The suite is a sum: of
maps by name, of loads, of lookups, of maintenance, of mistakes, and of handles of maps that are dropped.
"""

from __future__ import annotations

from tests.harness.contracts.catalogue import CatalogueContract
from tests.harness.contracts.dropped import DroppedContract
from tests.harness.contracts.fields import FieldsContract
from tests.harness.contracts.known import KnownContract
from tests.harness.contracts.loads import LoadContract
from tests.harness.contracts.maintenance import MaintenanceContract
from tests.harness.contracts.questions import QuestionContract
from tests.harness.mistakes import MistakesContract

__all__ = ("PondContract",)


class PondContract(
    CatalogueContract,
    FieldsContract,
    KnownContract,
    LoadContract,
    QuestionContract,
    MaintenanceContract,
    MistakesContract,
    DroppedContract,
):
    """Every promise of `maps.api.PondLike` and `maps.api.MapLike`."""
