"""The claims that are published, with what each of them does not show and the command that repeats it.

The figures are in `bench/results/`; `tools/benchmarks_page.py` makes a page of both.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ("ALONE", "CLAIMS", "Claim")

ALONE = "Without a rival"


@dataclass(frozen=True)
class Claim:
    """One claim; `shown` are the tasks that the page has, all without it."""

    name: str
    part: str
    title: str
    command: str
    sentence: str
    limits: str
    shown: tuple[str, ...] = ()


CLAIMS = (
    Claim(
        "as_of", "Maps", "Values as of a time", "bench/lookup.py --only temporal_state",
        "A million lookups as of a time, from Arrow to Arrow.",
        "Rivals have sorted rows in memory and two cores; Millpond reads files on one.",
    ),
    Claim(
        "lookup", "Maps", "Other lookups", "bench/lookup.py",
        "A million lookups in maps of other kinds.",
        "Polars wins where numbers are sorted and ranges do not overlap.",
    ),
    Claim(
        "get", "Maps", "One key", "bench/get.py",
        "One `get`, in the process that holds the pond.",
        "The first `get` imports the compiler. Most of Redis' time is a wake-up; LMDB only finds bytes.",
        ("first get after opening", "state", "temporal_state", "session", "ranged_state"),
    ),
    Claim(
        "load_spark", "Maps", "Loading by Spark", "bench/scale.py --only load",
        "Spark loads rows in random order, to where lookups answer.",
        "Parquet is not sorted by key: it can only be scanned.",
        ("load by Spark, from files", "load by Spark, a computed column", "load by Spark, df.write"),
    ),
    Claim(
        "scale", "Maps", "A map as it grows", "bench/scale.py",
        "The same work on ten times the rows.",
        "A merge costs what it brings, and its share of folding.",
        ("merge 1 M rows", "1 M lookups", "get, median"),
    ),
    Claim(
        "merge_delta", "Maps", "Beside Delta Lake", "bench/merge_delta.py --python ENVIRONMENT/bin/python",
        "A million random rows, merged by one process and by `MERGE`.",
        "Delta Lake has its table unsorted, on one machine; it is built for many.",
    ),
    Claim(
        "layers", "Maps", "Loads, branches, differences, merges", "bench/layers.py --spark ENVIRONMENT/bin/python",
        "Ten million rows, in one process.",
        "DuckDB has both states in memory, and finds no conflicts.",
        ("load in one process", "merge 1 M rows", "make a branch", "commit of a small load", "open at a ref, and get",
         "diff of 1 %, random rows", "merge of 1 % on both sides, random rows", "diff of 1 %, neighbours",
         "merge of 1 % on both sides, neighbours"),
    ),
    Claim(
        "known", "Maps", "As known at", "bench/known.py",
        "Events that ask as of one time and as known at another, over 100 commits.",
        "Rivals join a table of all rows with the time of their commit.",
    ),
    Claim(
        "aggregate", "Maps", "Events that add up",
        "bench/aggregate.py --spark --deltalake ENVIRONMENT/bin/python --python ENVIRONMENT/bin/python",
        "Counts, sums and extremes by key and hour, of ten million events.",
        "DuckDB has two cores and its table in memory.",
    ),
    Claim(
        "enrich", "Maps", "Enriching in Spark", "bench/enrich.py",
        "Five million events with the state of their time.",
        "The broadcast join knows nothing of time: a draw.",
    ),
    Claim(
        "bucket", "Maps", "In a bucket",
        "bench/bucket.py --lake NAME=PYTHON",
        "Ten million rows in a bucket of a local S3 server.",
        "Lakes lie in a folder. Requests carry over to other servers, times do not.",
        ("small loads, 64 threads", "a small load, one thread", "cold get", "cold get, requests",
         "cold lookup of 1,000 keys", "cold lookup of 1,000 keys, requests", "load by Spark", "merge of 1 %"),
    ),
    Claim(
        "load", "Maps in shards", "Sealing and merging", "bench/load.py",
        "A million rows become a part, and the part is merged.",
        "LMDB is given rows that are sorted and encoded.",
    ),
    Claim(
        "freeze", "Maps in shards", "Freezing", "bench/freeze.py",
        "A snapshot after 1 % of the keys changed, and the bytes a reader fetches.",
        "A fifth changed at random costs as much as a full freeze.",
        ("temporal_state", "temporal_state, to fetch"),
    ),
    Claim(
        "condense", "Maps in shards", "Condensing", "bench/condense.py",
        "Half of two million rows go, for they repeat others.",
        "DuckDB and Polars write a new file from memory and keep no order of changes.",
        ("temporal_state, hash 8", "temporal_ranged_state, hash 8", "session, hash 8"),
    ),
    Claim(
        "remote", "Nodes", "Questions over HTTP", "bench/remote.py",
        "A hundred thousand keys at once, and one.",
        "Redis answers one key sooner.",
        ("100,000 keys at once", "one key"),
    ),
    Claim(
        "nodes_uploads", "Nodes", "Uploads", "bench/nodes.py --only uploads",
        "Parts sent to a node, beside the same bytes sent to nginx.",
        "A node reads and validates every row; nginx none.",
    ),
    Claim(
        "nodes_small", "Nodes", "Small loads", "bench/nodes.py --only small",
        "Loads of a thousand rows from four writers.",
        "The bare route only stores and syncs. A good part of a load's time makes its four files.",
    ),
    Claim(
        "connections", "Nodes", "Many connections", "bench/connections.py",
        "2,000 open connections `get` values, beside a route that does nothing.",
        "The generator shares the two processors.",
        ("500 a second, 99 %", "1,000 a second, 99 %", "2,000 a second, 99 %", "as fast as they can, answered"),
    ),
    Claim(
        "stream", "Nodes", "Streams", "bench/stream.py",
        "The time until the last of a file's 10,000 rows can be read.",
        "Redis is written at least once, Millpond exactly once.",
        ("after the file",),
    ),
    Claim(
        "versions", "Versions", "Versions from Python", "bench/versions.py",
        "Entries of a million files, in LMDB, synced.",
        "lakeFS is asked over HTTP; bare ways keep no history.",
        ("stage a table", "commit of 100,000 staged rows", "delete 100,000 paths, 1,000 a call",
         "commit onto 1,000,000: every tenth", "difference, 100,000 of 1,000,000, as Arrow",
         "merge, both sides changed every range of 1,000,000", "stat, committed"),
    ),
    Claim(
        "versions_deletions", "Versions", "Behind deletions", "bench/versions.py --only tombstones",
        "One object is listed behind deleted ones.",
        "A deleted folder is one entry.",
        ("list one object",),
    ),
    Claim(
        "versions_spaces", "Versions", "LMDB and PostgreSQL", "bench/versions.py --only spaces",
        "Rows of repositories in both, beside psycopg and a table.",
        "PostgreSQL runs on the same machine: no network.",
        ("rows staged, one a call", "rows staged, 4,000 a call", "paths deleted, 1,000 a call", "stat, committed"),
    ),
    Claim(
        "versions_http", "Versions", "Versions over HTTP", "bench/versions_http.py",
        "One call at a time by 1, 4 and 16 clients.",
        "With many clients, reads over PostgreSQL fall behind lakeFS.",
        ("stage an entry", "stat, staged", "upload 200 B"),
    ),
    Claim(
        "events", "Events", "Appending", "bench/events.py",
        "Events with index, position and registry, beside `putmulti` of the payloads.",
        "Small batches pay for the transaction.",
        ("append, synced",),
    ),
    Claim(
        "events_redis", "Events", "Events in Redis", "bench/events_redis.py",
        "Appends, memory and reads, beside streams of Redis.",
        "Many events in a call are cheaper: append together.",
        ("append, batches of 100", "append, one event a call", "append, one event to each of 500 job sets a call"),
    ),
    Claim(
        "events_spark", "Events", "Events in Spark", "bench/events_spark.py",
        "Spark appends events, and reads one history.",
        "Who needs neither ids nor watchers is better served by files.",
    ),
    Claim(
        "workflows_dbos", "Workflows", "Beside DBOS", "bench/workflows_dbos.py --beside bench/results/workflows.json",
        "Runs of one task; DBOS is a library, without a network.",
        "One run alone ends sooner in DBOS.",
        ("10 workers", "10 workers, processor of a run", "10 workers, one in flight"),
    ),
    Claim(
        "space", "Storage", "Durable writes", "bench/space.py",
        "Threads write a row each, and wait for the disk.",
        "SQLite syncs once, LMDB twice: one thread is slower. Disks differ.",
        ("durable writes",),
    ),
    Claim(
        "validate", ALONE, "Validating a part", "bench/validate.py", "", "",
        ("state, long", "state, text of 200 bytes"),
    ),
    Claim(
        "nodes_merging", ALONE, "Merging on a node", "bench/nodes.py --only merging", "", "",
        ("160 parts of 1,000 rows, 1 map",),
    ),
    Claim(
        "armada", ALONE, "History by Armada's API", "bench/armada.py", "", "",
        ("history, Armada's API by gRPC", "history, Armada's API by HTTP"),
    ),
    Claim(
        "watchers", ALONE, "Ten thousand watchers", "bench/watchers.py", "", "",
        (
            "memory of a watcher, 10,000 of them", "an event to 10,000 watchers of 100 job sets, the last",
            "processor of the node, a watcher and event",
        ),
    ),
    Claim("nodes_snapshots", ALONE, "Fetching a snapshot", "bench/nodes.py --only snapshots", "", ""),
    Claim(
        "overload", ALONE, "Overload", "bench/overload.py", "", "",
        ("get beside 64 scans, 8 connections, 99 %", "memory of the node, 64 scans, 8 connections"),
    ),
    Claim(
        "story", ALONE, "A pond's own story", "bench/story.py", "", "",
        ("load, processor", "threads of the story, processor"),
    ),
    Claim("workflows", ALONE, "Workflows", "bench/workflows.py", "", "", ("1 worker", "10 workers")),
    Claim(
        "pipelines", ALONE, "Pipelines", "bench/pipelines.py --spark --dagster PYTHON", "", "",
        ("runs of five steps",),
    ),
    Claim(
        "workflows_size", ALONE, "Open workflows", "bench/workflows_size.py", "", "",
        ("processor of a run", "from SIGKILL to the first reply"),
    ),
    Claim(
        "workflows_kafka", ALONE, "Workflows on Kafka", "bench/workflows_kafka.py", "", "",
        ("hand-over: killed, and away", "10 workers"),
    ),
    Claim("store_layout", ALONE, "Layout of runs", "bench/store_layout.py", "", "", ("read a whole run",)),
    Claim(
        "extremes", ALONE, "Shapes at the edge", "bench/extremes.py", "", "",
        ("maps: open", "times: get, median", "values: load", "ranges: get, median"),
    ),
    Claim("soak", ALONE, "Soak", "bench/soak.py", "", "", ("memory of node 0",)),
)  # fmt: skip
