"""Membership: the list of nodes that the log carries, its epochs, and the fence of each node."""
