"""One command on one partition: logged, applied, and all that follows from it written, in one transaction.

    tx ─▶ rows ─▶ engine ─▶ rows, timers, queues ─▶ log entry

Invariants:
* the log entry of a command, its rows, its timers and its places in queues are written by one transaction, or none is:
  they are gathered over it first, so that a command that fails midway leaves nothing among those of others;
* a command that fails for the caller's mistake writes nothing, and is not logged;
* a space that cannot be read is no failure of the command: nothing of the whole write is made, and it is tried again;
* one that fails for a mistake of the program writes nothing but a row that names it, and the partition goes on;
* what a command causes is applied behind it, within the same transaction; a long chain goes on by timers that are due.
  The log holds the cause alone: applying it again causes the same;
* a command that another one caused, or a timer, has no caller to hear that it failed: the log and a row name it, and
  the run of the timer ends in ERROR, for nothing else would wake it;
* a clock that went back a little stands still for the engine; one that was far ahead is not waited for.
"""

from __future__ import annotations

import hashlib
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from google.protobuf.message import Message
from littlehorse.model import Tenant, Variable, WfRunVariableAccessLevel, WfSpec

from millpond.errors import AlreadyExists, Closed, Conflict, Internal, Invalid, MillpondError, NotFound, Unavailable
from millpond.json_forms import to_json
from millpond.kernel.log import Head, Log, head_row
from millpond.kernel.space import ReadTransaction, Transaction
from millpond.kernel.steps import step
from millpond.workflows.engine import (
    Command,
    CommandCaused,
    Effect,
    Outcome,
    RunDeleted,
    RunUnable,
    TimerCancelled,
    TimerSet,
    TimersOfRunCancelled,
    Write,
    apply,
    caused_id,
    key_of,
    run_id,
)
from millpond.workflows.engine.metadata.tenancy import CLUSTER
from millpond.workflows.keyspaces import COMMANDS, FAILED
from millpond.workflows.outputs import EXECUTION, Output, note_outputs, opened_topics, outputs_of
from millpond.workflows.processor.batch import Batch, batched
from millpond.workflows.processor.codec import LoggedCommand, decode_command, encode_command
from millpond.workflows.processor.rows import ReadRows, WriteRows
from millpond.workflows.processor.timers import DueTimer, cancel_timer, cancel_timers_of, set_timer, take_timer
from millpond.workflows.store import Initialization, RunReads, RunStore
from millpond.workflows.store.addresses import RunPath
from millpond.workflows.store.run_slices import SLICE_ROWS_MAX, move_slice
from millpond.workflows.stories import facts_of, note_facts
from millpond.workflows.tasks.queues import Position, Queued, Worker
from millpond.workflows.tasks.traced import RunSpan, ended_runs

__all__ = ("CLOCK_BACK_MS", "COMMANDS_RETAINED", "Applied", "Partition", "derived_id", "instant_after", "note_failed")

COMMANDS_RETAINED = 100_000
"""The commands that the log keeps at most, and a thousand: they tell what was done, and replay needs none of them."""
CAUSED_PER_COMMAND = 100
"""The commands that are applied behind one in its transaction; the others follow by timers."""
CLOCK_BACK_MS = 1_000
"""A clock that goes back by more was ahead before: its time is not waited for, and its timers are set anew."""
_NUMBERS_PER_COMMAND = 1 << 20
_TRIMMED_AT_ONCE = 1_000
_SPECS_CACHED = 1_000
_MISTAKES = (Invalid, NotFound, AlreadyExists, Conflict)
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Applied:
    """The end of a command: its reply, its effects and the tasks it queued, or the error that its caller gets.

    That of a claim names the worker for which it was made.
    """

    command: LoggedCommand
    position: int
    reply: Message | None = None
    effects: tuple[Effect, ...] = ()
    queued: tuple[Queued, ...] = ()
    worker: Worker | None = None
    error: MillpondError | None = None
    unheard: int = 0
    """The commands that failed with nobody to hear of it: those that it caused, or a timer itself."""
    ended: tuple[RunSpan, ...] = ()
    """The runs that it ended, in a process that makes spans."""


