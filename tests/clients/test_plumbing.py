"""Files of ranges, and lists for collectors of garbage, as clients of lakeFS fetch them."""

from __future__ import annotations

import io
from pathlib import Path

import lakefs_sdk
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import urllib3
from lakefs_sdk.client import LakeFSClient
from lakefs_sdk.exceptions import ApiException

from millpond.ranges import load_index, open_range
from millpond.versions.objects.uploads import time_of
from tests.clients.conftest import Server


def stored(server: Server, location: str) -> bytes:
    """The bytes at an address below `local://`."""
    (file,) = server.folder.rglob(f"**/{location.removeprefix('local://')}")
    return Path(file).read_bytes()


def test_ranges_and_indexes_are_where_they_are_said_to_be(server: Server, sdk: LakeFSClient, repository: str) -> None:
    main = server.branch(repository)
    main.put("a", b"1")
    tree = main.commit("one").tree
    ranges = main.context.ranges
    (entry,) = load_index(ranges, tree).entries
    assert open_range(ranges, entry).num_rows == 1
    located = server.call("GET", f"/repositories/{repository}/metadata/range/{entry.id}")
    assert located.headers["Location"] == located.json()["location"]
    index = stored(server, sdk.metadata_api.get_meta_range(repository, tree).location)
    data = stored(server, sdk.metadata_api.get_range(repository, entry.id).location)
    assert sdk.internal_api.get_metadata_object(repository=repository, type="meta_range", object_id=tree) == index
    assert sdk.internal_api.get_metadata_object(repository=repository, type="range", object_id=entry.id) == data
    path = f"/repositories/{repository}/metadata/object/range/{entry.id}?presign=true"
    signed = server.call("GET", path)
    assert (signed.status, urllib3.request("GET", signed.headers["Location"]).data) == (302, data)
    for wrong in ("0" * 64, "..", "../../../pond.json"):
        with pytest.raises(ApiException) as missing:
            sdk.metadata_api.get_range(repository, wrong)
        assert missing.value.status == 404
    assert server.call("GET", f"/repositories/{repository}/metadata/object/data/{tree}").status == 400


def test_commits_are_listed_with_their_state(server: Server, sdk: LakeFSClient, repository: str) -> None:
    main = server.branch(repository)
    old = main.commit("old", allow_empty=True, created=1_000)
    newer = main.commit("newer", allow_empty=True, created=2_000)
    rules = lakefs_sdk.GarbageCollectionRules(default_retention_days=1, branches=[])
    assert server.call("POST", f"/repositories/{repository}/gc/rules", rules.to_dict()).status == 204
    assert sdk.repositories_api.get_gc_rules(repository).default_retention_days == 1
    assert server.call("GET", f"/repositories/{repository}/gc/rules/set_allowed").status == 204
    made = sdk.internal_api.prepare_garbage_collection_commits(repository)
    task = sdk.internal_api.prepare_garbage_collection_commits_async(repository)
    status = sdk.internal_api.prepare_garbage_collection_commits_status(repository, task.id)
    assert (status.completed, status.result.run_id) == (True, task.id)
    assert made.gc_commits_presigned_url is not None
    listed = urllib3.request("GET", made.gc_commits_presigned_url).data
    assert listed == stored(server, made.gc_commits_location) == stored(server, status.result.gc_commits_location)
    rows = dict(line.split(",")[:2] for line in listed.decode().splitlines()[1:])
    assert (rows[old.id], rows[newer.id], len(rows)) == ("true", "false", 3)
    assert server.call("GET", f"/repositories/{repository}/gc/prepare_commits/status?id=../x").status == 404
    assert sdk.internal_api.get_garbage_collection_config().grace_period == 86_400


def test_staged_addresses_are_listed_from_every_layer(server: Server, sdk: LakeFSClient, repository: str) -> None:
    main = server.branch(repository)
    main.put("committed", b"0")
    main.commit("one")
    assert sdk.internal_api.prepare_garbage_collection_uncommitted(repository).gc_uncommitted_location == ""
    named = [main.put("compacted", b"1").address]
    main.staging.compact()
    named.append(main.put("segment", b"2").address)
    main.staging.stage(pa.table({"path": ["linked", "far"], "address": [named[1], "s3://bucket/x"]}))
    named.append(main.put("token", b"3").address)
    found = sdk.internal_api.prepare_garbage_collection_uncommitted(repository)
    assert found.continuation_token is None
    table = pq.read_table(io.BytesIO(stored(server, found.gc_uncommitted_location)))
    rows = dict(zip(*(column.to_pylist() for column in table.columns), strict=True))
    assert set(named) <= set(rows)
    assert not any("://" in name for name in rows)
    assert all(seconds == (time_of(name) or 0) // 1000 for name, seconds in rows.items())
