"""Rows in a dictionary, as bytes, so that a message that was read is never the stored one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

from google.protobuf.message import Message
from littlehorse.model import WfRun

from millpond.workflows.engine import Key, Outcome, Write

M = TypeVar("M", bound=Message)


class MemoryRows:
    """The rows of one tenant, in memory."""

    def __init__(self) -> None:
        self.bytes: dict[tuple[type[Message], Key], bytes] = {}

    def get(self, kind: type[M], key: Key) -> M | None:
        found = self.bytes.get((kind, key))
        return None if found is None else kind.FromString(found)

    def list(self, kind: type[M], prefix: Key) -> Iterator[tuple[Key, M]]:
        keys = sorted(key for own, key in self.bytes if own is kind and key[: len(prefix)] == prefix)
        for key in keys:
            yield key, kind.FromString(self.bytes[kind, key])

    def runs(self, spec: str, status: int, times: tuple[int, int], limit: int) -> list[str]:
        found = []
        for (path,), run in self.list(WfRun, ()):
            at = run.start_time.ToMilliseconds()
            if run.wf_spec_id.name == spec and run.status == status and times[0] <= at <= times[1]:
                found.append((at, str(path)))
        return [path for _, path in sorted(found)[:limit]]

    def write(self, outcome: Outcome) -> None:
        for write in outcome.writes:
            if not isinstance(write, Write):
                for place in [place for place in self.bytes if place[1][0] == write.run]:
                    del self.bytes[place]
            elif write.row is None:
                self.bytes.pop((write.kind, write.key), None)
            else:
                self.bytes[write.kind, write.key] = write.row.SerializeToString(deterministic=True)
