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
        self.share = (1, 1)

    def get(self, kind: type[M], key: Key) -> M | None:
        found = self.bytes.get((kind, key))
        return None if found is None else kind.FromString(found)

    def list(self, kind: type[M], prefix: Key) -> Iterator[tuple[Key, M]]:
        keys = sorted(key for own, key in self.bytes if own is kind and key[: len(prefix)] == prefix)
        for key in keys:
            yield key, kind.FromString(self.bytes[kind, key])

    def runs(
        self, spec: str, status: int, limit: int, *, version: tuple[int, int] | None = None,
        times: tuple[int, int] | None = None, after: bytes = b"",
    ) -> tuple[list[str], bytes]:  # fmt: skip
        found = []
        for (path,), run in self.list(WfRun, ()):
            at, own = run.start_time.ToMilliseconds(), (run.wf_spec_id.major_version, run.wf_spec_id.revision)
            within = (times is None or times[0] <= at <= times[1]) and (version is None or version == own)
            place = f"{at:020}/{path}"
            if run.wf_spec_id.name == spec and run.status == status and within and place >= after.decode():
                found.append((place, str(path)))
        found.sort()
        return [path for _, path in found[:limit]], found[limit][0].encode() if len(found) > limit else b""

    def write(self, outcome: Outcome) -> None:
        for write in outcome.writes:
            if not isinstance(write, Write):
                for place in [place for place in self.bytes if place[1][0] == write.run]:
                    del self.bytes[place]
            elif write.row is None:
                self.bytes.pop((write.kind, write.key), None)
            else:
                self.bytes[write.kind, write.key] = write.row.SerializeToString(deterministic=True)
