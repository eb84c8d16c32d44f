"""The relay of output: each record is in its topic once, whatever fails, and whoever writes."""

from __future__ import annotations

import pytest

pytest.importorskip("littlehorse")

from collections.abc import Sequence
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from millpond.clock import ManualClock
from millpond.errors import Unavailable
from millpond.kernel.keys import EVERYTHING
from millpond.server.workflows import outbox, output_relay
from millpond.server.workflows.outbox import Outbox
from millpond.server.workflows.output_relay import relay_of, relay_to
from millpond.settings.groups import Workflows
from millpond.stores.memory import MemorySpace
from millpond.workflows.logs.topics import RECORD_BYTES_MAX, TopicRecord
from millpond.workflows.outputs import Output, OutputPosition, WaitingOutput, delete_outputs, note_outputs


@dataclass
class Brokers:
    """Topics of a pond, and the writer that may write."""

    records: list[TopicRecord] = field(default_factory=list)
    position: OutputPosition = (0, 0)
    writer: object = None
    fault: str = ""


@dataclass(eq=False)
class Writer:
    """A writer of `Topics`, which meets the faults that its brokers are told of."""

    brokers: Brokers
    is_open: bool = False

    def open(self) -> OutputPosition:
        self._need("unreachable")
        self.brokers.writer, self.is_open = self, True
        return self.brokers.position

    def write(self, records: Sequence[TopicRecord], position: OutputPosition) -> None:
        assert self.is_open
        self._need("unreachable", "refused")
        if self.brokers.writer is not self:
            self._fail("another one writes")
        self.brokers.records += records
        self.brokers.position = position
        self._need("undecided")

    def _need(self, *faults: str) -> None:
        if self.brokers.fault in faults:
            self.brokers.fault = self.brokers.fault if self.brokers.fault == "unreachable" else ""
            self._fail(self.brokers.fault)

    def _fail(self, reason: str) -> None:
        self.is_open = False
        raise Unavailable("no topics", kind="output_unreachable", reason=reason)


class Pond:
    """Rows of one partition, and relays that carry them."""

    def __init__(self, *, rivals: bool = False) -> None:
        self.space, self.brokers, self.dropped = MemorySpace(), Brokers(), list[int]()
        self.position, self.expected = 0, list[TopicRecord]()
        self.dies, self.rivals = False, rivals
        self.relays = [self.relay(), self.relay()]

    def relay(self) -> Outbox[WaitingOutput]:
        return relay_to(
            Writer(self.brokers), "c", self.space, ManualClock(), newest=None if self.rivals else self.position,
            ended=self.ended, dropped=self.dropped.append,
        )  # fmt: skip

    def ended(self, position: OutputPosition, dropped: bool) -> None:
        del dropped
        if self.dies:
            raise Unavailable("the process is gone", kind="gone")
        self.space.write(lambda tx: delete_outputs(tx, position))

    def note(self, count: int, size: int = 10) -> None:
        self.position += 1
        outputs = [Output("t", "execution", "r", b"%d/%d" % (self.position, at) + bytes(size)) for at in range(count)]
        self.space.write(lambda tx: note_outputs(tx, outputs, (self.position, 0)))
        self.expected += [TopicRecord("c_t_execution", "r", output.record) for output in outputs]

    def turn(self, number: int, fault: str = "") -> None:
        self.brokers.fault, self.dies = fault, fault == "killed"
        try:
            self.relays[number].turn()
        except Unavailable:
            if self.dies:
                self.relays[number] = self.relay()
        self.brokers.fault, self.dies = "", False

    def queued(self) -> int:
        with self.space.read() as tx:
            return sum(1 for _ in tx.keys(EVERYTHING))


acts = st.one_of(
    st.tuples(st.just("note"), st.integers(1, 3)),
    st.tuples(st.sampled_from(["", "unreachable", "refused", "undecided", "killed"]), st.integers(0, 1)),
)


@given(st.lists(acts, max_size=30), st.integers(1, 4), st.booleans())
def test_each_record_is_written_once_and_in_order(script: list[tuple[str, int]], page: int, rivals: bool) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(outbox, "PAGE_ROWS", page)
        pond = Pond(rivals=rivals)
        for act, number in script:
            if act == "note":
                pond.note(number)
            else:
                pond.turn(number * rivals, act)
        while pond.queued():
            pond.turn(0)
        assert pond.brokers.records == pond.expected
        assert not sum(pond.dropped)


def test_no_broker_is_called_before_there_is_a_record() -> None:
    pond = Pond()
    pond.turn(0)
    assert pond.brokers.writer is None


def test_without_brokers_records_wait_and_have_their_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_relay, "OUTPUT_BYTES_WAITING_MAX", 10_000)
    pond = Pond()
    relay = relay_of(Workflows(), 0, pond.space, ManualClock(), ended=pond.ended, dropped=pond.dropped.append)
    assert relay.turn() == 0
    pond.note(20, 1_000)
    with pytest.raises(Unavailable, match="no brokers are named"):
        relay.turn()
    assert pond.queued() == 20
    relay.drop()
    assert 0 < pond.queued() < 10 < sum(pond.dropped)


def test_a_tenant_gets_its_topics_before_its_first_record() -> None:
    pond = Pond()
    pond.space.write(lambda tx: note_outputs(tx, [Output("t")], (1, 0)))
    pond.turn(0)
    assert pond.brokers.records == [TopicRecord("c_t_execution"), TopicRecord("c_t_metadata")]


def test_a_record_that_no_broker_takes_is_left_out_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    pond = Pond()
    pond.note(1)
    pond.note(1, RECORD_BYTES_MAX)
    pond.note(1)
    pond.turn(0)
    assert pond.brokers.records == [pond.expected[0], pond.expected[2]]
    assert sum(pond.dropped) == 1
    assert "too large for its topic" in caplog.text


def test_the_oldest_beyond_the_limit_are_dropped_and_counted(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(output_relay, "OUTPUT_BYTES_WAITING_MAX", 10_000)
    pond = Pond()
    for number in range(40):
        pond.note(1, 400)
        pond.turn(0, "unreachable")
        pond.relays[0].drop()
        assert (pond.queued() == number + 1) == (not sum(pond.dropped))
    assert pond.queued() * 400 < 10_000
    assert pond.queued() + sum(pond.dropped) == 40
    left = pond.queued()
    pond.turn(0)
    assert pond.brokers.records == pond.expected[-left:]
    assert "the oldest are dropped" in caplog.text


def test_runs_of_an_older_copy_are_told_anew(caplog: pytest.LogCaptureFixture) -> None:
    pond = Pond()
    pond.note(1)
    pond.brokers.position = (7, 0)
    pond.turn(0)
    assert pond.brokers.records == pond.expected
    assert "those of an older copy" in caplog.text
    pond.note(1)
    pond.turn(0)
    pond.turn(0, "undecided")
    assert (pond.brokers.records, pond.brokers.position) == (pond.expected, (2, 0))
