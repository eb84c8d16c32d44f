"""A node: a pond that is served, and what works on it by itself.

`Node` holds no sockets; `server/` lets others reach it. Its life: made, `start`ed in the background, `stop`ped. It
answers questions when it is sound, and takes changes when it has `started` and is a primary that enters: see
`replication/readiness.py`.

Telling alerts at a node: all that its pond left; of nodes that replicate, the primary does it.

A replica judges the loads that it merges, too, and keeps what it finds until the log says that it was told. So one that
becomes the primary tells what the one before it did not.
"""

from __future__ import annotations

import ipaddress
import logging
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from millpond.clock import Clock
from millpond.errors import Conflict, MillpondError, Unavailable
from millpond.events.census import Census
from millpond.events.protocol import losses_of
from millpond.json_forms import to_json
from millpond.maps.alerts.alerted import remove_marked
from millpond.maps.loads.bucket_location import StorageBucket
from millpond.maps.loads.merger import Merger, Turns, always
from millpond.maps.model.keyspaces import TOKENS
from millpond.nodes.audit import AuditLog
from millpond.nodes.backups.newest import NewestBackup
from millpond.nodes.bucket_watch import BucketWatch
from millpond.nodes.changes import Changes
from millpond.nodes.drain import Drain
from millpond.nodes.folder_content import not_backed_up, only_here
from millpond.nodes.jobs.job_leases import JobLeases
from millpond.nodes.jobs.jobs import node_jobs
from millpond.nodes.jobs.scheduler import Scheduler
from millpond.nodes.limits import LIMITS, NodeLimits
from millpond.nodes.lookup_service import LookupService
from millpond.nodes.membership.gate import AppendGate
from millpond.nodes.ponds_at_refs import PondsAtRefs
from millpond.nodes.rate_limits import RateLimits
from millpond.nodes.replication.compare import Comparing
from millpond.nodes.replication.copies import FileCopies
from millpond.nodes.replication.follower import Follower
from millpond.nodes.replication.local_peer import LocalPeer
from millpond.nodes.replication.peer_health import not_ready
from millpond.nodes.replication.repair import Repairs
from millpond.nodes.tokens import LISTED, TokenFile, TokenList, Tokens
from millpond.nodes.uploads.commit import LoadCommit
from millpond.nodes.uploads.receiver import Receiver
from millpond.nodes.uploads.shared_parts import SharedParts
from millpond.pond import Pond
from millpond.reports.alerts import tell_alerts
from millpond.reports.client_jobs import ClientJobs
from millpond.reports.reporter import reason_of
from millpond.settings import Settings
from millpond.stores.bucket_space.space import BucketSpace

if TYPE_CHECKING:
    from collections.abc import Callable

    from millpond.kernel.space import Transaction
    from millpond.settings import TokenSetting

__all__ = ("Node", "is_loopback", "token_list", "tokens_of")

DISK_FREE_MIN = 64 << 20
"""With fewer bytes free, a node is not ready: it could not merge."""

_LOG = logging.getLogger(__name__)


