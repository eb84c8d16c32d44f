"""Specifications that the scenarios run, written with the client's own language."""

from __future__ import annotations

from collections.abc import Callable

from littlehorse.model import (
    ExponentialBackoffRetryPolicy,
    LHErrorType,
    PutWfSpecRequest,
    ThreadRetentionPolicy,
    WaitForThreadsStrategy,
)
from littlehorse.workflow import SpawnedThreads, Workflow, WorkflowThread

Initializer = Callable[[WorkflowThread], None]


def one_task(wf: WorkflowThread) -> None:
    name = wf.declare_str("name").required()
    greeting = wf.declare_str("greeting")
    greeting.assign(wf.execute("greet", name))
    wf.complete(greeting)


def retried(wf: WorkflowThread) -> None:
    wf.execute("work", retries=2)


def delayed(wf: WorkflowThread) -> None:
    wf.execute(
        "work",
        retries=2,
        exponential_backoff=ExponentialBackoffRetryPolicy(base_interval_ms=500, multiplier=2, max_delay_ms=60_000),
    )


def timed(wf: WorkflowThread) -> None:
    wf.execute("work", retries=1, timeout_seconds=2)


def handled(wf: WorkflowThread) -> None:
    result = wf.declare_str("result", "untouched")
    node = wf.execute("work")
    wf.handle_any_failure(node, lambda handler: handler.execute("repair"))
    result.assign("changed")


def errors_only(wf: WorkflowThread) -> None:
    node = wf.execute("work")
    wf.handle_error(node, lambda handler: None)


def exceptions_only(wf: WorkflowThread) -> None:
    node = wf.execute("work")
    wf.handle_exception(node, lambda handler: None)


def task_errors(wf: WorkflowThread) -> None:
    node = wf.execute("work", timeout_seconds=2)
    wf.handle_error(node, lambda handler: None, LHErrorType.TASK_ERROR)


def awaits(wf: WorkflowThread) -> None:
    seen = wf.declare_str("seen")
    seen.assign(wf.wait_for_event("ready"))


def awaits_in_time(wf: WorkflowThread) -> None:
    wf.wait_for_event("ready", timeout=1)


def interrupted(wf: WorkflowThread) -> None:
    seen = wf.declare_str("seen")
    noted = wf.declare_str("noted")

    def handler(inner: WorkflowThread) -> None:
        content = inner.declare_str("INPUT")
        inner.execute("repair")
        noted.assign(content)

    wf.add_interrupt_handler("alarm", handler)
    seen.assign(wf.wait_for_event("ready"))


def interrupted_task(wf: WorkflowThread) -> None:
    result = wf.declare_str("result")
    wf.add_interrupt_handler("alarm", lambda handler: handler.execute("repair"))
    result.assign(wf.execute("greet", "you"))


def interrupted_child(wf: WorkflowThread) -> None:
    def child(inner: WorkflowThread) -> None:
        inner.add_interrupt_handler("alarm", lambda handler: handler.execute("repair"))
        inner.wait_for_event("ready")

    wf.wait_for_threads(SpawnedThreads.from_list(wf.spawn_thread(child, "child")))


def interrupted_parent(wf: WorkflowThread) -> None:
    wf.add_interrupt_handler("alarm", lambda handler: handler.execute("repair"))
    child = wf.spawn_thread(lambda inner: inner.wait_for_event("ready"), "child")
    wf.wait_for_threads(SpawnedThreads.from_list(child))


def _two_children(strategy: WaitForThreadsStrategy) -> Initializer:
    def body(wf: WorkflowThread) -> None:
        first = wf.spawn_thread(lambda inner: inner.execute("work"), "first")
        second = wf.spawn_thread(lambda inner: inner.execute("repair"), "second")
        wf.wait_for_threads(SpawnedThreads.from_list(first, second), strategy=strategy)

    return body


def per_element(wf: WorkflowThread) -> None:
    items = wf.declare_json_arr("items").required()

    def child(inner: WorkflowThread) -> None:
        item = inner.declare_str("INPUT")
        inner.execute("greet", item)

    waited = wf.wait_for_threads(wf.spawn_thread_for_each(items, child, "element"))
    waited.handle_exception_on_child(lambda handler: handler.execute("repair"), "sad")


