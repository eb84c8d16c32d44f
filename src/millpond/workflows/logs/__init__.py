"""Logs of commands in partitions: the protocol and its drivers."""

from millpond.workflows.logs.protocol import CommandLog, Entry, Following

__all__ = ("CommandLog", "Entry", "Following")