class Node:
    """A pond that is served. `settings.server.url` is its own address, as it stands in `settings.nodes.urls`."""

    def __init__(self, pond: Pond, settings: Settings, clock: Clock, limits: NodeLimits = LIMITS) -> None:
        self.limits = limits
        self.pond, self.settings, self.clock = pond, settings, clock
        self.events = pond.events
        self.events.watchers.watchers_max = limits.watchers_max
        self.events.append_batches.retention_ms = lambda: settings.events.retention
        self.url = settings.own_url()
        self.tokens = tokens_of(pond, settings, clock)
        server = settings.server
        self.rate_limits = RateLimits(server.token_requests_per_second, server.token_requests_burst, clock)
        self.audit = AuditLog(pond.own_folder, clock)
        self.started, self.stopping = False, False
        self.stop_due = 0.0  # when stopping: the monotonic time until which requests may finish
        self._ending = threading.Lock()
        self.receiver = Receiver(
            pond, limits, clock, decides=self.leads, need_ready=self.need_ready, shared=_shared_parts(pond)
        )
        self.gate = AppendGate(clock, self.url)
        self.drain = Drain(self.receiver, self.url)
        pond.tell_alerts = partial(_tell_of_node, self)
        self.load_commit = LoadCommit(pond, self.receiver)
        self.turns: Turns = always
        self.bucket = self._watch()
        self.merger = Merger(pond, turns=self.turns)
        self.follower = Follower(pond, settings, self.receiver, clock)
        self.at_refs = PondsAtRefs(pond, lambda: len(self.follower.members.urls) > 1)
        self.local_peer = LocalPeer(pond, clock, self.url)
        self.lookups = LookupService(clock, limits.files_idle_ms)
        self.copies = FileCopies(pond, clock)
        self.comparing = Comparing(pond, self.follower, self.local_peer, clock)
        self.repairs = Repairs(pond, self.follower, self.local_peer, clock, mended=self.comparing.mended)
        self.changes = Changes(self)
        self.census = Census(self.events.store)
        self.newest_backup = NewestBackup(pond, settings)
        self.client_jobs = ClientJobs(pond.own_folder, self.events.store, clock)
        self.scheduler = Scheduler(node_jobs(self), state=pond.own_folder / "jobs.json", clock=clock)

    def _watch(self) -> BucketWatch | None:
        """The watch over the bucket of the pond; None for a pond in a folder."""
        location, space = self.pond.location, self.pond.space
        if not (isinstance(location, StorageBucket) and isinstance(space, BucketSpace)):
            return None
        self.turns = leases = JobLeases(space, self.clock)
        return BucketWatch(
            location, space, leases, self.clock, skew_max_ms=self.settings.nodes.max_clock_skew,
            run_job=self._take_over,
        )  # fmt: skip

    def _take_over(self, job: str) -> None:
        """Do the job of a node that died, unless it is paused here."""
        if not self.scheduler.status(job)[0].paused:
            self.scheduler.call(job)

    # -- who leads ------------------------------------------------------------------------------------

    @property
    def role(self) -> str:
        """`primary`, `replica` or `alone`; `equal`, of any number on a bucket."""
        return self.follower.role if self.bucket is None else "equal"

    def leads(self) -> bool:
        """True when this node appends the entries of the log."""
        return self.follower.members.primary == self.url

    def need_primary(self) -> None:
        """Insist that changes may be entered here, now.

        Raises: `Conflict`, kind `not_primary`, naming who is, or `log_forked`; `Unavailable` while the node starts or
        stops.
        """
        latest = self.follower.members.fence.latest()
        if not self.leads() and latest.primary == self.url:
            raise not_ready(self.url, f"it enters the list of epoch {latest.epoch}, which makes it the primary")
        if not self.leads() or (latest.nodes and latest.primary != self.url):
            raise Conflict(
                "this node is not the primary", kind="not_primary", node=self.url,
                primary=latest.primary or self.follower.members.primary, epoch=latest.epoch,
                nodes=",".join(latest.nodes),
                hint="changes are entered at the primary, the first of `nodes.urls`",
            )  # fmt: skip
        if self.stopping:
            raise Unavailable("the node is stopping", kind="node_stopping", node=self.url, hint="ask again")
        if not self.started:
            raise Unavailable("the node is starting", kind="node_starting", node=self.url, hint="ask again")
        stuck = self.follower.soundness.fork
        if stuck is not None:
            # What is entered now would be lost when the node is made equal to the peer that knows more.
            raise stuck
        self.need_ready()
        if not self.follower.soundness.appends():
            raise not_ready(self.url, self.follower.soundness.not_appending())

    @contextmanager
    def appending(self, epoch: int | None = None) -> Iterator[None]:
        """Append to the log within: no change of the list of nodes comes between. `epoch`: of the caller's list.

        Raises: as `need_primary`; `Conflict`, kind `nodes_changed`, when the caller has another list.
        """
        with self.gate.passing():
            self.need_primary()
            current = self.follower.members.current
            if epoch is not None and epoch != current.epoch:
                raise Conflict(
                    "the list of nodes is another one", kind="nodes_changed", epoch=current.epoch,
                    nodes=",".join(current.nodes), hint="take the list from GET /v1/node, and ask again; programs of "
                    "an earlier release must be upgraded first",
                )  # fmt: skip
            yield

    @property
    def answers(self) -> bool:
        """True when the node answers questions; False also when it must look more closely."""
        within = self.bucket is None or not self.bucket.fault
        return self.follower.soundness.answers and not self.comparing.differing and not self.drain.active and within

    def unready(self) -> MillpondError | None:
        """The error to answer questions with; None while the node answers them."""
        if self.bucket is not None and (fault := self.bucket.fault):
            return not_ready(self.url, fault)
        unready = self.follower.soundness.unready()
        if unready is not None:
            return unready
        if self.drain.active:
            return self.drain.refusal()
        differing = self._differing()
        return not_ready(self.url, "; ".join(differing)) if differing else None

    def need_ready(self) -> None:
        """Insist that this node may answer questions.

        Raises: `Unavailable`, kind `node_not_ready`, with the reason.
        """
        unready = self.unready()
        if unready is not None:
            raise unready

    # -- life -----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to work. A primary takes changes only after it has asked its peers whether they know more than it."""
        with self._ending:
            if self.stopping:
                return
            # First who knows what is paused.
            self.scheduler.start()
            if self.bucket is not None:
                self.bucket.worker.start()
            self.merger.start()
            self.follower.start()
            self.started = True
            if self.bucket is not None:  # else the job `merge` tells what is left
                self.pond.tell_alerts()

    def stop(self) -> None:
        """End all work, each after what it is at; the pond stays open. Stopping twice is harmless."""
        self.stopping = True
        # Before anything is waited for: who starts, a job or a repair may be waiting for another node.
        self.follower.interrupt()
        self.events.watchers.close()
        self.pond.log.announce()  # for the peers that wait for an entry: the answer comes before the server ends
        with self._ending:
            if self.started:
                self.scheduler.stop()
                self.repairs.stop()
                self.follower.stop()
                self.merger.stop()
                if self.bucket is not None:
                    self.bucket.worker.stop()
            self.started = False

    # -- how it stands --------------------------------------------------------------------------------

    def facts(self) -> dict[str, Any]:
        """The public status of the node.

        Raises: `Unavailable`, kind `node_not_ready`, while the bucket that it would ask is away.
        """
        if self.bucket is not None and self.bucket.away:
            self.need_ready()
        position, chain = self.pond.log.position()
        reasons, members = self.reasons(), self.follower.members
        return {
            "id": self.pond.log.pond_id, "url": self.url, "version": version("millpond"), "pond": self.pond.log.pond_id,
            "role": self.role, "nodes": list(members.urls), "primary": members.primary, "position": position,
            "chain": chain, "clock_ms": self.clock.now_ms(), "write_to": self.settings.nodes.write_to,
            "ready": not reasons, "reasons": reasons, "draining": self.drain.active,
            "clock_skews_ms": dict(self.follower.survey.skews_ms), "epoch": members.current.epoch,
            "leaving": list(members.current.leaving), "settings_differ": members.settings_differ,
            "protocol": self.follower.survey.protocol, "only_here": [] if self.bucket else only_here(self.pond.space),
            "not_backed_up": ["a pond in a bucket"] if self.bucket else not_backed_up(self.pond),
            "grpc_port": None if self.settings.server.grpc_port == "off" else self.settings.server.grpc_port,
        }  # fmt: skip

    def disk_free(self) -> int:
        """Bytes that are free where the pond lies."""
        return shutil.disk_usage(self.pond.own_folder).free

    def reasons(self) -> list[str]:
        """The reasons why the node must not be sent work; empty when it is ready."""
        reasons = []
        if self.stopping:
            reasons.append("it is stopping")
        elif not self.started:
            reasons.append("it is starting")
        if self.bucket is not None and (faults := self.bucket.reasons()):
            return reasons + faults  # what follows would ask the bucket
        if self.started and not self.merger.worker.alive and not self.stopping:
            reasons.append("the merger has ended")
        if (failure := self.merger.worker.failure) is not None:  # everybody may see it: it names no map
            reason = failure.message if isinstance(failure, MillpondError) else type(failure).__name__
            reasons.append(f"the merger cannot see what waits: {reason}")
        unready = self.follower.soundness.unready()
        if self.drain.active:
            reasons.append("it is drained")
        if unready is not None:
            reasons.append(str(unready.values.get("reason") or unready))
        elif self.started and self.role == "primary" and not self.follower.soundness.appends():
            reasons.append(self.follower.soundness.not_appending())
        losses = losses_of(self.events.store)
        if losses.count:
            reasons.append("the Redis of its streams lost what was stored: restart the node to go on without it")
        if losses.evicting:
            reasons.append("the Redis of its streams drops keys when it is full: set maxmemory-policy to noeviction")
        return reasons + self._differing() + self._disk_reasons()

    def _differing(self) -> list[str]:
        """The reasons of the comparison. Everybody may see them: where there are tokens, they name no map."""
        return self.comparing.reasons(named=not self.tokens.required())

    def _disk_reasons(self) -> list[str]:
        try:
            free = self.disk_free()
            probe = self.pond.own_folder / ".writable"
            probe.write_bytes(b"probe")
            probe.unlink(missing_ok=True)  # others may ask at the same time
        except OSError as error:
            return [f"the disk cannot be written to: {error.strerror}"]
        return [f"the disk is full: {free >> 20} MiB are free"] if free < DISK_FREE_MIN else []