def sleeping_elements(wf: WorkflowThread) -> None:
    items = wf.declare_json_arr("items").required()

    def child(inner: WorkflowThread) -> None:
        inner.declare_str("INPUT")
        inner.sleep(1)

    wf.wait_for_threads(wf.spawn_thread_for_each(items, child, "element"))


def loops_over_events(wf: WorkflowThread) -> None:
    count = wf.declare_int("count", 0)

    def body(inner: WorkflowThread) -> None:
        count.assign(count.add(1))
        inner.wait_for_event("ready")
        inner.throw_event("progress", count)

    wf.do_while(count.is_greater_than(-1), body)


def condition(wf: WorkflowThread) -> None:
    count = wf.declare_int("count", 0)

    def child(inner: WorkflowThread) -> None:
        inner.execute("work")
        count.assign(count.add(5))

    wf.spawn_thread(child, "child")
    wf.wait_for_condition(count.is_greater_than(4))


def sleeps(wf: WorkflowThread) -> None:
    wf.sleep(10)


def sleeps_until(wf: WorkflowThread) -> None:
    moment = wf.declare_int("moment").required()

    def handler(inner: WorkflowThread) -> None:
        moved = inner.declare_int("INPUT")
        moment.assign(moved)

    wf.add_interrupt_handler("moved", handler)
    wf.sleep_until(moment)


def branches(wf: WorkflowThread) -> None:
    number = wf.declare_int("number").required()
    size = wf.declare_str("size")

    def small(inner: WorkflowThread) -> None:
        size.assign("small")

    def large(inner: WorkflowThread) -> None:
        size.assign("large")

    wf.do_if(number.is_less_than(10), small, large)
    wf.complete(wf.format("{0} is {1}", number, size))


def loops(wf: WorkflowThread) -> None:
    count = wf.declare_int("count", 0)
    limit = wf.declare_int("limit").required()
    wf.do_while(count.is_less_than(limit), lambda inner: count.assign(count.add(1)))


def atomic(wf: WorkflowThread) -> None:
    a = wf.declare_int("a", 1)
    b = wf.declare_int("b", 1)
    wf.execute("work")
    a.assign(a.add(1))
    b.assign(a.divide(0))


def masked(wf: WorkflowThread) -> None:
    secret = wf.declare_str("secret").required().masked()
    wf.execute("greet", secret)


def throws(wf: WorkflowThread) -> None:
    wf.throw_event("progress", wf.declare_int("number", 7))
    wf.throw_event("progress", 8)


def raises(wf: WorkflowThread) -> None:
    wf.fail("out-of-stock", "nothing is left")


def child_fails(wf: WorkflowThread) -> None:
    child = wf.spawn_thread(lambda inner: inner.execute("work"), "child")
    wf.wait_for_threads(SpawnedThreads.from_list(child))


def json_parts(wf: WorkflowThread) -> None:
    order = wf.declare_json_obj("order").required()
    total = wf.declare_int("total")
    first = wf.declare_str("first")
    missing = wf.declare_str("missing")
    total.assign(order.with_json_path("$.lines.length()"))
    first.assign(order.with_json_path("$.lines[0].item"))
    missing.assign(order.with_json_path("$.none"))


def sibling_scope(wf: WorkflowThread) -> None:
    holder: list[object] = []

    def first(inner: WorkflowThread) -> None:
        holder.append(inner.declare_str("own", "mine"))
        inner.wait_for_event("ready")

    wf.spawn_thread(first, "first")
    second = wf.spawn_thread(lambda inner: inner.execute("greet", holder[0]), "second")
    wf.wait_for_threads(SpawnedThreads.from_list(second))


def approves(wf: WorkflowThread) -> None:
    user = wf.declare_str("user")
    answer = wf.declare_json_obj("answer")
    answer.assign(wf.assign_user_task("approval", user, "staff"))


def reassigns(wf: WorkflowThread) -> None:
    task = wf.assign_user_task("approval", "ann", "staff")
    wf.release_to_group_on_deadline(task, 10)


def reminds(wf: WorkflowThread) -> None:
    task = wf.assign_user_task("approval", "ann")
    wf.schedule_reminder_task(task, 5, "greet", "ann")
    wf.cancel_user_task_run_after(task, 60)


