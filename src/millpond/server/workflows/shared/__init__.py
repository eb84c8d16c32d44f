"""Workflows that several processes share: ownership of partitions, calls among the processes, rows of all of them."""
