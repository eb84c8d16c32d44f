"""Names that settings had before they lay in groups, so that whoever writes one learns its name of now."""

from __future__ import annotations

from millpond.settings.groups import SETTINGS

__all__ = ("FORMER",)

_UNGROUPED = ("server", "nodes", "client", "maps")
_RENAMED = {
    "nodes": "nodes.urls", "objects": "objects.place", "backups": "objects.backups",
    "send_part_attempts": "client.attempts", "workflows_checkpoints": "objects.place",
    "workflows_log_config": "the end of workflows.log, as ?config=FILE,",
    "lineage_target_config": "the end of lineage.target, as ?config=FILE,",
    **dict.fromkeys(("snapshot_cache", "client_snapshot_cache", "objects_cache"), "client.cache"),
    **dict.fromkeys(("versions_access_key", "versions_secret_key"), "client.token, as ACCESS_KEY:SECRET_KEY,"),
    **dict.fromkeys(("serve_without_peers", "nodes_serve_without_peers"), "millpond serve --without-peers"),
}  # fmt: skip
_JOBS = {"replication": "replicate", "orphan": "orphans"}
_TIMED = (
    "merge", "condense", "retain", "compact", "snapshot", "cleanup", "orphan", "replication", "compare", "verify",
    "backups", "events",
)  # fmt: skip
_CONSTANTS = {
    "max_upload_bytes": "2GiB", "max_part_bytes": "8GiB", "max_header_bytes": "64KiB", "header_timeout": "15s",
    "body_timeout": "5min", "idle_timeout": "75s", "max_requests_queued": "256", "queue_timeout": "20s",
    "question_timeout": "1min", "upload_expiry": "1h", "threads": "64", "large_threads": "4",
    "audit_bytes_max": "16MiB", "audit_files": "10", "min_time_to_keep_env_open": "1min", "remote_rows_max": "1000000",
    "send_part_retry_delay": "a sixtieth of client.read_timeout, 1s at most",
}  # fmt: skip
_DERIVED = {
    "client.connect_timeout": "a quarter of client.read_timeout, 5s at most",
    "client.retry_delay": "a sixtieth of client.read_timeout, 1s at most",
    "client.snapshot_fetch_timeout": "five times client.read_timeout",
    "client.snapshot_retry_interval": "a tenth of client.min_time_to_keep_snapshots",
    "server.token_requests_burst": "three times server.token_requests_per_second",
    "server.max_connections_per_address": "half of all connections",
    "server.access_log": "on with server.log_level = debug",
    "events.bytes_per_second": "16MiB",
    "events.lost_after": "1d",
    "events.compress_after": "2d, but for queues that have an age of their own",
    "events.watchers_max": "10000",
    "server.max_connections": "one for each 64KiB of server.max_request_memory",
    "nodes.max_clock_skew": "twice nodes.lag_limit",
    "server.audit_log": "audit.jsonl in the data folder, which may be a link",
    "server.shutdown_timeout": "10s",
    "server.umask": "077",
    "workflows.checkpoint_interval": "5min",
    "workflows.partitions": "8, unless the topic is there and has others",
    "objects.endpoint": "that of AWS_ENDPOINT_URL",
    "objects.region": "that of AWS_REGION",
    "objects.allow_http": "that of AWS_ALLOW_HTTP",
    "objects.path_style": "true, without AWS_VIRTUAL_HOSTED_STYLE_REQUEST",
}
_GONE = {
    **_CONSTANTS, **{name.replace(".", "_"): value for name, value in _DERIVED.items()},
    **{name.partition(".")[2]: value for name, value in _DERIVED.items() if name.startswith(_UNGROUPED)},
}  # fmt: skip

FORMER: dict[str, str] = {
    **{name.partition(".")[2]: f"it is {name} now" for name in SETTINGS if name.startswith(_UNGROUPED)},
    **{name.replace(".", "_"): f"it is {name} now" for name in SETTINGS},
    **{former: f"it is {name} now" for former, name in _RENAMED.items()},
    **{f"{name}_interval": f"it is nodes.intervals.{_JOBS.get(name, name)} now" for name in _TIMED},
    **{name: f"it is no setting any more, and always {value}" for name, value in _GONE.items()},
}
"""The fate of each former name, as a sentence."""
