"""Writes docs/reference/limits.md from the constants and settings that make the limits: `make docs`. A test compares.

python tools/limits_page.py            prints the page
python tools/limits_page.py --write    writes docs/reference/limits.md
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from millpond.maps.model.definition import Kind, MapDefinition, Scheme
from millpond.maps.model.store_limits import AGGREGATE_UNSUPPORTED, UNSUPPORTED
from millpond.maps.shard.tables import direct_bytes_max
from millpond.nodes.limits import NodeLimits
from millpond.settings import SETTINGS, duration_in_words, in_words
from millpond.sizes import size_in_words
from millpond.stores.lmdb.environment import Limits

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "limits.md"

OPENING = """\
# Limits

<!-- written by `make docs` from the constants and settings of the code -->

Every limit of Millpond: the number, its origin, and the effect beyond it.

* *From* names a constant or function below `millpond`, such as `maps.parts.part.PART_ROWS_MAX`; or, in **bold**, a
  [setting](../nodes.md#settings), whose default is the number.
* *Beyond it* names the [kind of error](errors.md) that the caller gets, such as `record_long`. Nothing is cut off or
  skipped in silence.
* "Rejected" means: the row is not loaded and is reported with its reason. A load with more rejected rows than its
  `max_rejects`, which is 0 by default, fails as a whole with `too_many_rejects`.
"""


@dataclass(frozen=True)
class Limit:
    """One row: the thing that is limited, the number, the constant or setting it comes from, the effect beyond it."""

    thing: str
    number: str
    origin: str
    beyond: str


def constant(thing: str, origin: str, beyond: str, unit: str = "") -> Limit:
    """A limit that a constant fixes; its name ends in its unit, where it is bytes."""
    value = value_of(origin)
    size = "BYTES" in origin.rpartition(".")[2]
    return Limit(thing, _bytes(value) if size else f"{value:,} {unit}".strip(), f"`{origin}`", beyond)


def setting(thing: str, name: str, beyond: str, unit: str = "") -> Limit:
    """A limit that a setting fixes."""
    value = in_words(name, SETTINGS[name].default)
    shown = f"{value:,}" if isinstance(value, int) else _spaced(str(value))
    return Limit(thing, f"{shown} {unit}".strip(), f"**`{name}`**", beyond)


def node(thing: str, name: str, beyond: str, unit: str = "") -> Limit:
    """A limit of a node."""
    value = getattr(NodeLimits(), name)
    if name.endswith(("_seconds", "_ms")):
        number = _spaced(duration_in_words(round(value * 1000) if name.endswith("_seconds") else value))
    else:
        number = _bytes(value) if "bytes" in name else f"{value:,} {unit}".strip()
    return Limit(thing, number, f"`nodes.limits.NodeLimits.{name}`", beyond)


def environment(thing: str, name: str, beyond: str, unit: str = "") -> Limit:
    """A limit of an LMDB environment."""
    value = getattr(Limits(), name)
    number = _bytes(value) if "bytes" in name else f"{value:,} {unit}".strip()
    return Limit(thing, number, f"`stores.lmdb.environment.Limits.{name}`", beyond)


def value_of(origin: str) -> Any:
    """The value of a constant by its name below `millpond`."""
    module, _, name = origin.rpartition(".")
    return getattr(importlib.import_module(f"millpond.{module}"), name)


def _bytes(value: int) -> str:
    words = size_in_words(value)
    return f"{value:,} bytes" if value < 1 << 12 or words.endswith("0B") or not words.endswith("iB") else _spaced(words)


def _spaced(words: str) -> str:
    digits = words.rstrip("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
    return f"{digits} {words[len(digits) :]}" if digits else words


def _direct() -> Iterator[Limit]:
    """The bytes of a key that table `direct` takes, by scheme and kind."""
    origin = "`maps.shard.layouts.direct_bytes_max`"
    beyond = "the row lies in the table `overflow`, by the key's hash; answers are the same"
    for kind in (Kind.STATE, Kind.TEMPORAL_STATE, Kind.SESSION):
        definition = MapDefinition(name="m", kind=kind, incarnation="0", scheme=Scheme.DIRECT)
        number = f"{direct_bytes_max(definition):,} bytes"
        yield Limit(f"a key stored as it is, scheme `direct`, `{kind}`", number, origin, beyond)
    auto = MapDefinition(name="m", kind=Kind.STATE, incarnation="0", scheme=Scheme.AUTO)
    yield Limit("a key stored as it is, scheme `auto`", f"{direct_bytes_max(auto):,} bytes", origin, beyond)


_REJECTED = "rejected: `too_many_rejects`"

KEYS = [
    constant("a key: bytes of its UTF-8", "maps.inputs.keys.KEY_BYTES_MAX", _REJECTED),
    constant("tags of a key", "maps.model.tags.TAGS_MAX", f"{_REJECTED}; in a question `key_tags`"),
    *_direct(),
    Limit("a key, schemes `hash` and `lookup`", "as above", "`maps.inputs.keys.KEY_BYTES_MAX`",
          "stored by its hash or interned; clashing hashes are told apart by the whole key"),
    Limit("a number of a ranged map", "-2⁶³ to 2⁶³ - 1", "64 bits", f"{_REJECTED}; a lookup: `key_number`"),
    Limit("a time", "years 1 to 9999, in milliseconds", "`times.instants.INSTANT_MIN`, `INSTANT_MAX`",
          f"{_REJECTED}; a lookup: `time_unknown`"),
    Limit("a duration", "3,652,058 days", "`times.durations.DURATION_MS_MAX`", "`duration`"),
]  # fmt: skip

MAPS = [
    Limit("a map's name", "127 letters, digits, `_`", "`maps.model.definition.check_name`", "`map_name`"),
    Limit("maps of a pond", "no fixed number", "a row of the catalogue and a folder each",
          "tested with 5,000 under 1,024 files: maps not used lately are closed, and open by themselves"),
    Limit("rows of a map", "no fixed number", "the disk", "`disk_full`: nothing of the load is stored"),
    Limit("fields of a struct", "no fixed number", "tested with 3,000", "each is a column of a snapshot"),
    Limit("bytes of one value", "no fixed number", "tested with 600 MiB",
          "it passes through memory several times, and all that a load brings to a map with rows as a whole; on nodes "
          "its part must fit into `nodes.limits.NodeLimits.part_bytes_max`"),
    Limit("the shape of a map", "fixed", "`kind`, `value`, `scheme`, `hash_bytes`", "`alter_map`: `setting_fixed`"),
]  # fmt: skip

INPUT = [
    constant("levels of lists, structs and JSON in a column", "maps.inputs.nesting.NESTING_MAX",
             "`nesting_deep`; in a file of JSON lines the row is rejected"),
    constant("a record of CSV", "maps.inputs.formats.delimited.BLOCK_BYTES",
             "`record_long`; up to twice the size it may pass, by where the blocks of the file end"),
    constant("the header of CSV", "maps.inputs.formats.delimited.HEADER_BYTES_MAX", "`input_damaged`"),
    Limit("a line of JSON lines, a row of Parquet", "no fixed number", "tested with 40 MiB", "memory"),
    constant("a file that is one JSON array", "maps.inputs.formats.json_lines.ARRAY_BYTES_MAX", "`input_format`"),
    constant("an element of XML", "maps.inputs.formats.xml.ELEMENT_BYTES_MAX", "`xml_malformed`"),
    constant("levels of XML", "maps.inputs.formats.xml.DEPTH_MAX", "`xml_malformed`"),
    constant("different names in an XML file", "maps.inputs.formats.xml.NAMES_MAX", "`xml_malformed`"),
    constant("rows of one batch in a load", "maps.inputs.tables.BATCH_ROWS_MAX", "larger batches are cut"),
    constant("commits in a micro-batch of a stream of a branch", "spark.branch_changes.CHANGES_MAX",
             "the next one goes on"),
    constant("files that `millpond load` reads without Spark", "cli.loads.HERE_BYTES_MAX",
             "Spark reads them, where `pyspark` is installed"),
]  # fmt: skip

LOADS = [
    constant("rows of a part", "maps.parts.part.PART_ROWS_MAX", "the writer seals the part and begins another"),
    constant("keys of a part that is handed over; they are not compressed",
             "maps.parts.touched.KEYS_MAX", "`part_damaged`"),
    constant("rows of a part that is handed over", "maps.parts.validate.ROWS_MAX",
             "`part_manifest`: write smaller parts"),
    constant("bytes of a part while it is written", "maps.parts.part.PART_BYTES_MAX",
             "the same: a writer holds so much in memory, and sorts it"),
    setting("memory of one piece of work on a map: sealing, merging, freezing, subsets", "maps.memory_max",
            "rows beyond it wait on the disk, sorted: work is slower, and does not fail"),
    Limit("memory of the pages that one merge touches", "512 MiB", "LMDB",
          "it writes them before the merge ends; they come on top of the line above"),
    constant("parts remembered, so that a repeat changes nothing", "maps.log.queue.PARTS_REMEMBERED_MAX",
             "the oldest are forgotten: loading their data again is a new load"),
    setting("age of merged parts and of the log", "maps.part_retention",
            "a replica that was away longer copies whole maps; a stream fails: `changes_trimmed`"),
    setting("age of what a layered map was known to hold", "maps.history", "a question as known then: `history_ended`"),
    constant("queries whose last epoch a merge tells", "refs.epochs.QUERIES_MAX",
             "the oldest are forgotten: an epoch that comes again is a new load"),
    constant("entries of the log that outlive their parts", "maps.loads.retention.LOG_ENTRIES_MAX",
             "the oldest are trimmed; readers of them get `log_trimmed`"),
    constant("a batch of Arrow that is staged or imported, decompressed, each row with its own value",
             "arrays.arrow_sizes.BATCH_BYTES_MAX", "`arrow_batch_large`: write smaller batches"),
    constant("values of such a batch, over all columns", "arrays.arrow_sizes.BATCH_ELEMENTS_MAX",
             "`arrow_batch_large`: write smaller batches"),
    node("one uploaded part", "upload_bytes_max", "`upload_too_large`: write smaller parts"),
    node("one part, unpacked", "part_bytes_max", "`part_too_large`: write smaller parts"),
    node("an upload that is not committed", "upload_idle_ms", "it is removed; the load fails and may be repeated"),
]  # fmt: skip

QUERIES = [
    constant("tests in one condition", "maps.predicates.tree.TESTS_MAX",
             "`condition_large`; `key in (…)` is one test"),
    constant("values in one condition", "maps.predicates.tree.VALUES_MAX",
             "`condition_large`: look the keys up, or ask in several questions"),
    constant("characters of all patterns of a condition", "maps.predicates.tree.PATTERN_CHARACTERS_MAX",
             "`condition_large`"),
    constant("characters of a condition", "maps.predicates.parser.CHARACTERS_MAX", "`condition_large`"),
    node("work on the next piece of a scan", "question_seconds", "503, `question_slow`: bound the key or the time"),
    constant("alerts of one map", "maps.alerts.rules.RULES_MAX", "`alerts_max`"),
    constant("buckets of an alert", "maps.alerts.rules.BUCKETS_MAX", "`alert_buckets`"),
    constant("characters of an alert's condition", "maps.alerts.rules.CONDITION_CHARS_MAX", "`alert_condition`"),
    constant("events of one alert, one load", "maps.alerts.judging.CROSSINGS_MAX",
             "one more event counts the others"),
    constant("brackets in brackets of a condition", "maps.predicates.parser.DEPTH_MAX", "`condition`"),
    constant("digits of a number in a condition", "maps.predicates.parser.DIGITS_MAX", "`condition`"),
    constant("text or bytes of one answer of `lookup`", "maps.search.gather.ANSWER_BYTES_MAX",
             "`answer_too_large`: look up fewer keys at once"),
    constant("a batch of a scan", "maps.shard.row_batches.BATCH_BYTES_MAX", "the next batch begins"),
    constant("rows on the screen of `scan` and `query`", "cli.rows.SCREEN_ROWS_MAX", "`--out FILE` takes all"),
    constant("keys that a node answers a reader without a snapshot", "client.lookup.REMOTE_ROWS_MAX",
             "the reader fetches a snapshot"),
    constant("differences that a node answers at once", "server.routes.refs.DIFF_BYTES_MAX",
             "`answer_too_large`: name a map, or a limit"),
    constant("refs whose maps a node has open", "nodes.ponds_at_refs.PONDS_MAX",
             "those that were asked of last stay; others are opened again"),
    constant("subsets of a map's snapshot that stay on disk", "maps.snapshots.subset.SUBSETS_MAX",
             "the oldest one is removed, and made again when it is wanted"),
]  # fmt: skip

NODES = [
    constant("a request body in JSON", "server.routes.table.JSON_BYTES_MAX", "413, `body_too_large`"),
    constant("a request body with an order to the node, or with one key", "server.routes.table.ORDER_BYTES_MAX",
             "413, `body_too_large`"),
    constant("a file that a page of the console loads", "server.console.map_actions.FILE_BYTES_MAX",
             "`body_too_large`: `millpond load` has no such limit"),
    constant("memory of the process that reads such a file, or a table of an import",
             "server.confined_files.MEMORY_BYTES",
             "`file_memory`; of a file of a page it counts towards the memory of all requests"),
    constant("time of it for the next rows", "server.confined_files.SECONDS_MAX", "`file_slow`", "s"),
    constant("its processor's time for all rows", "server.confined_files.PROCESSOR_SECONDS_MAX", "`file_slow`", "s"),
    constant("a row that it hands on", "server.confined_files.BATCH_BYTES", "`record_long`"),
    constant("all rows of a file that a page loads", "server.confined_files.ROWS_BYTES_MAX", "`file_rows`"),
    constant("a request body of a bulk lookup", "server.routes.table.LOOKUP_BYTES_MAX",
             "413, `body_too_large`: look up fewer keys at once, or read a snapshot"),
    constant("memory of the process of a query of the console", "server.console.queries.MEMORY_BYTES",
             "503, `sql_memory`; it waits for those of others"),
    constant("memory of all such processes; those that wait leave a quarter", "server.confined.PROCESSES_BYTES_MAX",
             "503, `request_queue_slow`"),
    constant("time of such a query", "server.console.queries.SECONDS_MAX", "503, `question_slow`", "s"),
    constant("rows of its page", "server.console.sql.ROWS_MAX", "the page says that there are more"),
    constant("an answer on a page", "server.console.query_work.PAGE_BYTES_MAX", "`answer_too_large`: ask for less"),
    constant("rows of its file", "server.console.sql.EXPORT_ROWS_MAX", "`export_rows`"),
    constant("rows of another page: of differences, of a map, of a history", "server.console.tables.ROWS_BYTES_MAX",
             "the page says that there are more"),
    constant("its file, and an answer of any such process", "server.confined.FRAME_BYTES_MAX", "`answer_too_large`"),
    constant("memory of the process that reads an object for its page", "server.console.object_rows.MEMORY_BYTES",
             "the page shows no rows"),
    constant("time of it", "server.console.object_rows.SECONDS_MAX", "the page shows no rows", "s"),
    setting("memory of all requests together", "server.max_request_memory",
            "large questions queue; others get 503 with `Retry-After`, `request_memory_full`"),
    constant("a request that always finds memory", "server.memory.SMALL_BYTES", "it counts towards the line above"),
    constant("memory of a scan", "server.routes.table.SCAN_BYTES", "it counts towards the memory of all requests"),
    constant("memory of a bulk lookup for each key, beside the sizes that its body declares",
             "nodes.lookup_service.KEY_BYTES", "as above; for more than a node has: 413, `lookup_too_large`"),
    constant("memory of a file that is sent", "server.routes.table.FILE_BYTES", "as above"),
    constant("a piece of an object that is sent", "versions.objects.uploads.CHUNK_BYTES",
             "where a quarter of the memory is taken, 64 KiB"),
    constant("memory of a digest or a manifest", "server.routes.table.DIGEST_BYTES", "as above"),
    node("large requests that wait for memory", "requests_queued_max",
            "503 with `Retry-After`, `request_queue_full`", "requests"),
    node("time that a large request waits for memory", "queue_seconds",
            "503 with `Retry-After`, `request_queue_slow`"),
    node("large requests worked on at once", "large_threads", "they take turns, batch by batch", "requests"),
    setting("requests of one token in a second, but for administration", "server.token_requests_per_second",
            "429 with `Retry-After`, `rate_limited`; clients wait as long"),
    Limit("such requests that may come at once", "three times as many", "`settings.groups.Server`", "as above"),
    constant("a file of the audit log", "nodes.audit.FILE_BYTES_MAX", "the next one is begun"),
    constant("files of the audit log", "nodes.audit.FILES_MAX", "the oldest one is removed"),
    node("of `server.max_request_memory`, for each open connection: 8,192 unless set", "connection_bytes",
            "503 `connections_full` with `Retry-After`; fewer where `ulimit -n` allows no more"),
    Limit("open connections of one address", "half of them", "`server.connections.ConnectionLimits`",
          "429 `address_connections_full` with `Retry-After`"),
    node("the head of a request: its address and headers", "head_bytes_max", "431, `header_too_large`"),
    node("time to send the head of a request", "head_seconds", "the connection is closed"),
    node("time to send a body, and a second more for every 16 KiB of it", "body_seconds",
            "the connection is closed"),
    node("time without a request", "idle_seconds", "the connection is closed"),
    constant("requests of a connection that wait for the one that is answered", "server.connections.PIPELINED_MAX",
             "the connection is closed"),
    constant("bytes of a large body that are read after its request was answered",
             "server.lingering_close.LINGER_BYTES_MAX", "the connection is closed"),
    constant("time for which they are read, and for which a smaller body may still come",
             "server.lingering_close.LINGER_SECONDS", "the connection is closed", "s"),
    node("requests worked on at once", "threads", "more of them queue", "requests"),
    constant("requests that wait for a change: of the log, of a map, of a job", "server.long_polls.POLLS_MAX",
             "503 with `Retry-After`, `long_polls_full`"),
    constant("threads of requests that wait for each other", "server.thread_limits.WAITERS_MAX", "more of them queue"),
    constant("entries in one page of the log", "server.routes.log.PAGE_MAX", "422; clients read page by page"),
    setting("silence of a sender or of a node", "client.read_timeout", "the connection is closed and tried again"),
    setting("attempts to send over a broken connection", "client.attempts", "`node_unreachable`"),
]  # fmt: skip

DISK = [
    environment("address space of an environment at first", "map_bytes", "it doubles by itself; this is not disk"),
    environment("the same, at most: the size of a shard's file", "map_bytes_max", "`space_full`"),
    environment("readers of one environment, all processes together", "readers_max", "`readers_full`", "transactions"),
    environment("a full environment waits for readers of its process", "grow_seconds_max", "`space_in_use`", "s"),
    constant("a key of the small records (log, queue, catalogue)", "kernel.space.KEY_BYTES_MAX", "`space_key_length`"),
    constant("a value of the small records", "kernel.space.VALUE_BYTES_MAX", "`space_value_length`"),
    constant("files of an open map", "maps.shard.open_shards.FILES_PER_SHARD",
             "half of the files that are not reserved are for maps; those that were not used lately are closed"),
    constant("files that neither maps nor connections take", "maps.shard.open_shards.FILES_RESERVED",
             "a quarter of all files, where `ulimit -n` is less than 1,024"),
    constant("open maps, all ponds of a process together", "maps.shard.open_shards.SHARDS_MAX",
             "the same: an open map takes 25 KB of memory in a node, up to 250 KB elsewhere, and address space"),
    Limit("open files", "the system's", "`ulimit -n`, which the `millpond` command raises as far as it may",
          "maps are closed first, then `limit_reached`"),
]  # fmt: skip

EVENTS = [
    constant("characters of a queue", "events.names.QUEUE_CHARS_MAX", "`stream_name`"),
    constant("characters of a job set", "events.names.JOB_SET_CHARS_MAX", "`stream_name`"),
    constant("an event: its payload and headers", "events.event.EVENT_BYTES_MAX", "`event_invalid`"),
    constant("bytes of a kind", "events.event.KIND_BYTES_MAX", "`event_invalid`"),
    constant("the headers of an event", "events.event.HEADERS_BYTES_MAX", "`event_invalid`"),
    constant("events of one append", "events.event.BATCH_EVENTS_MAX", "`event_batch_size`: append several batches"),
    constant("bytes of one append; over HTTP, those of a body in JSON", "events.event.BATCH_BYTES_MAX", "the same"),
    constant("a compressed batch, before compression; a larger event has its own", "events.codec.BATCH_PLAIN_BYTES",
             "the next batch begins"),
    constant("days that share a batch, together", "events.compress.FOLD_BYTES", "a day has batches of its own"),
    node("watches of streams that are open at once", "watchers_max", "503, `watchers_full`"),
    constant("events held for all watchers of a process", "events.watchers.RINGS_BYTES",
             "watchers that are behind read the store"),
    constant("events that all watchers of a process hold while their readers take none", "events.watchers.HELD_BYTES",
             "each has an equal part, and reads smaller pages"),
    constant("values of the filters of a reader", "events.filters.FILTER_VALUES_MAX", "`event_filter`"),
    constant("names and values of the filters of a reader", "events.filters.FILTER_BYTES_MAX", "`event_filter`"),
    constant("commands of workflows whose events wait for streams",
             "server.workflows.event_publisher.STORIES_WAITING_MAX",
             "the oldest are dropped, counted, and told to their runs"),
    constant("jobs that `millpond watch` follows by their state", "cli.watch.JOBS_MAX", "the oldest stay as counted"),
]  # fmt: skip

WORKFLOWS = [
    constant("commands that wait", "workflows.processor.processor.QUEUED_MAX", "RESOURCE_EXHAUSTED, `commands_full`"),
    constant("principals", "workflows.engine.metadata.tenancy.PRINCIPALS_MAX", "INVALID_ARGUMENT, `principals_full`"),
    constant("streams of workers", "server.rpc.dispatch.POLLS_MAX", "RESOURCE_EXHAUSTED, `calls_full`"),
    constant("a request for health over gRPC", "server.rpc.health.REQUEST_BYTES_MAX", "RESOURCE_EXHAUSTED"),
    constant("requests for health over gRPC that come at once", "server.rpc.health.RECEIVED_MAX",
             "RESOURCE_EXHAUSTED; one address may take no more than three quarters"),
    constant("watches of health over gRPC", "server.rpc.health.WATCHES_MAX", "the same"),
    constant("workers in groups", "server.workflows.registrations.REGISTERED_MAX",
             "the one that was silent for the longest time is in none"),
    constant("characters of a name", "server.workflows.registrations.NAME_CHARACTERS_MAX",
             "INVALID_ARGUMENT, `workflow_name`"),
    constant("a command in a bucket", "workflows.logs.bucket.ENTRY_BYTES_MAX", "INVALID_ARGUMENT, `entry_large`"),
    constant("seconds without a sign of life of the owner in a bucket", "workflows.logs.bucket_owner.LEASE_SECONDS",
             "another process takes over"),
    constant("commands in the log", "workflows.processor.partition.COMMANDS_RETAINED", "the oldest are dropped"),
    constant("seconds of a wait for a workflow event", "server.workflows.methods.AWAIT_SECONDS_MAX",
             "DEADLINE_EXCEEDED, `wait_over`"),
    constant("characters of a correlation key", "workflows.engine.limits.CORRELATION_KEY_CHARACTERS_MAX",
             "INVALID_ARGUMENT, or VAR_SUB_ERROR of the node"),
    constant("external events that a correlated event makes", "workflows.engine.limits.CORRELATIONS_MAX",
             "nodes that come later wait for another one"),
    constant("commands that one command causes in its write", "workflows.processor.partition.CAUSED_PER_COMMAND",
             "the others follow in later writes"),
    constant("threads of a run that move at once", "workflows.engine.limits.THREADS_ACTIVE_MAX", "more of them queue"),
    constant("threads of a run in all", "workflows.engine.limits.THREADS_MAX", "INTERNAL_ERROR"),
    constant("threads in the row of a run", "workflows.engine.limits.THREADS_LISTED_MAX",
             "the oldest completed ones are archived"),
    constant("rounds of one command", "workflows.engine.limits.ROUNDS_MAX", "INTERNAL_ERROR"),
    constant("a value", "workflows.engine.limits.VALUE_BYTES_MAX", "INVALID_ARGUMENT, or a failure of the node"),
    constant("child runs that one command starts", "workflows.engine.limits.CHILD_RUNS_MAX", "INTERNAL_ERROR"),
    constant("runs that one step of a bulk job deletes, or one of a migration moves",
             "workflows.engine.limits.BULK_RUNS_MAX", "the next step"),
    constant("different values that a variable is found by", "workflows.store.tags.VALUES_INDEXED_MAX",
             "those behind them are not found"),
    constant("runs or task runs that one call for metrics reads", "server.workflows.metric_windows.METRIC_ROWS_MAX",
             "`search_limit`"),
    constant("runs from a root to its youngest descendant", "workflows.engine.limits.RUN_DEPTH_MAX", "INTERNAL_ERROR"),
]  # fmt: skip

SECTIONS = (
    ("Keys and times", KEYS, ""),
    ("Maps", MAPS, ""),
    ("Input", INPUT, ""),
    ("Loads and parts", LOADS, ""),
    ("Queries", QUERIES, ""),
    ("Events", EVENTS, ""),
    ("Workflows", WORKFLOWS, "Names in capitals are statuses of gRPC, or failures of a node of a run."),
    (
        "Nodes",
        NODES,
        "A node refuses a request before it reads the body, where the body says its length; the rest is not read.",
    ),
    ("Files", DISK, "A pond has one LMDB environment for small records, and one for each map (its shard)."),
)

LAYERED = """\
## Layered maps

A map in a folder, unless made with `store="shard"` or under such a setting `maps.store`, keeps its rows in
immutable layers: a load writes a layer of what it brings and counts in one transaction. Neighbours are folded after a
load as far as that costs what it brought, large ones in the background of a node. Every question has the answer that
a shard gives; what layers do not do is refused with `store_unsupported`:

| operation | way out |
|---|---|
"""

AGGREGATES = """\
## Aggregates

Rows of aggregates [add up](../inputs.md#events-that-add-up), in layers unless the map says `store="shard"`, or nodes
replicate it. The manifest of a layered one remembers its last 256 loads. What aggregates do not do is refused with
`aggregate_unsupported`:

| operation | way out |
|---|---|
"""

CLOSING = """\
## Memory

* **Readers.** Snapshots and shards are memory-mapped: their pages are the system's cache, shared by all processes, and
  given back when memory is short. A lookup allocates little more than its answer.
* **Layers.** A process's own memory, `RssAnon`, stays within `maps.memory_max` and 300 MB: for a load of 10 M rows
  275 MiB with 64 MiB, 520 MiB with 512 MiB, and less for other work. `VmRSS` also counts mapped files, 630 MiB there.
* **Writers.** A part in the making holds its rows in memory, at most the bytes of a part above, for each map and task.
* **Nodes.** A node needs about 200 MiB, measured over [half an hour of work](../benchmarks.md#without-a-rival), and
  `server.max_request_memory` for bodies and about as much for their answers.
"""


def page() -> str:
    """The whole page."""
    parts = [OPENING]
    for title, limits, prose in SECTIONS:
        parts += [f"## {title}\n", *([f"{prose}\n"] if prose else []), "| limit | number | from | beyond it |"]
        parts.append("|---|---|---|---|")
        parts += [f"| {limit.thing} | {limit.number} | {limit.origin} | {limit.beyond} |" for limit in limits]
        parts.append("")
    for opening, refused in ((LAYERED, UNSUPPORTED), (AGGREGATES, AGGREGATE_UNSUPPORTED)):
        parts.append(opening + "".join(f"| `{operation}` | {way_out} |\n" for operation, way_out in refused.items()))
    return "\n".join([*parts, CLOSING]).rstrip() + "\n"


if __name__ == "__main__":
    if "--write" in sys.argv:
        PAGE.write_text(page(), encoding="utf-8")
    else:
        sys.stdout.write(page())
