"""The behaviours of Armada's events, and the errors of its first design for a stream a day, by number: each has a test.

This is the list of them; a test that is renamed or removed without another in its place fails here.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BEHAVIOURS, CONTRACTS = "tests/unit/test_streams_behaviours.py", "tests/harness/contracts"
ARMADA, CLIENT = "tests/armada/test_behaviours.py", "tests/armada/test_client.py"
APPENDS, DAYS = f"{CONTRACTS}/stream_appends.py", f"{CONTRACTS}/stream_days.py"
REGISTRY, CODEC = f"{CONTRACTS}/stream_registry.py", "tests/unit/test_streams_codec.py"
UPKEEP, WATCHERS = "tests/unit/test_streams_maintenance.py", "tests/unit/test_streams_watchers.py"
CLI, JOINED = "tests/cli/test_events.py", "tests/unit/test_joined_batches.py"

_OF_THE_STORE = {
    number: [(BEHAVIOURS, "")] for number in (1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 13, *range(35, 47))
}  # fmt: skip

# Where Armada's ingester has no counterpart here, the test shows what holds in its place.
BEHAVIOUR_TESTS: dict[int, list[tuple[str, str]]] = _OF_THE_STORE | {
    9: [(ARMADA, "test_events_that_are_none_of_the_api_are_left_out_and_nothing_is_sent_twice")],
    12: [(ARMADA, "test_health_is_serving")],
    14: [(ARMADA, "test_an_unknown_queue_is_not_found")],
    15: [(ARMADA, "test_error_if_missing")],
    16: [("tests/armada/test_hostile.py", "test_rights_are_those_of_the_token")],
    17: [(ARMADA, "test_reading_fills_in_the_queue_the_job_set_the_job_and_the_time")],
    18: [(ARMADA, "test_submitting_gives_submitted_then_queued_with_one_time")],
    19: [(ARMADA, "test_events_that_are_none_of_the_api_are_left_out_and_nothing_is_sent_twice")],
    20: [(ARMADA, "test_a_failure_may_be_retryable_and_has_its_category")],
    21: [(ARMADA, "test_the_requestor_is_named_and_reasons_of_cancellations_are_not_stored")],
    22: [(ARMADA, "test_reading_fills_in_the_queue_the_job_set_the_job_and_the_time")],
    23: [(ARMADA, "test_the_requestor_is_named_and_reasons_of_cancellations_are_not_stored")],
    24: [(CODEC, "test_what_does_not_compress_is_stored_plain")],
    25: [(CODEC, "test_what_is_encoded_is_decoded")],
    26: [(APPENDS, "test_several_streams_are_appended_at_once")],
    27: [(JOINED, "test_joined_batches_have_the_outcomes_of_their_members")],
    28: [(JOINED, "test_single_events_are_joined_up_to_a_size")],
    29: [(UPKEEP, "test_batches_hold_up_to_their_limit_and_a_larger_event_has_its_own")],
    30: [(APPENDS, "test_an_empty_batch_is_nothing"), (JOINED, "test_single_events_are_joined_up_to_a_size")],
    31: [("tests/crash/test_redis_kills.py", "test_a_server_that_is_killed_has_every_batch_that_it_acknowledged")],
    32: [(REGISTRY, "test_the_registry_lists_what_is_due_oldest_first")],
    33: [(CLIENT, "test_the_client_works_unmodified"),
         (CLIENT, "test_a_silent_stream_is_taken_up_again_from_the_last_id")],
    34: [(CLI, "test_events_out_of_order_and_failures_that_are_tried_again_end_no_story_too_early_or_never")],
}  # fmt: skip

ERROR_TESTS: dict[int, list[tuple[str, str]]] = {
    1: [(DAYS, "test_days_follow_the_times_of_events_and_never_go_back")],
    2: [(DAYS, "test_events_and_ids_are_the_same_after_compression")],
    3: [(REGISTRY, "test_names_of_any_characters_never_share_a_stream")],
    4: [(DAYS, "test_days_follow_the_times_of_events_and_never_go_back"),
        (DAYS, "test_a_producer_far_ahead_takes_the_stream_no_further_than_the_allowance")],
    5: [(APPENDS, "test_ids_grow_whatever_the_clock_does"),
        (APPENDS, "test_positions_outlive_compression_and_expiry")],
    6: [(APPENDS, "test_events_of_one_message_share_a_position")],
    7: [(CODEC, "test_a_batch_is_resumed_anywhere_and_cut_anywhere")],
    8: [(APPENDS, "test_reading_goes_on_after_every_id")],
    9: [(BEHAVIOURS, "test_43_a_reader_over_midnight_without_traffic_gets_the_next_event")],
    10: [(BEHAVIOURS, "test_38_an_expired_day_is_no_endless_poll")],
    11: [(DAYS, "test_a_switch_that_ends_half_way_leaves_a_readable_stream"),
         ("tests/crash/test_redis_kills.py", "test_a_client_that_is_killed_at_any_step_leaves_a_readable_stream")],
    12: [(DAYS, "test_late_events_never_recreate_a_day_though_the_clock_went_back")],
    13: [(WATCHERS, "test_a_watch_across_compression_and_expiry")],
    14: [(DAYS, "test_a_switch_is_fenced")],
    15: [(DAYS, "test_expired_days_leave_the_index_and_the_readers"), (WATCHERS, "test_a_missed_day_is_a_gap"),
         (DAYS, "test_a_stream_without_events_is_forgotten_in_time"), (ARMADA, "test_error_if_missing")],
    16: [(APPENDS, "test_a_page_is_bounded_by_bytes_and_reads_on")],
    17: [(DAYS, "test_neighbours_are_folded_into_one_segment"),
         (UPKEEP, "test_days_of_one_event_are_folded_into_one_batch")],
    18: [(REGISTRY, "test_the_registry_lists_what_is_due_oldest_first"),
         (UPKEEP, "test_a_pace_is_held_and_a_stop_ends_the_work")],
    19: [(CODEC, "test_what_is_encoded_is_decoded"), (CODEC, "test_another_format_is_named")],
    20: [(DAYS, "test_a_reader_in_mid_stream_loses_nothing_and_sees_nothing_twice"),
         (ARMADA, "test_a_stream_of_a_queue_that_was_deleted_can_be_read"),
         (WATCHERS, "test_many_watchers_share_one_reader"),
         ("tests/contracts/test_redis_store.py", "test_a_server_that_evicts_keys_is_refused"),
         ("tests/contracts/test_redis_store.py",
          "test_a_replica_takes_over_and_what_was_uncertain_is_delivered_again")],
}  # fmt: skip


def test_none_is_left_out() -> None:
    assert sorted(BEHAVIOUR_TESTS) == list(range(1, 47)) and sorted(ERROR_TESTS) == list(range(1, 21))


@pytest.mark.parametrize("number", sorted(BEHAVIOUR_TESTS))
def test_a_behaviour_has_its_tests(number: int) -> None:
    for file, name in BEHAVIOUR_TESTS[number]:
        pattern = rf"def {name}\(" if name else rf"def test_(\d+_)*{number}_"
        assert re.search(pattern, (ROOT / file).read_text()), (file, name)


@pytest.mark.parametrize("number", sorted(ERROR_TESTS))
def test_an_error_of_the_first_design_has_its_tests(number: int) -> None:
    for file, name in ERROR_TESTS[number]:
        assert f"def {name}(" in (ROOT / file).read_text(), (file, name)
