"""What every pond must keep, wherever it lies, as tests: subclass `PondContract` in a module that pytest collects.

    class TestMine(PondContract):
        @pytest.fixture(scope="class")
        def pond(self, tmp_path_factory): ...        # open; loads are merged when they return

The pond may be shared by all tests: each makes maps of its own, under names that `fresh` gives. The suite is a sum: of
maps by name, of loads, of questions, of care, and of the mistakes one can make.
"""

from __future__ import annotations

from millpond.testing.care_contract import CareContract
from millpond.testing.catalogue_contract import CatalogueContract
from millpond.testing.load_contract import LoadContract
from millpond.testing.mistakes import MistakesContract
from millpond.testing.question_contract import QuestionContract

__all__ = ("PondContract",)


class PondContract(CatalogueContract, LoadContract, QuestionContract, CareContract, MistakesContract):
    """Every promise of `maps.api.PondLike` and `maps.api.MapLike`."""
