"""The pages of the console: values in, text out. `server/console/` serves them."""

from __future__ import annotations

from millpond.console.charts import Span, bars, commit_graph, steps, strip
from millpond.console.flows import Flow, flow_graph
from millpond.console.rendering import asset, link, rendered, segment

__all__ = (
    "Flow", "Span", "asset", "bars", "commit_graph", "flow_graph", "link", "rendered", "segment", "steps", "strip",
)  # fmt: skip
