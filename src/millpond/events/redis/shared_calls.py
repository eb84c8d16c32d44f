"""Appends to many streams share calls: Redis needs as long for a call as for the events of several streams.

A cluster takes the streams of one shard in a call, and wants to know all keys; one server takes any.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

from millpond.errors import Unavailable, Uncertain
from millpond.events.ids import format_id
from millpond.events.protocol import StreamRules
from millpond.events.redis.connections import Argument
from millpond.events.redis.keys import StreamKeys, is_hashed
from millpond.events.redis.rows import names_in_full
from millpond.events.redis.scripts import Script
from millpond.events.redis.servers import Call, Servers, script_command

__all__ = (
    "CALL_BYTES", "FLIGHT_STREAMS", "SERVER_TIME", "Form", "Share", "deliver", "delivery_numbers", "row_numbers",
    "used_up",
)  # fmt: skip

SERVER_TIME = -1
"""Stands for the time that the server has when it runs the script."""

CALL_BYTES = 1 << 20
"""Deliveries share a call up to so many packed bytes: while it runs the server does nothing else."""
CALL_STREAMS, FIRST_CALL_STREAMS = 100, 25
"""A server begins with few streams, and has more when it is done with them."""
FLIGHT_STREAMS = 500
_DELIVERY = struct.Struct(">16s16sII")
_ROW = struct.Struct(">iII")
_POSITION_BYTES = 16


class Share(Protocol):
    """The share of a stream in a call: deliveries, of about so many bytes."""

    @property
    def keys(self) -> StreamKeys: ...

    @property
    def deliveries(self) -> int: ...

    @property
    def size(self) -> int: ...

    def arguments(self) -> Iterable[Argument]:
        """The arguments, made when the call is sent."""

    def settle(self, answers: Sequence[bytes]) -> None:
        """Take the answer to each delivery, while the server works on the calls behind; it raises nothing."""


def _deliveries(form: Form, shares: Sequence[Share], marks: int) -> list[Argument]:
    arguments: list[Argument] = [max(form.now_ms, SERVER_TIME), form.rules.ahead_ms, len(shares), marks]
    for share in shares:
        keys = share.keys
        arguments += (
            names_in_full(keys.stream) if is_hashed(keys.name) else b"", share.deliveries, *share.arguments(),
        )  # fmt: skip
    return arguments


class Form(NamedTuple):
    """The form of calls: the script, what all calls have, and how it takes the arguments of the shares of a call.

    `too_few` takes the error of what too few replicas have: an append goes on to its end, and is uncertain then.
    `answer_bytes`: the answers to deliveries come as one, so many bytes for each.
    """

    script: Script
    now_ms: int
    rules: StreamRules
    too_few: list[Uncertain]
    arguments: Callable[[Form, Sequence[Any], int], list[Argument]] = _deliveries
    reads_marks: bool = True
    answer_bytes: int = 0


def delivery_numbers(first: int, last: int, events: int, rows: int) -> bytes:
    """The numbers of a delivery, as the script takes them: its first and last position, its events and its rows."""
    return _DELIVERY.pack(first.to_bytes(_POSITION_BYTES, "big"), last.to_bytes(_POSITION_BYTES, "big"), events, rows)


row_numbers = _ROW.pack
"""The numbers of a row, as the script takes them: the day that its times ask for, its events, and their bytes."""


def used_up(last_id: int = 0) -> Unavailable:
    """The error for a stream without ids."""
    return Unavailable("the stream has no more ids", kind="event_ids_used_up", last_id=format_id(last_id))


def deliver(servers: Servers, shares: Sequence[Share], form: Form, *, stored: int) -> None:
    """Run the script for each share, which takes the answers; a stream has one share.

    `stored`: how many batches of the same append were stored before.

    Raises: as `StreamStore.append`.
    """
    try:
        calls = list(_calls(shares, form, by_shard=servers.is_cluster()))
        servers.run(calls, repeat=False, too_few=form.too_few)
    except Unavailable as error:
        if not stored or isinstance(error, Uncertain):
            raise
        raise Uncertain(
            "some batches are stored, and others are not", kind="uncertain", batches=stored,
            hint="deliver all of them again: with a source, those that are stored are left out",
        ) from error  # fmt: skip


def _calls(shares: Sequence[Share], form: Form, *, by_shard: bool) -> Iterator[Call]:
    groups: dict[int, list[Share]] = {}
    if by_shard:
        for share in shares:
            groups.setdefault(share.keys.shard, []).append(share)
    for group in groups.values() if by_shard else (shares,):
        start, size, most = 0, 0, FIRST_CALL_STREAMS
        for stop, share in enumerate(group):
            size += share.size
            if stop > start and (size > CALL_BYTES or stop - start >= most):
                yield _call(group[start:stop], form, by_shard)
                start, size, most = stop, share.size, min(2 * most, CALL_STREAMS)
        yield _call(group[start:], form, by_shard)


def _call(shares: Sequence[Share], form: Form, by_shard: bool) -> Call:
    return Call(
        shares[0].keys.shard, partial(_command, shares, form, by_shard), form.script,
        partial(_settle, shares, form.answer_bytes),
    )  # fmt: skip


def _settle(shares: Sequence[Share], answer_bytes: int, answer: Any) -> None:
    answers: Sequence[bytes] = answer
    if answer_bytes:
        answers = [answer[at : at + answer_bytes] for at in range(0, len(answer), answer_bytes)]
    start = 0
    for share in shares:
        stop = start + share.deliveries
        share.settle(answers[start:stop])
        start = stop


def _command(shares: Sequence[Share], form: Form, by_shard: bool) -> tuple[Argument, ...]:
    marks = dict.fromkeys(share.keys.lost for share in shares) if form.reads_marks else ()
    used = [*(share.keys.head for share in shares), *marks]
    arguments = form.arguments(form, shares, len(marks))
    if by_shard:
        for keys in (share.keys for share in shares):
            used += (keys.raw, keys.sources, keys.index, *keys.due, keys.names, keys.clock)
    return script_command(form.script, used, arguments)
