"""Branches of maps over a node: the tests of those in a folder, as they are.

Tests that look into the files of a folder stay there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import millpond
from millpond.clock import ManualClock
from tests.nodes.conftest import Served
from tests.unit.test_map_branches import (  # noqa: F401 (they are collected here, too)
    test_a_field_that_was_dropped_does_not_come_back_by_a_revert,
    test_a_load_on_a_branch_is_a_commit_that_others_do_not_see,
    test_a_load_on_main_between_the_look_and_the_merge_is_not_lost,
    test_a_load_with_an_id_is_entered_once_on_its_branch,
    test_a_map_that_was_never_loaded_is_the_same_wherever_somebody_looked_at_it,
    test_a_resolution_of_a_range_by_no_number_fits_nothing,
    test_conflicts_are_table_by_key_and_resolved_by_map_prefix_or_key,
    test_criss_cross_merges_bring_each_change_once,
    test_differences_are_a_table,
    test_each_load_on_main_is_a_commit_with_its_time,
    test_files_are_loaded_on_a_branch_as_one_commit,
    test_maps_are_made_on_branches_and_come_by_merges,
    test_names_of_branches,
    test_revert_cherry_pick_restore_and_reset,
    test_rows_are_deleted_on_a_branch_as_one_commit,
    test_the_objects_of_maps_are_only_read_as_objects,
    test_the_same_field_added_on_both_sides_is_one_and_others_of_its_name_are_refused,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from millpond.maps.protocols import PondLike

pytestmark = [pytest.mark.usefixtures("process"), pytest.mark.sample(6, of="file")]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(now=1_700_000_000_000)


@pytest.fixture
def pond(tmp_path: Path, clock: ManualClock) -> Iterator[PondLike]:
    node = Served(clock, server_data=str(tmp_path / "pond"), server_port=0)
    try:
        with millpond.open(node.url, client_cache=str(tmp_path / "cache")) as opened:
            opened.create_map("m", kind="state", value="long", store="layers")
            opened.create_map("n", kind="temporal_state", value="long", store="layers")
            yield opened
    finally:
        node.close()
