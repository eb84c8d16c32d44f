"""The cases of LittleHorse's own suite, and the defects that it is known for, by number: each has a test.

This is the list of them; a test that is renamed or removed without another in its place fails here.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODELS, DATA = "tests/models/workflows", "tests/data/workflows"
DEFINITIONS, DEFECTS = f"{MODELS}/test_definitions.py", f"{MODELS}/test_known_defects.py"
FAMILIES, WIDE = f"{MODELS}/test_families.py", f"{MODELS}/test_wide_runs.py"
QUEUE = f"{MODELS}/test_thread_queue.py"
STORE, PROCESSOR = "tests/models/test_run_store_model.py", "tests/unit/test_processor.py"
CLIENT, POLLING = "tests/workflows/test_client.py", "tests/workflows/test_polling.py"
TENANCY = "tests/workflows/test_tenancy.py"
FILTERS, RESTART = "tests/unit/test_run_filters.py", "tests/unit/test_processor_restart.py"
SCENARIO = "test_scenario"
KILLED = "test_runs_end_though_the_server_is_killed"

# A case without an entry here is the scenario file of its number.
CASE_TESTS: dict[int, list[tuple[str, str]]] = {
    1: [(DEFINITIONS, "test_case_1_a_task_is_defined_once")],
    2: [(DEFINITIONS, "test_case_2_versions_of_a_specification")],
    3: [(DEFINITIONS, "test_case_3_a_frozen_variable_never_changes_its_type")],
    13: [(DEFECTS, "test_case_13_an_attempt_is_handed_out_once"),
         (POLLING, "test_case_13_an_attempt_is_handed_out_once_though_the_server_is_killed")],
    31: [(DEFINITIONS, "test_case_31_masked_values_are_clear_for_workers_alone")],
    32: [(FAMILIES, "test_case_32_a_child_shares_the_variables_that_it_inherits")],
    33: [(FAMILIES, "test_case_33_a_child_run_ends_its_parents_wait"),
         (FAMILIES, "test_case_33_a_missing_specification_fails_the_node")],
    37: [(DEFINITIONS, "test_case_37_retention_deletes_the_run")],
    39: [(DEFECTS, "test_case_39_a_large_run_is_deleted_whole_and_only_it"),
         (PROCESSOR, "test_a_large_run_is_deleted_to_its_end")],
    40: [(FILTERS, "test_case_40_each_run_is_found_once_while_runs_are_added"),
         (STORE, "test_pages_joined_hold_what_stays_and_nothing_twice")],
    41: [(TENANCY, "test_a_quota_says_when_to_come_again"), (TENANCY, "test_the_public_client_waits_for_its_quota")],
    42: [(CLIENT, "test_a_program_registers_runs_and_reads")],
    43: [(DEFINITIONS, "test_case_43_an_oversized_output_fails_the_attempt_with_a_reason")],
    44: [(FAMILIES, "test_case_44_checkpoints")],
    45: [(STORE, "test_the_store_is_as_the_model"),
         ("tests/crash/test_runs_kills.py", "test_a_migration_that_is_killed_loses_and_doubles_nothing")],
    46: [(RESTART, "test_case_46_what_was_queued_asleep_and_running_goes_on")],
    47: [(POLLING, "test_case_47_a_stream_ends_with_unavailable_when_the_server_stops"), (CLIENT, KILLED)],
}  # fmt: skip

# The order is that of the list of what is wrong. One whose cause cannot exist here has the test of what holds instead.
DEFECT_TESTS: dict[str, list[tuple[str, str]]] = {
    "#2303 an object too large for the log is dropped in silence": [
        (DEFECTS, "test_a_variable_that_grows_too_large_fails_its_node_by_name")],
    "#2527 runs with 60 child threads die": [(DEFECTS, "test_a_run_with_many_child_threads_completes")],
    "#2357 more threads than the limit leave orphans": [
        (WIDE, "test_more_threads_than_a_run_may_have_end_in_an_error_that_names_the_limit"),
        (QUEUE, "test_queued_threads_of_a_run_that_failed_stay_halted_until_it_is_rescued")],
    "#476 reads are stale after a change of owner": [(PROCESSOR, "test_a_reply_is_there_to_be_read")],
    "#1007 searches fail while partitions move": [(STORE, "test_pages_joined_hold_what_stays_and_nothing_twice")],
    "#1753 a task is handed out twice": [(DEFECTS, "test_case_13_an_attempt_is_handed_out_once")],
    "#1789 a stopped run does not show it": [
        (DEFECTS, "test_a_run_that_is_stopped_shows_it_and_one_that_is_resumed_too")],
    "#607 a worker asks for nothing after a break": [(CLIENT, KILLED)],
    "#684 inputs of handlers are not checked": [
        (DEFECTS, "test_the_input_of_an_interrupt_handler_has_the_type_of_its_event"),
        (DEFECTS, "test_a_handler_that_could_never_start_is_refused")],
    "#859 errors do not name the variable": [(DEFECTS, "test_a_mutation_that_fails_names_its_variable")],
    "events of workflows cannot be registered by the client's own function": [
        (CLIENT, "test_a_program_registers_runs_and_reads")],
    "a resumed run shows that it is halted": [
        (DEFECTS, "test_a_run_that_is_stopped_shows_it_and_one_that_is_resumed_too")],
    "a child run cannot be resumed": [(DEFECTS, "test_a_child_run_is_resumed_and_rescued_under_its_whole_id")],
    "unexpected failures reach the caller without a word": [
        (PROCESSOR, "test_a_mistake_of_the_program_is_recorded_and_the_next_command_goes_on")],
    "a timeout that was not cancelled ends a later attempt": [
        (DEFECTS, "test_a_timeout_of_an_ended_attempt_changes_nothing")],
    "a schedule put again starts its runs twice": [(f"{MODELS}/test_scenarios.py", SCENARIO)],
    "a malformed bookmark is taken for none": [(CLIENT, "test_a_program_registers_runs_and_reads")],
}  # fmt: skip


def test_every_case_and_every_defect_is_listed() -> None:
    files = {int(found[1]) for path in (ROOT / DATA).iterdir() if (found := re.match(r"case_(\d+)_", path.name))}
    assert set(CASE_TESTS) | files == set(range(1, 48))
    assert not set(CASE_TESTS) & files
    assert len(DEFECT_TESTS) == 17


@pytest.mark.parametrize("at", [*CASE_TESTS, *DEFECT_TESTS])
def test_what_is_listed_exists(at: int | str) -> None:
    for path, name in CASE_TESTS.get(at, []) + DEFECT_TESTS.get(str(at), []):  # type: ignore[arg-type]
        defined = re.findall(r"^(?:async )?def (test_\w+)\(", (ROOT / path).read_text(), re.MULTILINE)
        assert name in defined, f"{at}: no {name} in {path}"
