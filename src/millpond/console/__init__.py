"""The pages of the console: values in, text out. `server/console/` serves them."""

from __future__ import annotations

from millpond.console.charts import bars, commit_graph
from millpond.console.flows import Flow, flow_graph
from millpond.console.rendering import asset, link, rendered, segment

__all__ = ("Flow", "asset", "bars", "commit_graph", "flow_graph", "link", "rendered", "segment")
