"""The pages of the console: values in, text out. `server/console/` serves them."""

from millpond.console.charts import Span, bars, captioned, commit_graph, steps, strip
from millpond.console.flows import Flow, flow_graph
from millpond.console.rendering import asset, link, moment, rendered, segment

__all__ = (
    "Flow", "Span", "asset", "bars", "captioned", "commit_graph", "flow_graph", "link", "moment", "rendered", "segment",
    "steps", "strip",
)  # fmt: skip
