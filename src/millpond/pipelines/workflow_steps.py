"""A pipeline: steps of a workflow, declared with the DSL of the SDK."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from littlehorse.model import ExponentialBackoffRetryPolicy
from littlehorse.workflow import LHExpression, NodeOutput, WfRunVariable, WorkflowThread

from millpond.errors import Invalid
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

Computed = WfRunVariable | NodeOutput | LHExpression
"""A value of the run: a variable, the output of a step, or what is computed of them."""
Text = str | Computed


class Pipeline:
    """Steps that follow one another in a thread of a workflow.

    Any input may be a variable of the run, or the output of a step, in place of a value; it is the whole input then,
    and not a field of it. Values are checked here, before anything runs. Each verb
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
        self, map: Text, rows: Rows | Mapping[str, Any] | Computed,
        options: Target | Mapping[str, Any] | Computed | None = None,
    ) -> NodeOutput:  # fmt: skip
        """Load the rows of a query into a map; with `kind` in the options the map is made when it is missing.

        Raises: `Invalid` for a description that is not understood.
        """
        return self._step("load", map, _value(rows, parse_rows), _value(options or Target(), parse_target))

    def check(
        self, map: Text, rules: Rules | Mapping[str, Any] | Computed,
        rows: Rows | Mapping[str, Any] | Computed | None = None,
    ) -> NodeOutput:  # fmt: skip
        """Hold rows against rules before they are loaded, or without rows those of the map. Failing is `check-failed`.

        Raises: as `load`.
        """
        return self._step("check", map, {} if rows is None else _value(rows, parse_rows), _value(rules, parse_rules))

    def enrich(
        self, rows: Rows | Mapping[str, Any] | Computed,
        lookups: Sequence[Question | Mapping[str, Any]] | Computed, out: Text,
    ) -> NodeOutput:  # fmt: skip
        """Write rows with what maps know about each into a new folder below `out`; the output's `path` names it.

        Raises: as `load`.
        """
        questions = lookups if isinstance(lookups, Computed) else _value(list(lookups), parse_questions)
        return self._step("enrich", _value(rows, parse_rows), questions, out)

    def condense(self, map: Text, before: Text = "") -> NodeOutput:
        """Condense a map, up to a time or by its setting."""
        return self._step("condense", map, before)

    def retain(self, map: Text, before: Text = "") -> NodeOutput:
        """Delete old rows of a map, those before a time or by its setting."""
        return self._step("retain", map, before)

    def notify(self, queue: Text, job_set: Text, kind: Text, message: Mapping[str, Any] | Computed) -> NodeOutput:
        """Append an event to a stream of the pond.

        Raises: `Invalid` for a value of the run inside the message, which would not be sent as what it is.
        """
        return self._step("notify", queue, job_set, kind, _value(message, dict))

    def _step(self, task: str, *inputs: Any) -> NodeOutput:
        return self.thread.execute(
            task, *inputs, retries=self._retries, timeout_seconds=self._timeout, exponential_backoff=self._backoff
        )


def _value(value: Any, parse: Any) -> Any:
    """A value of the run as it is; another when it is understood, as JSON."""
    if isinstance(value, Computed):
        return value
    _refuse_computed(value, "")
    return plain(parse(plain(value)))


def _refuse_computed(value: Any, field: str) -> None:
    """Refuse values of the run inside an input: the client would send the text of its own object."""
    if isinstance(value, Computed):
        raise Invalid("a value of the run may be a whole input, and not a field of it", kind="pipeline_input",
                      field=field, hint="give the output or the variable as the input itself")  # fmt: skip
    if isinstance(value, Mapping):
        for name, inner in value.items():
            _refuse_computed(inner, f"{field}.{name}".lstrip("."))
    elif isinstance(value, list | tuple):
        for number, inner in enumerate(value):
            _refuse_computed(inner, f"{field}[{number}]")
