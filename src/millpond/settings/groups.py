"""The groups of settings, one for each room that reads them, and `Settings`, which holds all groups.

A field says its type, default and bounds; its description says what the setting does and what it trades. What has no
reason to differ between ponds is a constant of its room, and what shapes bytes is stored with its map.
"""

from __future__ import annotations

import base64
import socket
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_type_hints

from millpond.maps.model.beginning import HISTORY_MS
from millpond.memory_bound import MEMORY_LEAST, MEMORY_MAX
from millpond.settings.types import (
    Address,
    Addresses,
    Duration,
    EventTarget,
    FolderName,
    Intervals,
    Names,
    Networks,
    Place,
    Port,
    Size,
    SpanTarget,
    Switch,
    Tokens,
    setting,
    settings_of,
)
from millpond.times.durations import UNITS_MS

__all__ = (
    "GROUPS", "SETTINGS", "Client", "Events", "Lineage", "Maps", "Nodes", "Objects", "Server", "Settings", "Tls",
    "Tracing", "Versions", "Workflows",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """One node: its address, the requests that it takes, and its logs."""

    data: FolderName = setting("pond", "the pond that a node serves: a folder, or s3://bucket/prefix")
    host: str = setting("127.0.0.1", "address to listen on; any but this machine's own needs tokens")
    port: int = setting(7433, "port to listen on; 0 takes any that is free", ge=0, le=65535)
    grpc_port: Port = setting(
        "auto", "port for gRPC; auto: the one after `port`, if it is free; 0: any that is free; off: none"
    )
    url: Address = setting("", "its own address, as it stands in `nodes.urls`; by default of host and port")
    access: str = setting(
        "auto", "auto: tokens are wanted once one was added, and on addresses others can reach; tokens: always; open: "
        "never, everybody on this machine may do everything", pattern="^(auto|tokens|open)$",
    )  # fmt: skip
    tokens: Tokens = setting((), "tokens that all nodes of the pond take, hashed: name, sha256, rights")
    user_header: str = setting(
        "", "header in which a reverse proxy names the user that it signed in: on the console, the user has the rights "
        "of the token of that name; by default there is none", pattern="^([A-Za-z0-9-]+)?$",
    )  # fmt: skip
    user_proxies: Networks = setting(
        (), "addresses or networks of the proxies that are believed so; the header of others is ignored"
    )
    token_requests_per_second: int = setting(
        0, "requests of a token that a node takes in a second, but for administration, and three times as many at "
        "once; 0: any number", ge=0,
    )  # fmt: skip
    max_request_memory: Size = setting(
        512 << 20, "memory for all requests together: bodies, and what large questions take; more wait. For each 64KiB "
        "one connection may be open, half of them at most of one address; a proxy is one address", ge=1 << 20,
    )  # fmt: skip
    readers: int = setting(
        0, "processes that answer questions about maps, beside the one that does all else; 0 or 1: one process does "
        "everything. Each takes max_request_memory, and as many threads, of its own", ge=0, le=64,
    )  # fmt: skip
    log_level: str = setting(
        "info", "how much is said: debug, with a line for every request; info, warning, error",
        pattern="^(debug|info|warning|error)$",
    )  # fmt: skip

    def __post_init__(self) -> None:
        if bool(self.user_header) != bool(self.user_proxies):
            raise ValueError("server.user_header and server.user_proxies are given together")
        if self.user_header.lower() in ("authorization", "cookie", "host", "origin"):
            raise ValueError("server.user_header has a meaning of its own: name another, such as X-Remote-User")

    @property
    def token_requests_burst(self) -> int:
        """The requests of a token that may come at once."""
        return 3 * self.token_requests_per_second


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """Certificates and keys, of nodes and of clients. All are files in PEM."""

    cert: str = setting(
        "", "certificate that the node shows, with which it speaks https, and reads again when it changes; clients "
        "show theirs to a node that wants one",
    )  # fmt: skip
    key: str = setting("", "private key of the certificate")
    client_ca: str = setting(
        "", "certificates of the authorities whose clients may connect, over HTTP and gRPC: each shows a certificate "
        "of theirs; by default every client may",
    )  # fmt: skip
    ca: str = setting("", "certificates that clients trust instead of the system's")

    def __post_init__(self) -> None:
        if bool(self.cert) != bool(self.key):
            raise ValueError("tls.cert and tls.key are given together")
        if self.client_ca and not self.cert:
            raise ValueError("tls.client_ca needs tls.cert and tls.key")


@dataclass(frozen=True, slots=True, kw_only=True)
class Nodes:
    """The nodes of a pond: their addresses, their agreement, and the work that each does by itself."""

    urls: Addresses = setting((), "addresses of all nodes of the pond, the primary first; none: it is alone")
    write_to: str = setting(
        "all", "the nodes that must have a load before it is acknowledged: all, or most; then those that lag, or do "
        "not hear from the primary, answer nothing. All nodes set the same", pattern="^(all|majority)$",
    )  # fmt: skip
    lag_limit: Duration = setting(
        15_000, 'with write_to = "majority", how long a node answers after it was last heard; a node whose clock is '
        'wrong by more than twice as long is not ready', ge=100,
    )  # fmt: skip
    intervals: Intervals = setting(
        (), "how often a node does a job of its own, where not as usual, by the job's name, such as verify = 1d, which "
        "is off by default as it reads everything; `millpond jobs` lists them",
    )  # fmt: skip

    @property
    def max_clock_skew(self) -> int:
        """The milliseconds by which the clock of a node that is ready may be wrong."""
        return 2 * self.lag_limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """Whoever asks nodes: a program, a command, or a node that asks another one."""

    token: str = setting(
        "", "sent by clients, and by nodes to each other: a token, or ACCESS_KEY:SECRET_KEY", secret=True
    )
    read_timeout: Duration = setting(
        60_000, "how long a node may say nothing while it answers; of this, a quarter but 5s at most to connect, a "
        "sixtieth but 1s at most between tries, five times as long for a snapshot", ge=1,
    )  # fmt: skip
    attempts: int = setting(3, "tries of a request whose connections are lost", ge=1, le=100)
    synchronise: Switch = setting(False, "whether a load waits until every node has merged it")
    cache: str = setting(
        "", "folder for copies: of `snapshots`, and of what nodes serve from `buckets`; by default the user's cache "
        "folder. Processes of a machine share it; MILLPOND_BUCKET_CACHE_MAX bounds the copies of a bucket",
    )  # fmt: skip
    min_time_to_keep_snapshots: Duration = setting(
        600_000, "a snapshot younger is used as it is; after a failure, nodes are left alone for a tenth of this"
    )

    @property
    def authorization(self) -> str:
        """The header that shows the token, or the access key and its secret."""
        if self.token.startswith("AKIA"):
            return f"Basic {base64.b64encode(self.token.encode()).decode()}"
        return f"Bearer {self.token}"

    def cache_folder(self, sort: str) -> Path:
        """The folder for copies of one sort on this machine, of this user if no other is set."""
        if self.cache:
            return Path(self.cache).expanduser() / sort
        from platformdirs import user_cache_path

        return user_cache_path("millpond") / sort

    @property
    def snapshots(self) -> Path:
        """The folder for copies of snapshots."""
        return self.cache_folder("snapshots")

    @property
    def connect_timeout(self) -> int:
        """The time that connecting to a node may take."""
        return min(5_000, max(1, self.read_timeout // 4))

    @property
    def retry_delay(self) -> int:
        """The pause before a request is tried again."""
        return min(1_000, self.read_timeout // 60)

    @property
    def snapshot_fetch_timeout(self) -> int:
        """The time that fetching a snapshot may take."""
        return 5 * self.read_timeout

    @property
    def snapshot_retry_interval(self) -> int:
        """The time for which nodes are left alone after a failure to fetch a snapshot."""
        return self.min_time_to_keep_snapshots // 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Maps:
    """The maps of a pond, on a node or in a folder."""

    memory_max: Size = setting(
        MEMORY_MAX, "memory that sealing or freezing a map may take; rows beyond it wait on the disk", ge=MEMORY_LEAST
    )
    part_retention: Duration = setting(
        7 * UNITS_MS["d"], "how long merged parts and the log are kept, for nodes that were away and streams"
    )
    history: Duration = setting(
        HISTORY_MS, "how far back `known_at` may ask of layered maps: the files of their past stay for so long"
    )
    store: str = setting(
        "auto", "the store of maps that are made without one. layers: a load costs what it brings, and the past stays; "
        "shard: thousands of small loads a minute, and replicas; auto: layers in a folder, a shard on a node",
        pattern="^(auto|layers|shard)$",
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Objects:
    """Places in stores of objects. How to reach a bucket is said by the environment, such as AWS_ENDPOINT_URL."""

    place: Place = setting("", "of published snapshots and workflows.log: s3://bucket/prefix, or a folder")
    backups: Place = setting(
        "", "where backups of the pond are put, s3://bucket/prefix or a folder: a node shows the age of the newest one "
        "there (`millpond_backup_age_seconds`)",
    )  # fmt: skip
    space: str = setting(
        "", "database for the rows of a pond in a bucket, for many changes a second: "
        "postgresql://user@server:5432/database; by default what the bucket says, but for the password", secret=True,
    )  # fmt: skip
    max_staleness: Duration = setting(
        1_000, "the age that reads of a node on a bucket may have; 0: each asks the bucket. What a request names by "
        "`Millpond-Moment`, and what the node wrote itself, it shows in any case",
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Events:
    """Streams of events."""

    store: str = setting(
        "", "Redis for streams of events, for several servers: redis://user@host:6379/0#pond; by default the pond's "
        "folder. It is written down in the pond; MILLPOND_REDIS_PASSWORD has the password", secret=True,
    )  # fmt: skip
    reports: Switch = setting(True, "whether the pond's own work appends events to the queue `millpond`")
    retention: Duration = setting(
        14 * UNITS_MS["d"], "age from which a day of events is dropped, counted from its end; off: never"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Versions:
    """Repositories of objects."""

    space: str = setting(
        "", "database for the rows of repositories, which servers share: postgresql://user@server:5432/database#name; "
        "by default the pond's folder. It is written down in the pond", secret=True,
    )  # fmt: skip
    objects: Place = setting(
        "", "where repositories that name no namespace put their bytes: s3://bucket/prefix, or a folder; by default a "
        "folder of the pond",
    )  # fmt: skip
    sources: Names = setting(
        (), "beginnings of the addresses that clients may import or link: s3://bucket/, local:///folder/; objects are "
        "read there with the node's own rights. None by default",
    )  # fmt: skip
    namespaces: Names = setting(
        (), "beginnings of the places that clients may name for new repositories: s3://bucket/prefix/; bytes are "
        "written there with the node's own rights. By default only local://NAME, a folder of the node",
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Workflows:
    """Runs of workflows."""

    store: str = setting(
        "pond", "where runs of workflows are: in the pond's own space, or in RocksDB in a folder of the pond, whose "
        "writes wait for one sync in place of two; decided before the first run", pattern="^(pond|rocksdb)$",
    )  # fmt: skip
    log: str = setting(
        "", "command log that several processes share: kafka://host:9092,host:9092/topic; by default that in the "
        "pond's folder, for one process. With ?config=FILE, a file has more settings for the brokers, for encryption "
        "and credentials: lines name=value, with the names of librdkafka",
        pattern=r"^(kafka://[^/\s@]+/[A-Za-z0-9._-]+(\?config=\S+)?)?$",
    )  # fmt: skip
    output: str = setting(
        "", "brokers for tenants' topics of output, and what the names of these begin with, which no other pond uses: "
        "kafka://host:9092/cluster, with ?config=FILE as in workflows.log, which is the default",
        pattern=r"^(kafka://[^/\s@]+/[A-Za-z0-9._-]{1,100}(\?config=\S+)?)?$",
    )  # fmt: skip
    events: Switch = setting(False, "tell each run's story as events: queue = tenant, job set = run")


@dataclass(frozen=True, slots=True, kw_only=True)
class Lineage:
    """Run events of OpenLineage."""

    target: EventTarget = setting(
        "", "the file, http(s) address, or topic kafka://host:9092,host:9092/topic?config=FILE, to which loads and "
        "steps of pipelines send run events; none by default. For the file, see workflows.log",
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Tracing:
    """Spans of OpenTelemetry."""

    target: SpanTarget = setting(
        "", "the http(s) address of a collector of OTLP, or a file of its JSON lines, to which spans of requests, "
        "loads, commits, runs and tasks go; none by default",
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All groups. Make one with `load_settings`."""

    server: Server
    tls: Tls
    nodes: Nodes
    client: Client
    maps: Maps
    objects: Objects
    events: Events
    versions: Versions
    workflows: Workflows
    lineage: Lineage
    tracing: Tracing

    def __post_init__(self) -> None:
        if self.workflows.log and not self.objects.place:
            raise ValueError("workflows.log needs objects.place")

    @property
    def secure(self) -> bool:
        """True when the node speaks https."""
        return bool(self.tls.cert)

    def own_url(self, port: int | None = None) -> str:
        """The node's address: as set, or made of its host and port."""
        server = self.server
        if server.url:
            return server.url.rstrip("/")
        host = socket.gethostname() if server.host in ("0.0.0.0", "::") else server.host
        host = f"[{host}]" if ":" in host else host
        return f"{'https' if self.secure else 'http'}://{host}:{server.port if port is None else port}"

    def at(self, port: int, grpc_port: int | None) -> Settings:
        """The same, once the ports are known that the node listens on."""
        server = replace(self.server, port=port, url=self.own_url(port), grpc_port=grpc_port or "off")
        return replace(self, server=server)


GROUPS: dict[str, Any] = get_type_hints(Settings)
SETTINGS = {f"{group}.{name}": setting for group, kind in GROUPS.items() for name, setting in settings_of(kind)}
"""All settings by their names, such as `server.port`."""
