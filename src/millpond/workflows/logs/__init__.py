"""Logs of commands in partitions: the protocol and its drivers."""

from __future__ import annotations

from millpond.workflows.logs.protocol import CommandLog, Entry, Following

__all__ = ("CommandLog", "Entry", "Following")