def cancels_by_name(wf: WorkflowThread) -> None:
    task = wf.assign_user_task("approval", None, "staff")
    task.with_on_cancellation_exception("no-answer")
    wf.handle_exception(task, lambda handler: handler.execute("repair"), "no-answer")


def person_interrupted(wf: WorkflowThread) -> None:
    wf.add_interrupt_handler("alarm", lambda handler: handler.execute("repair"))
    wf.assign_user_task("approval", "ann")


def correlates(wf: WorkflowThread) -> None:
    key = wf.declare_str("key")
    seen = wf.declare_str("seen")
    seen.assign(wf.wait_for_event("paid", timeout=100, correlation_id=key))


def correlates_once(wf: WorkflowThread) -> None:
    key = wf.declare_str("key").required()
    wf.wait_for_event("once", correlation_id=key, mask_correlation_id=True)


def correlates_for_ever(wf: WorkflowThread) -> None:
    key = wf.declare_str("key").required()
    wf.do_while(key.is_equal_to(key), lambda inner: inner.wait_for_event("paid", correlation_id=key) and None)


def short_lived(wf: WorkflowThread) -> None:
    """Children of which one is archived at once, before its parent waits for it, and one after a minute."""

    def at_once(inner: WorkflowThread) -> None:
        inner.with_retention_policy(ThreadRetentionPolicy(seconds_after_thread_termination=0))

    def after_a_minute(inner: WorkflowThread) -> None:
        inner.with_retention_policy(ThreadRetentionPolicy(seconds_after_thread_termination=60))
        inner.execute("work")

    first = wf.spawn_thread(at_once, "first")
    second = wf.spawn_thread(after_a_minute, "second")
    wf.wait_for_event("ready")
    wf.wait_for_threads(SpawnedThreads.from_list(first, second))
    third = wf.spawn_thread(at_once, "third")
    wf.wait_for_threads(SpawnedThreads.from_list(third))
    wf.wait_for_event("ready")


def spawns_for_ever(wf: WorkflowThread) -> None:
    count = wf.declare_int("count", 0)

    def child(inner: WorkflowThread) -> None:
        count.assign(count.add(1))

    def body(inner: WorkflowThread) -> None:
        inner.wait_for_threads(SpawnedThreads.from_list(inner.spawn_thread(child, "child")))
        inner.sleep(1)

    wf.do_while(count.is_greater_than(-1), body)


SPECS: dict[str, Initializer] = {
    name.replace("_", "-"): body
    for name, body in {
        "one_task": one_task,
        "retried": retried,
        "delayed": delayed,
        "timed": timed,
        "handled": handled,
        "errors_only": errors_only,
        "exceptions_only": exceptions_only,
        "task_errors": task_errors,
        "awaits": awaits,
        "awaits_in_time": awaits_in_time,
        "interrupted": interrupted,
        "interrupted_task": interrupted_task,
        "interrupted_child": interrupted_child,
        "interrupted_parent": interrupted_parent,
        "wait_all": _two_children(WaitForThreadsStrategy.WAIT_FOR_ALL),
        "wait_any": _two_children(WaitForThreadsStrategy.WAIT_FOR_ANY),
        "wait_first": _two_children(WaitForThreadsStrategy.WAIT_FOR_FIRST),
        "per_element": per_element,
        "sleeping_elements": sleeping_elements,
        "loops_over_events": loops_over_events,
        "condition": condition,
        "sleeps": sleeps,
        "sleeps_until": sleeps_until,
        "branches": branches,
        "loops": loops,
        "atomic": atomic,
        "masked": masked,
        "throws": throws,
        "raises": raises,
        "child_fails": child_fails,
        "json_parts": json_parts,
        "sibling_scope": sibling_scope,
        "approves": approves,
        "reassigns": reassigns,
        "reminds": reminds,
        "cancels_by_name": cancels_by_name,
        "person_interrupted": person_interrupted,
        "correlates": correlates,
        "correlates_once": correlates_once,
        "correlates_for_ever": correlates_for_ever,
        "short_lived": short_lived,
        "spawns_for_ever": spawns_for_ever,
    }.items()
}


def request(name: str) -> PutWfSpecRequest:
    """The request that registers a specification."""
    return Workflow(name, SPECS[name]).compile()