def _shared_parts(pond: Pond) -> SharedParts | None:
    if isinstance(pond.location, StorageBucket) and isinstance(pond.space, BucketSpace):
        return SharedParts(pond.location.objects, pond.space.follow)
    return None


def token_list(pond: Pond) -> TokenList:
    """The tokens that are stored with a pond."""
    return _TokenRow(pond.space) if isinstance(pond.space, BucketSpace) else TokenFile(pond.folder)


def tokens_of(pond: Pond, settings: Settings, clock: Clock) -> Tokens:
    """The tokens that a node takes."""
    return Tokens(
        token_list(pond), settings.server.tokens, clock, everybody=settings.server.access == "open",
        required=settings.server.access == "tokens" or not is_loopback(settings.server.host),
    )  # fmt: skip


def is_loopback(host: str) -> bool:
    """True when only this machine can reach an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _tell_of_node(node: Node) -> None:
    """Tell the alerts that a node has to tell now; what it may not enter waits."""
    pond = node.pond
    if not node.follower.members.replicates:
        tell_alerts(pond.space, lambda: pond.events.store)
        return
    try:
        if remove_marked(pond.space) and node.leads():
            with node.appending():
                tell_alerts(pond.space, lambda: pond.events.store, node.clock.now_ms)
            pond.log.announce()
    except MillpondError as error:
        _LOG.info("alerts wait: %s", reason_of(error))


class _TokenRow(TokenList):
    """The tokens in the space of a pond. They are read without asking the bucket: each request looks at them."""

    def __init__(self, space: BucketSpace) -> None:
        self._space = space

    @property
    def where(self) -> str:
        return self._space.objects.where

    def version(self) -> bytes | None:
        with self._space.latest() as tx:
            return tx.get(TOKENS.packed)

    def read(self) -> list[TokenSetting]:
        return self._tokens(self.version())

    def _change(self, edit: Callable[[list[TokenSetting]], list[TokenSetting]]) -> None:
        def change(tx: Transaction) -> None:
            tx.put(TOKENS.packed, to_json(edit(self._tokens(tx.get(TOKENS.packed)))))

        self._space.write(change)

    def _tokens(self, row: bytes | None) -> list[TokenSetting]:
        return [] if row is None else LISTED.stored(
            row, "the row of tokens cannot be read", kind="tokens_damaged", where=self.where,
            hint="stop the nodes, look for what else is damaged: millpond verify",
        )  # fmt: skip
