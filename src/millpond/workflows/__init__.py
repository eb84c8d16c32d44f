"""Workflows: specifications of steps, and runs of them that survive every crash."""
