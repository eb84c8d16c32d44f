"""The routes of a node, by what they serve; `table.py` states the right, the limit and the class of work of each."""
