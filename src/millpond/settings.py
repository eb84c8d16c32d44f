"""Settings of nodes and of who talks to them: frozen values, each with its unit, its default and what it trades.

Where a value comes from, later ones winning:

1. the default, written here;
2. a file: `millpond.toml` in the working folder, or the one that `MILLPOND_CONFIG` or `--config` names;
3. the environment: `MILLPOND_PORT`, `MILLPOND_NODES` (with commas) …;
4. the command line, or the arguments of `millpond.open`.

Durations are milliseconds and sizes are bytes inside, and words outside: `10min`, `7d`, `off`; `2GiB`. How durations
are written is said in `times/durations.py`; `off` is 0 here. A name that is
no setting is refused, naming the nearest that is. What shapes bytes is no setting: it is stored with its map.
"""

from __future__ import annotations

import difflib
import os
import socket
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import AfterValidator, Field, ValidationError, model_validator
from pydantic_settings import BaseSettings, EnvSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict

from millpond.errors import Invalid
from millpond.memory_bound import MEMORY_LEAST, MEMORY_MAX
from millpond.setting_types import Duration, Names, Size, TokenSetting, Unit, http_address, objects_place
from millpond.sizes import size_in_words
from millpond.times.durations import UNITS_MS, format_duration

__all__ = (
    "CONFIG", "SECRET_NAMES", "Explained", "Settings", "duration_in_words", "explain", "in_words",
    "load_settings", "size_in_words", "unknown_in_environment",
)  # fmt: skip

CONFIG = "MILLPOND_CONFIG"
"""The environment variable that names the file."""
SECRET_NAMES = frozenset(("token", "versions_secret_key", "versions_space", "events_store"))
"""Settings that are never shown."""
_HERE = Path("millpond.toml")
_OTHER_NAMES = frozenset(
    (CONFIG, "MILLPOND_POND", "MILLPOND_SPARK_MASTER", "MILLPOND_TRACEBACK", "MILLPOND_REDIS_PASSWORD",
     "MILLPOND_WORKFLOWS")
)  # fmt: skip
_FOR_TESTS = frozenset(("MILLPOND_STEPS_LOG", "MILLPOND_KILL_AT", "MILLPOND_KILL_FILE", "MILLPOND_CLOCK_FILE"))
_CREDENTIALS = frozenset(("access_key", "access_key_id", "secret_access_key", "secret_key", "session_token"))
_MASK = "********"

_EMPTY: Mapping[str, Any] = {}