class Partition:
    """The rows of one partition: what a command does to them, within a transaction of its space."""

    def __init__(self, initialization: Initialization, *, stories: bool = False, outputs: bool = False) -> None:
        """With `stories`, each command notes what it tells of its run; with `outputs`, what it tells its tenant."""
        self.initialization, self._stories, self._outputs, self._now = initialization, stories, outputs, 0
        self.number, self.share = 0, (1, 1)
        self.log: Log[LoggedCommand] = Log(COMMANDS, encode_command, decode_command)
        self._variables: dict[tuple[str, object], dict[str, tuple[tuple[str, ...], bool]]] = {}

    def reads(self, tx: ReadTransaction, tenant: str) -> ReadRows:
        """The rows of a tenant, to be read."""
        return ReadRows(tx, RunReads(tenant, self.initialization))

    def last_ms(self, tx: ReadTransaction) -> int:
        """The latest instant of a command in its log."""
        return self.log.head(tx).stamp_ms

    def latest_ms(self, tx: ReadTransaction) -> int:
        """The latest instant by which timers may have been set."""
        return self.last_ms(tx)

    def migrate(self, tx: Transaction, origin: bytes) -> bytes | None:
        """Move some rows out of the legacy layout, from a place on; the place of the rest, None when none is left.

        Raises:
            Corrupt: a row is damaged.
        """
        return move_slice(tx, partial(self._store, tx), origin)[0]

    def apply(
        self, tx: Transaction, commands: Sequence[LoggedCommand], now_ms: int,
        over: Callable[[], bool] = lambda: False,
    ) -> list[Applied]:  # fmt: skip
        """Apply commands in their order, and what they cause, until time is `over`; the end of each."""
        now, ends = self.instant(now_ms), []
        with batched(tx) as rows:
            head = last = self.log.head(rows)
            for command in commands:
                end, head = self._apply_chain(rows, command, now, head)
                ends.append(end)
                if over():
                    break
            if head is not last:
                rows.put(*head_row(self.log.prefix, head))
        return ends

    def _apply_chain(self, tx: Batch, command: LoggedCommand, now: int, head: Head) -> tuple[Applied, Head]:
        """Apply a command, then what it causes. What it causes on other partitions is sent away."""
        first, head = self._apply(tx, command, now, head)
        caused = deque(_caused(first))
        if not caused:
            return first, head
        effects, queued, number, unheard = list(first.effects), list(first.queued), 0, 0
        while caused:
            cause = caused.popleft()
            follower = LoggedCommand(command.tenant, caused_id(command.id, number), cause.request)
            number += 1
            if self._sent_away(tx, cause.partition_key, follower, now):
                continue
            if number > CAUSED_PER_COMMAND:
                set_timer(tx, command.tenant, TimerSet(("caused", follower.id), now, follower.request), now)
                continue
            end = self._apply_caused(tx, follower, now, (first.position, number))
            effects += end.effects
            queued += end.queued
            caused.extend(_caused(end))
            unheard += end.unheard
        return replace(first, effects=tuple(effects), queued=tuple(queued), unheard=unheard), head

    def fire(self, tx: Transaction, timers: Sequence[DueTimer], now_ms: int) -> list[Applied]:
        """Apply the commands of timers that are due; the end of each that is still set."""
        now, ends = self.instant(now_ms), []
        with batched(tx) as rows:
            head = last = self.log.head(rows)
            for timer in timers:
                end, head = self._fire(rows, timer, now, head)
                ends += [] if end is None else [end]
            if head is not last:
                rows.put(*head_row(self.log.prefix, head))
        return ends

    def instant(self, now_ms: int) -> int:
        """The instant of commands that are applied now."""
        self._now = instant_after(self._now, now_ms)
        return self._now

    def _fire(self, tx: Batch, timer: DueTimer, now: int, head: Head) -> tuple[Applied | None, Head]:
        """The end of the command of a timer that is still set, and the head of the log behind it."""
        request = take_timer(tx, timer)
        if request is None:
            return None, head
        run, own = str(timer.name[0]), derived_id("timer", self.number, head.position + 1)
        command = LoggedCommand(timer.tenant, own, request)
        end, head = self._apply_chain(tx, command, now, head)
        if end.error is None:
            return end, head
        _LOG.error("a timer of run %s of tenant %s failed: %s", run, command.tenant, end.error)
        unable = RunUnable(run_id(run), str(end.error))
        last, head = self._apply_chain(tx, LoggedCommand(command.tenant, caused_id(command.id, 0), unable), now, head)
        note_failed(tx, command, (last.position, 1), end.error)
        return replace(end, effects=last.effects, queued=last.queued, unheard=1 + last.unheard), head

    def _apply_caused(self, tx: Batch, command: LoggedCommand, now: int, origin: Position) -> Applied:
        """The end of a command that another one caused. The log holds the cause alone."""
        position, number = origin
        try:
            with tx.command():
                outcome, queued = self._write(tx, command, now, (position, number * _NUMBERS_PER_COMMAND))
        except (Unavailable, Closed):
            raise
        except Exception as error:
            _LOG.warning("command %s, which another one caused, failed: %r", command.id, error,
                         exc_info=None if isinstance(error, _MISTAKES) else error)  # fmt: skip
            note_failed(tx, command, origin, error)
            return Applied(command, position, unheard=1)
        step("workflows.applied")
        return Applied(command, position, outcome.reply, outcome.effects, queued, ended=ended_runs(outcome.writes, now))

    def _apply(self, tx: Batch, command: LoggedCommand, now: int, head: Head) -> tuple[Applied, Head]:
        """The end of a command, and the head of the log behind it."""
        position = head.position + 1
        try:
            with tx.command():
                outcome, queued = self._write(tx, command, now, (position, 0))
                head = self._log(tx, command, now, head)
        except _MISTAKES as error:
            return Applied(command, position, error=error), head
        except (Unavailable, Closed):
            raise
        except Exception as error:
            return self._failed(tx, command, now, error, head)
        step("workflows.applied")
        ended = ended_runs(outcome.writes, now)
        return Applied(command, position, outcome.reply, outcome.effects, queued, ended=ended), head

    def _write(
        self, tx: Transaction, command: LoggedCommand, now: int, origin: Position
    ) -> tuple[Outcome, tuple[Queued, ...]]:
        """Apply a command, and write all that follows from it."""
        store = self._store(tx, command.tenant)
        rows = WriteRows(tx, store, partial(self._delete_run, tx, store), self.share)
        outcome = apply(rows, Command(command.id, command.request), now)
        if self._stories and (facts := facts_of(outcome.writes, rows.get)):
            note_facts(tx, command.tenant, facts, now, origin)
        if self._outputs:
            note_outputs(tx, self._outputs_of(tx, command.tenant, outcome.writes, rows, now), origin)
        queued = rows.write(outcome.writes, origin)
        for effect in outcome.effects:
            match effect:
                case TimerSet():
                    set_timer(tx, command.tenant, effect, now)
                case TimerCancelled():
                    cancel_timer(tx, command.tenant, effect.name)
                case TimersOfRunCancelled():
                    cancel_timers_of(tx, command.tenant, effect.run)
        if rows.changed_specs:
            self._variables.clear()
        return outcome, queued

    def _delete_run(self, tx: Transaction, store: RunStore, run: RunPath) -> None:
        """Begin to delete a run; what is more than a slice is deleted behind the command."""
        store.delete_slice(tx, run, SLICE_ROWS_MAX)

    def _sent_away(self, tx: Transaction, key: str | None, command: LoggedCommand, now: int) -> bool:
        """True when a caused command is another partition's; this one is that of every key."""
        del tx, key, command, now
        return False

    def _log(self, tx: Transaction, command: LoggedCommand, now: int, last: Head) -> Head:
        record = self.log.append(tx, command, now, last)
        if record.position % _TRIMMED_AT_ONCE == 0 and record.position > COMMANDS_RETAINED:
            self.log.trim(tx, record.position - COMMANDS_RETAINED)
        return Head(record.position, record.chain, record.stamp_ms)

    def _failed(
        self, tx: Transaction, command: LoggedCommand, now: int, error: Exception, last: Head
    ) -> tuple[Applied, Head]:
        _LOG.error("command %s failed", command.id, exc_info=error)
        head = self._log(tx, command, now, last)
        note_failed(tx, command, (head.position, 0), error)
        fault = Internal(
            "the command failed unexpectedly", kind="command_failed", command=command.id, reason=type(error).__name__,
            hint="nothing was changed; the log of the node has the traceback",
        )  # fmt: skip
        return Applied(command, head.position, error=fault), head

    def _store(self, tx: Transaction, tenant: str) -> RunStore:
        return RunStore(tenant, self.initialization, partial(self._searched, tx, tenant))

    def _outputs_of(
        self, tx: Transaction, tenant: str, writes: Sequence[Write | RunDeleted], rows: WriteRows, now: int
    ) -> list[Output]:  # fmt: skip
        """The records of what a command changes, if its tenant has topics of output."""
        if tenant == CLUSTER:
            outputs = opened_topics(writes)
        else:
            row = self.reads(tx, CLUSTER).get(Tenant, (tenant,))
            if row is None or not row.HasField("output_topic_config"):
                return []
            outputs = outputs_of(writes, rows.get, row, now, lambda variable: self._variable(tx, tenant, variable)[1])
        # Every partition applies the commands of metadata: that of metadata tells of them.
        return [output for output in outputs if output.topic == EXECUTION or self._has_metadata]

    @property
    def _has_metadata(self) -> bool:
        """True for the partition where definitions and tenants belong; this one is that of all."""
        return True

    def _searched(self, tx: Transaction, tenant: str, variable: Variable) -> tuple[str, ...]:
        """The paths of a variable that its specification lets be searched for; the empty one is the whole of it."""
        return self._variable(tx, tenant, variable)[0]

    def _variable(self, tx: Transaction, tenant: str, variable: Variable) -> tuple[tuple[str, ...], bool]:
        """The paths by which a variable is searched for, and if others than its run may see it."""
        origin = (tenant, key_of(variable.wf_spec_id))
        names = self._variables.get(origin)
        if names is None:
            spec = self.reads(tx, tenant).get(WfSpec, key_of(variable.wf_spec_id))
            threads = () if spec is None else spec.thread_specs.values()
            definitions = (definition for thread in threads for definition in thread.variable_defs)
            names = {
                def_.var_def.name: (
                    (*([""] if def_.searchable else ()), *(index.field_path for index in def_.json_indexes)),
                    def_.access_level != WfRunVariableAccessLevel.PRIVATE_VAR,
                )
                for def_ in definitions
            }
            if len(self._variables) >= _SPECS_CACHED:
                self._variables.clear()
            self._variables[origin] = names
        return names.get(variable.id.name, ((), False))


def _caused(applied: Applied) -> list[CommandCaused]:
    return [effect for effect in applied.effects if isinstance(effect, CommandCaused)]


def derived_id(kind: str, *origin: int) -> str:
    """The id of a command that no caller sent: no other command has it."""
    return hashlib.sha256("/".join(map(str, (kind, *origin))).encode()).hexdigest()[:32]


def instant_after(last: int, now: int) -> int:
    """The instant of a command, by the instant of the last one and the clock.

    >>> instant_after(5_000, 4_900), instant_after(172_800_000, 5_000)
    (5000, 5000)
    """
    return last if 0 < last - now <= CLOCK_BACK_MS else now


def note_failed(tx: Transaction, command: LoggedCommand, origin: Position, error: Exception) -> None:
    """Record a command that failed, with its reason."""
    reason = {"id": command.id, "tenant": command.tenant, "reason": repr(error)}
    tx.put(FAILED.pack(*origin), to_json(reason))
