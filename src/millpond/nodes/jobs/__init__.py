"""Jobs: what a node does by itself, and when."""
