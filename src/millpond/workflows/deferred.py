"""The messages of the protocol of workflows, and the engine over them, imported when something of them is asked for.

    from millpond.workflows.deferred import engine, protocol

Commands, and pages of a node, name what they need of these at their top: help, and a node without workflows, import
neither, and the extra `workflows` is missed by who asks for a run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.deferred import DeferredModule

__all__ = ("conversions", "engine", "pipeline_starts", "protocol", "start_inputs")

if TYPE_CHECKING:
    from littlehorse import model as protocol

    from millpond.workflows import engine
    from millpond.workflows.engine import pipeline_starts, start_inputs
    from millpond.workflows.engine.values import conversions
else:
    protocol = DeferredModule("littlehorse.model")
    engine = DeferredModule("millpond.workflows.engine")
    pipeline_starts = DeferredModule("millpond.workflows.engine.pipeline_starts")
    start_inputs = DeferredModule("millpond.workflows.engine.start_inputs")
    conversions = DeferredModule("millpond.workflows.engine.values.conversions")