class Settings(BaseSettings):
    """Make one with `load_settings`."""

    model_config = SettingsConfigDict(env_prefix="MILLPOND_", frozen=True, extra="forbid")

    # -- the node -------------------------------------------------------------------------------------
    data: str = Field("pond", description="folder of the pond that a node serves")
    host: str = Field("127.0.0.1", description="address to listen on; any but this machine's own needs tokens")
    port: int = Field(7433, ge=0, le=65535, description="port to listen on; 0 takes any that is free")
    grpc_port: Annotated[int, Field(ge=0, le=65535)] | Literal["auto", "off"] = Field(
        "auto", description="port for gRPC; auto: the one after `port`, if it is free; 0: any that is free; off: none"
    )
    url: str = Field("", description="the node's own address, as it stands in `nodes`; by default of host and port")
    nodes: Names = Field((), description="addresses of all nodes of the pond, the primary first; none: it is alone")

    write_to: str = Field(
        "all", pattern="^(all|majority)$",
        description="the nodes that must have a load before it is acknowledged: all, or most; then those that lag, or "
        "do not hear from the primary, answer nothing. All nodes set the same",
    )  # fmt: skip
    lag_limit: Duration = Field(
        15_000, ge=100, description='with write_to = "majority", how long a node answers after it was last heard'
    )
    max_clock_skew: Duration = Field(
        30_000, description="a node whose clock differs by more from the primary's answers nothing; off: by any time"
    )
    serve_without_peers: bool = Field(
        False, description="whether a node that has asked its peers serves though some do not answer; it may then give "
        "old answers, and a primary may enter what forks the log"
    )  # fmt: skip

    # -- access ---------------------------------------------------------------------------------------
    access: str = Field(
        "auto", pattern="^(auto|tokens|open)$",
        description="auto: tokens are wanted once one was added, and on addresses others can reach; tokens: always; "
        "open: never, everybody on this machine may do everything",
    )  # fmt: skip
    token: str = Field("", repr=False, description="the token that clients send, and nodes among each other")
    tokens: tuple[TokenSetting, ...] = Field(
        (), description="tokens that all nodes of the pond take, hashed: name, sha256, rights"
    )
    token_requests_per_second: int = Field(
        0,
        ge=0,
        description="requests of a token that a node takes in a second, but for administration; 0: any number",
    )
    token_requests_burst: int = Field(100, ge=1, description="requests of a token that may come at once, before that")
    audit_log: str = Field(
        "audit.jsonl", description="file of one line of JSON for every change, with the token's name; off: none"
    )
    audit_bytes_max: Size = Field(16 << 20, ge=1 << 10, description="size at which the audit log begins a new file")
    audit_files: int = Field(10, ge=1, le=1000, description="files of the audit log before this one that stay")
    tls_cert: str = Field(
        "", description="certificate (PEM) that the node shows, with which it speaks https, and reads again when it "
        "changes; clients show theirs to a node that wants one"
    )  # fmt: skip
    tls_key: str = Field("", description="private key (PEM) of the certificate")
    tls_client_ca: str = Field(
        "", description="certificates (PEM) of the authorities whose clients may connect, over HTTP and gRPC: each "
        "shows a certificate of theirs; by default every client may"
    )  # fmt: skip
    tls_ca: str = Field("", description="certificates (PEM) that clients trust instead of the system's")

    # -- limits and threads ---------------------------------------------------------------------------
    max_upload_bytes: Size = Field(2 << 30, description="the largest part that is taken, as it is sent")
    max_part_bytes: Size = Field(8 << 30, description="the largest part, unpacked")
    max_request_memory: Size = Field(
        512 << 20,
        ge=1 << 20,
        description="memory for all requests together: bodies, and what large questions take; more wait",
    )
    memory_max: Size = Field(
        MEMORY_MAX,
        ge=MEMORY_LEAST,
        description="memory that sealing, merging or freezing a map may take; rows beyond it wait on the disk",
    )
    max_connections: int = Field(8_192, ge=2, le=1_000_000, description="connections that are open at once")
    max_connections_per_address: int = Field(
        4_096,
        ge=0,
        le=1_000_000,
        description="connections of one address; 0: as many as of all. A proxy is one address",
    )
    max_header_bytes: Size = Field(
        64 << 10, ge=1 << 10, description="bytes of a request's head: its address and headers"
    )
    header_timeout: Duration = Field(
        15_000, ge=1, description="how long a client may take to send the head of a request"
    )
    body_timeout: Duration = Field(
        300_000, ge=1, description="how long a client may take to send a body, and a second more for every 16 KiB of it"
    )
    idle_timeout: Duration = Field(75_000, ge=1, description="a connection without requests is closed after this")
    max_requests_queued: int = Field(
        256, ge=0, le=100_000, description="large requests that wait for memory; one more is sent again later"
    )
    queue_timeout: Duration = Field(
        20_000, ge=1, description="how long a large request waits for memory; keep it below the clients' read_timeout"
    )
    question_timeout: Duration = Field(
        60_000, ge=1, description="how long a scan or another large question may work on its next piece; clients wait "
        "no longer than their read_timeout"
    )  # fmt: skip
    upload_expiry: Duration = Field(3_600_000, description="an upload that no load enters is removed after this")
    part_retention: Duration = Field(
        7 * 86_400_000, description="how long merged parts and the log are kept, for nodes that were away and streams"
    )
    readers: int = Field(
        0, ge=0, le=64, description="processes that answer questions about maps, beside the one that does all else; "
        "0 or 1: one process does everything. Each takes max_request_memory, and as many threads, of its own"
    )  # fmt: skip
    threads: int = Field(64, ge=2, le=1000, description="requests that are worked on at once; more of them wait")
    large_threads: int = Field(
        4,
        ge=1,
        le=1000,
        description="of large requests, so many are worked on at once; more take turns, batch by batch",
    )
    shutdown_timeout: Duration = Field(10_000, description="how long a node that ends lets requests finish")
    log_level: str = Field(
        "info", pattern="^(debug|info|warning|error)$", description="how much is said: debug, info, warning, error"
    )
    access_log: bool = Field(False, description="whether every request is a line in the log")
    umask: str = Field(
        "077", pattern="^[0-7]{3}$", description="the rights that files of the node deny, in octal digits: 077 to all "
        "but its user, 027 lets its group read"
    )  # fmt: skip

    # -- what a node does by itself -------------------------------------------------------------------
    merge_interval: Duration = Field(1_000, description="how often the merger looks for parts without notice")
    condense_interval: Duration = Field(600_000, description="how often maps are condensed")
    retain_interval: Duration = Field(600_000, description="how often old rows are deleted")
    compact_interval: Duration = Field(3_600_000, description="how often shards are looked at that waste disk")
    snapshot_interval: Duration = Field(600_000, description="how often snapshots are brought up to date")
    cleanup_interval: Duration = Field(600_000, description="how often expired uploads and kept parts are removed")
    orphan_interval: Duration = Field(3_600_000, description="how often files that nothing names are removed")
    replication_interval: Duration = Field(5_000, description="how often a node asks for the log at the latest")
    compare_interval: Duration = Field(
        3_600_000, description="how often a replica's maps are compared with the primary's"
    )
    verify_interval: Duration = Field(0, description="how often all invariants are checked; it reads everything")

    # -- readers and writers --------------------------------------------------------------------------
    min_time_to_keep_snapshots: Duration = Field(600_000, description="a snapshot younger than this is used as it is")
    snapshot_retry_interval: Duration = Field(60_000, description="after a failure, nodes are left alone so long")
    min_time_to_keep_env_open: Duration = Field(60_000, description="files of a map stay open so long without use")
    snapshot_fetch_timeout: Duration = Field(300_000, description="how long fetching a snapshot may take")
    snapshot_cache: str = Field("", description="folder for fetched snapshots; by default the user's cache folder")
    remote_rows_max: int = Field(
        1_000_000, ge=0, description="so many keys are asked of a node at most, while no snapshot is cached"
    )
    send_part_attempts: int = Field(3, ge=1, le=100, description="tries of a request whose connections are lost")
    send_part_retry_delay: Duration = Field(1_000, description="pause before a request is tried again")
    connect_timeout: Duration = Field(5_000, ge=1, description="how long connecting to a node may take")
    read_timeout: Duration = Field(60_000, ge=1, description="how long a node may say nothing while it answers")
    synchronise: bool = Field(False, description="whether a load waits until every node has merged it")

    # -- object stores: credentials come from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY alone ----------
    objects: Annotated[str, AfterValidator(objects_place)] = Field(
        "", description="where snapshots are published: s3://bucket/prefix, or a folder that machines share"
    )
    objects_endpoint: Annotated[str, AfterValidator(http_address)] = Field(
        "", description="address of the S3 server; by default Amazon's, or AWS_ENDPOINT_URL"
    )
    objects_region: str = Field("", description="region of the bucket; by default AWS_REGION, else us-east-1")
    objects_path_style: bool = Field(
        True, description="whether the bucket stands in the path of an address; else it stands in the host's name"
    )
    objects_allow_http: bool = Field(False, description="whether the server may be spoken to without encryption")

    backups: Annotated[str, AfterValidator(objects_place)] = Field(
        "", description="where backups of the pond are put, s3://bucket/prefix or a folder: a node shows the age of "
        "the newest one there (`millpond_backup_age_seconds`)"
    )  # fmt: skip
    backups_interval: Duration = Field(
        UNITS_MS["h"], description="how often a node looks for the newest backup, where `backups` names a place"
    )

    # -- streams of events ----------------------------------------------------------------------------
    events_interval: Duration = Field(600_000, description="how often days of events are compressed and dropped")
    events_compress_after: Duration = Field(
        2 * UNITS_MS["d"], description="age from which a day of events is compressed, counted from its end; off: never"
    )
    events_retention: Duration = Field(
        14 * UNITS_MS["d"], description="age from which a day of events is dropped, counted from its end; off: never"
    )
    events_bytes_per_second: Size = Field(
        16 << 20, description="compressed bytes that a node writes in a second at most; 0: any number"
    )
    events_reports: bool = Field(
        True, description="whether loads, merges, maintenance and commits append events to the queue `millpond`"
    )
    events_lost_after: Duration = Field(
        UNITS_MS["d"], description="time without an event after which a job that a client reports counts as failed; "
        "off: never"
    )  # fmt: skip
    events_watchers_max: int = Field(10_000, ge=1, le=1_000_000, description="watches of streams that are open at once")

    # -- repositories of objects ----------------------------------------------------------------------
    versions_space: str = Field(
        "", repr=False, description="database for the rows of repositories, which servers share: "
        "postgresql://user@server:5432/database#name; by default the pond's folder. It is written down in the pond"
    )  # fmt: skip
    versions_objects: Annotated[str, AfterValidator(objects_place)] = Field(
        "", description="where repositories that name no namespace put their bytes: s3://bucket/prefix, or a folder; "
        "by default a folder of the pond"
    )  # fmt: skip

    versions_access_key: str = Field("", description="access key that clients of repositories on nodes show")
    versions_secret_key: str = Field("", repr=False, description="the secret of the access key")
    versions_sources: Names = Field(
        (), description="beginnings of the addresses that clients may import or link: s3://bucket/, local:///folder/; "
        "objects are read there with the node's own rights. None by default"
    )  # fmt: skip
    versions_namespaces: Names = Field(
        (), description="beginnings of the places that clients may name for new repositories: s3://bucket/prefix/; "
        "bytes are written there with the node's own rights. By default only local://NAME, a folder of the node"
    )  # fmt: skip

    # -- events ---------------------------------------------------------------------------------------
    events_store: str = Field(
        "", repr=False, description="Redis for streams of events, for several servers: redis://user@host:6379/0#pond; "
        "by default the pond's folder. It is written down in the pond; MILLPOND_REDIS_PASSWORD has the password"
    )  # fmt: skip

    # -- workflows ------------------------------------------------------------------------------------
    workflows_store: Literal["pond", "rocksdb"] = Field(
        "pond", description="where runs of workflows are: in the pond's own space, or in RocksDB in a folder of the "
        "pond, whose writes wait for one sync in place of two; decided before the first run"
    )  # fmt: skip
    workflows_log: str = Field(
        "", pattern=r"^(kafka://[^/\s@]+/[A-Za-z0-9._-]+)?$",
        description="command log that several processes share: kafka://host:9092,host:9092/topic; by default that in "
        "the pond's folder, for one process",
    )  # fmt: skip
    workflows_log_config: str = Field(
        "", description="file with more settings for the brokers of workflows_log, for encryption and credentials: "
        "lines name=value, with the names of librdkafka, such as security.protocol=SASL_SSL"
    )  # fmt: skip
    workflows_partitions: int = Field(
        8, ge=1, le=1_000, description="partitions of runs when the topic is made; then its own number counts"
    )
    workflows_checkpoints: Annotated[str, AfterValidator(objects_place)] = Field(
        "", description="where checkpoints of partitions are: s3://bucket/prefix, or a folder that machines share"
    )
    workflows_checkpoint_interval: Duration = Field(
        300_000, ge=100, description="how often a checkpoint is made of a partition that has changed"
    )

    workflows_events: bool = Field(False, description="tell each run's story as events: queue = tenant, job set = run")

    @model_validator(mode="after")
    def _fit_together(self) -> Settings:
        if self.workflows_log and not self.workflows_checkpoints:
            raise ValueError("workflows_log needs workflows_checkpoints")
        if bool(self.tls_cert) != bool(self.tls_key):
            raise ValueError("tls_cert and tls_key are given together")
        if self.tls_client_ca and not self.tls_cert:
            raise ValueError("tls_client_ca needs tls_cert and tls_key")
        return self

    @classmethod
    def settings_customise_sources(
        cls, settings_cls: type[BaseSettings], init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource, dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:  # fmt: skip
        """Layers are put together in `_layers`, which remembers where each value came from."""
        return (init_settings,)

    @property
    def secure(self) -> bool:
        """True when the node speaks https."""
        return bool(self.tls_cert)

    @property
    def bucket_config(self) -> dict[str, Any]:
        """The settings for `open_objects` of a bucket; what is not set there comes from the environment."""
        config = {
            "endpoint": self.objects_endpoint, "region": self.objects_region, "allow_http": self.objects_allow_http,
            "virtual_hosted_style_request": not self.objects_path_style,
        }  # fmt: skip
        return {name: value for name, value in config.items() if value}

    def own_url(self, port: int | None = None) -> str:
        """The node's address: as set, or made of its host and port."""
        if self.url:
            return self.url.rstrip("/")
        host = socket.gethostname() if self.host in ("0.0.0.0", "::") else self.host
        host = f"[{host}]" if ":" in host else host
        return f"{'https' if self.secure else 'http'}://{host}:{self.port if port is None else port}"


class Explained(NamedTuple):
    """One setting, for people: value and default in words, secrets masked."""

    name: str
    value: Any
    default: Any
    origin: str
    meaning: str


def load_settings(config: str | os.PathLike[str] | None = None, *, said: str = "given here", **given: Any) -> Settings:
    """The settings that hold for this process; what is `given` (and not None) wins over file and environment.

    Raises: `Invalid` naming the setting, where its value came from and what is wrong with it.
    """
    settings, _ = _load(config, given, said)
    return settings


def explain(
    config: str | os.PathLike[str] | None = None, *, said: str = "command line", **given: Any
) -> list[Explained]:
    """Every setting: what it is, what it would be, where it came from, what it means.

    Raises: as `load_settings`.
    """
    settings, origins = _load(config, given, said)
    return [
        Explained(
            name, in_words(name, getattr(settings, name)), in_words(name, field.default), origins.get(name, "default"),
            field.description or "",
        )
        for name, field in Settings.model_fields.items()
    ]  # fmt: skip


def unknown_in_environment() -> list[str]:
    """Names in the environment that look like settings and are none, in order: most likely a misspelling."""
    known = {f"MILLPOND_{name.upper()}" for name in Settings.model_fields} | _OTHER_NAMES | _FOR_TESTS
    return sorted(name for name in os.environ if name.startswith("MILLPOND_") and name not in known)


def _load(
    config: str | os.PathLike[str] | None, given: Mapping[str, Any], said: str
) -> tuple[Settings, dict[str, str]]:
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for origin, layer in _layers(config, given, said):
        for name, value in layer.items():
            _check_known(name, origin)
            values[name] = value
            origins[name] = origin.format(name=name.upper())
    try:
        return Settings(**values), origins
    except ValidationError as error:
        raise _refused(error, origins) from None


def _layers(
    config: str | os.PathLike[str] | None, given: Mapping[str, Any], said: str
) -> list[tuple[str, Mapping[str, Any]]]:
    named = config or os.environ.get(CONFIG)
    file = Path(named) if named else _HERE
    from_file = _read_file(file, wanted=bool(named))
    from_environment = EnvSettingsSource(Settings, env_ignore_empty=True)()
    chosen = {name: value for name, value in given.items() if value is not None}
    return [(str(file), from_file), ("MILLPOND_{name}", from_environment), (said, chosen)]


def _read_file(file: Path, *, wanted: bool) -> Mapping[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if not wanted:
            return _EMPTY
        raise Invalid(
            "the file of settings does not exist", kind="config_missing", file=file,
            hint="check the path; where no other is given, MILLPOND_CONFIG names it",
        ) from None  # fmt: skip
    except (OSError, ValueError) as error:
        raise Invalid(
            "the file of settings cannot be read", kind="config_unreadable", file=file, reason=error,
            hint="it is written in TOML, such as: port = 7433",
        ) from error  # fmt: skip


def _check_known(name: str, origin: str) -> None:
    if name in Settings.model_fields:
        return
    if name.lower().removeprefix("objects_").removeprefix("aws_") in _CREDENTIALS:
        raise Invalid(
            "credentials are no setting: files are copied and shown", kind="setting_unknown", setting=name,
            origin=origin.format(name=name.upper()),
            hint="set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment, and take them out of the file",
        )  # fmt: skip
    near = difflib.get_close_matches(name.lower().replace("-", "_"), Settings.model_fields, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}? " if near else ""
    raise Invalid(
        "there is no such setting", kind="setting_unknown", setting=name, origin=origin.format(name=name.upper()),
        hint=f"{hint}'millpond config' shows them all".strip(),
    )  # fmt: skip


def _refused(error: ValidationError, origins: Mapping[str, str]) -> Invalid:
    """The first thing that is wrong, in our words; a secret is not shown."""
    first = error.errors()[0]
    name = str(first["loc"][0]) if first["loc"] else ""
    reason = first["msg"].removeprefix("Value error, ")
    if len(first["loc"]) > 1:
        reason = f"{'.'.join(str(piece) for piece in first['loc'][1:])}: {reason}"
    values: dict[str, object] = {"reason": reason}
    if name:
        value = _MASK if name in SECRET_NAMES else first["input"]
        values = {"setting": name, "value": value, "origin": origins.get(name, "default"), "reason": reason}
    return Invalid(
        "a setting is not understood", kind="setting_value", hint="'millpond config' shows them all", **values
    )


def in_words(name: str, value: Any) -> Any:
    """A value as one would write it in the file; a secret masked."""
    if name in SECRET_NAMES:
        return _MASK if value else ""
    unit = next((unit.name for unit in Settings.model_fields[name].metadata if isinstance(unit, Unit)), None)
    if unit == "ms":
        return duration_in_words(value)
    if unit == "bytes":
        return size_in_words(value)
    if name == "tokens":
        return [{"name": token.name, "sha256": _MASK, "rights": token.rights} for token in value]
    return list(value) if isinstance(value, tuple) else value


def duration_in_words(milliseconds: int) -> str:
    """A duration in the largest unit that divides it; a setting of 0 is off.

    >>> duration_in_words(600_000), duration_in_words(0)
    ('10min', 'off')
    """
    return format_duration(milliseconds) if milliseconds else "off"
