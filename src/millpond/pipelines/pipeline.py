"""A pipeline: steps of a workflow, declared with the DSL of the SDK."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from littlehorse.model import ExponentialBackoffRetryPolicy
from littlehorse.workflow import NodeOutput, WfRunVariable, WorkflowThread

from millpond.json_forms import plain
from millpond.pipelines.requests import (
    Question,
    Rows,
    Rules,
    Target,
    parse_questions,
    parse_rows,
    parse_rules,
    parse_target,
)

__all__ = ("Pipeline",)

RETRIES = 10
TIMEOUT_SECONDS = 600
DELAY_SECONDS_MAX = 30

Text = str | WfRunVariable


class Pipeline:
    """Steps that follow one another in a thread of a workflow.

    Any input may be a variable of the run in place of a value; values are checked here, before anything runs. Each verb
    gives the output of its node, for handlers of failures and for variables.

    `retries` and `timeout_seconds` are those of a step: a step whose worker is lost begins anew after the timeout. The
    delays between attempts double, from half a second up to `delay_seconds_max`.
    """

    def __init__(
        self, thread: WorkflowThread, *, retries: int = RETRIES, timeout_seconds: int = TIMEOUT_SECONDS,
        delay_seconds_max: int = DELAY_SECONDS_MAX,
    ) -> None:  # fmt: skip
        self.thread = thread
        self._retries, self._timeout = retries, timeout_seconds
        self._backoff = ExponentialBackoffRetryPolicy(
            base_interval_ms=500, multiplier=2.0, max_delay_ms=1000 * delay_seconds_max
        )

    def load(
        self, map: Text, rows: Rows | Mapping[str, Any] | WfRunVariable,
        options: Target | Mapping[str, Any] | WfRunVariable | None = None,
    ) -> NodeOutput:  # fmt: skip
        """Load the rows of a query into a map; with `kind` in the options the map is made when it is missing.

        Raises: `Invalid` for a description that is not understood.
        """
        return self._step("load", map, _given(rows, parse_rows), _given(options or Target(), parse_target))

    def check(
        self, map: Text, rules: Rules | Mapping[str, Any] | WfRunVariable,
        rows: Rows | Mapping[str, Any] | WfRunVariable | None = None,
    ) -> NodeOutput:  # fmt: skip
        """Hold rows against rules before they are loaded, or without rows those of the map. Failing is `check-failed`.

        Raises: as `load`.
        """
        return self._step("check", map, {} if rows is None else _given(rows, parse_rows), _given(rules, parse_rules))

    def enrich(
        self, rows: Rows | Mapping[str, Any] | WfRunVariable,
        lookups: Sequence[Question | Mapping[str, Any]] | WfRunVariable, out: Text,
    ) -> NodeOutput:  # fmt: skip
        """Write rows with what maps know about each into a new folder below `out`; the output's `path` names it.

        Raises: as `load`.
        """
        questions = lookups if isinstance(lookups, WfRunVariable) else plain(parse_questions(plain(list(lookups))))
        return self._step("enrich", _given(rows, parse_rows), questions, out)

    def condense(self, map: Text, before: Text = "") -> NodeOutput:
        """Condense a map, up to a time or by its setting."""
        return self._step("condense", map, before)

    def retain(self, map: Text, before: Text = "") -> NodeOutput:
        """Delete old rows of a map, those before a time or by its setting."""
        return self._step("retain", map, before)

    def notify(self, queue: Text, job_set: Text, kind: Text, message: Mapping[str, Any] | WfRunVariable) -> NodeOutput:
        """Append an event to a stream of the pond."""
        return self._step("notify", queue, job_set, kind, message)

    def _step(self, task: str, *inputs: Any) -> NodeOutput:
        return self.thread.execute(
            task, *inputs, retries=self._retries, timeout_seconds=self._timeout, exponential_backoff=self._backoff
        )


def _given(value: Any, parse: Any) -> Any:
    """A variable as it is; a value when it is understood, as JSON."""
    return value if isinstance(value, WfRunVariable) else plain(parse(plain(value)))
