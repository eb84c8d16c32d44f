"""Settings: the sources of values, refused values, and their display."""

from __future__ import annotations

import pickle
import re
from operator import attrgetter
from pathlib import Path

import pytest

import millpond
from millpond.cli.serve import UMASK
from millpond.client.lookup import REMOTE_ROWS_MAX
from millpond.client.snapshots.reader import FILES_IDLE_MS
from millpond.errors import Invalid
from millpond.events.maintenance import MaintenanceRules
from millpond.memory_bound import MEMORY_MAX
from millpond.nodes.audit import FILE_BYTES_MAX, FILES_MAX
from millpond.nodes.limits import INTERVALS_MS, NodeLimits, intervals_ms
from millpond.server.workflows.shared.partitions import CHECKPOINT_SECONDS
from millpond.settings import SETTINGS, Settings, TokenSetting, explain, load_settings, unknown_in_environment
from millpond.sizes import size_in_words
from millpond.workflows.partitions import RUN_PARTITIONS


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in SETTINGS:
        monkeypatch.delenv(f"MILLPOND_{name.replace('.', '_').upper()}", raising=False)
    monkeypatch.delenv("MILLPOND_CONFIG", raising=False)


def value(name: str, settings: Settings | None = None) -> object:
    return attrgetter(name)(settings or load_settings())


def test_later_sources_win(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert value("server.port") == 7433
    Path("millpond.toml").write_text('[server]\nport = 1\nhost = "::1"\n')
    assert (value("server.port"), value("server.host")) == (1, "::1")
    monkeypatch.setenv("MILLPOND_SERVER_PORT", "")
    assert value("server.port") == 1, "what is empty does not count"
    monkeypatch.setenv("MILLPOND_SERVER_PORT", "2")
    assert value("server.port") == 2
    assert load_settings(server_port=3).server.port == 3
    assert load_settings(**{"server.port": 3}).server.port == 3
    assert load_settings(server_port=None).server.port == 2, "what is not given does not count"
    other = tmp_path / "other.toml"
    other.write_text("server.readers = 5\n")
    monkeypatch.setenv("MILLPOND_CONFIG", str(other))
    assert (value("server.readers"), value("server.host")) == (5, "127.0.0.1"), "one file, not two"


def test_the_source_of_every_value_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("millpond.toml").write_text(
        'nodes.urls = ["http://a:1", "http://b:1"]\nclient.token = "mp_unshown"\nversions.space = "unshown"\n'
    )
    monkeypatch.setenv("MILLPOND_MAPS_PART_RETENTION", "14d")
    explained = {setting.name: setting for setting in explain(server_port=9, nodes_intervals="verify=24h")}
    assert list(explained) == list(SETTINGS)
    assert explained["nodes.urls"][1:4] == (["http://a:1", "http://b:1"], [], "millpond.toml")
    assert explained["maps.part_retention"][1:4] == ("14d", "7d", "MILLPOND_MAPS_PART_RETENTION")
    assert explained["server.port"].origin == "command line"
    assert explained["nodes.intervals"].value == {"verify": "1d"}
    assert explained["maps.memory_max"].value == size_in_words(MEMORY_MAX)
    assert all(setting.meaning for setting in explained.values())
    assert "unshown" not in str(explained)
    assert "unshown" not in repr(load_settings())


@pytest.mark.parametrize(
    ("written", "setting", "expected"),
    [
        ('maps.part_retention = "90s"', "maps.part_retention", 90_000),
        ('maps.part_retention = "1min"', "maps.part_retention", 60_000),
        ("maps.part_retention = 1500", "maps.part_retention", 1500),
        ('maps.part_retention = "off"', "maps.part_retention", 0),
        ('server.max_request_memory = "500 MB"', "server.max_request_memory", 500_000_000),
        ('server.max_request_memory = "1GiB"', "server.max_request_memory", 1 << 30),
        ('nodes.urls = "http://a, http://b"', "nodes.urls", ("http://a", "http://b")),
        ('[nodes.intervals]\nmerge = "1s"\nverify = 5', "nodes.intervals", (("merge", 1000), ("verify", 5))),
        ('nodes.intervals = "merge=1s, verify=off"', "nodes.intervals", (("merge", 1000), ("verify", 0))),
        ("client.synchronise = true", "client.synchronise", True),
    ],
)
def test_units_are_understood(written: str, setting: str, expected: object) -> None:
    Path("millpond.toml").write_text(written)
    assert value(setting) == expected


def test_lists_come_with_commas_or_as_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLPOND_NODES_URLS", "http://a:1,http://b:1")
    assert value("nodes.urls") == ("http://a:1", "http://b:1")
    monkeypatch.setenv("MILLPOND_NODES_URLS", '["http://a:1"]')
    assert value("nodes.urls") == ("http://a:1",)
    monkeypatch.setenv("MILLPOND_SERVER_TOKENS", f'[{{"name": "a", "sha256": "{"0" * 64}", "rights": {{}}}}]')
    assert value("server.tokens") == (TokenSetting("a", "0" * 64, {}),)


@pytest.mark.parametrize(
    ("written", "kind", "named"),
    [
        ("prot = 1", "setting_unknown", "did you mean server.port"),
        ("server.prot = 1", "setting_unknown", "did you mean server.port"),
        ('client.read-timeout = "a"', "setting_unknown", "it is client.read_timeout now"),
        ('objects.secret_key = "a"', "setting_unknown", "AWS_SECRET_ACCESS_KEY"),
        ("server.port = 99999", "setting_value", "millpond.toml"),
        ("server = 1", "setting_unknown", "server"),
        ('maps.part_retention = "soon"', "setting_value", "such as 10min"),
        ("maps.part_retention = -1", "setting_value", "Expected `int` >= 0"),
        ('nodes.intervals = "verify"', "setting_value", "such as verify=1d"),
        ('nodes.intervals = "verify=soon"', "setting_value", "such as 10min"),
        ("[nodes.intervals]\nverify = -1", "setting_value", "Expected `int` >= 0"),
        ('server.user_proxies = "10.0.0.1/99"', "setting_value", "networks such as 10.1.0.0/16"),
        ("server.host = 5", "setting_value", "Expected `str`"),
        ("nodes.urls = [5]", "setting_value", "Expected `str`"),
        ('server.grpc_port = "none"', "setting_value", "server.grpc_port"),
        ('server.data = "gs://bucket/x"', "setting_value", "name a folder, or a bucket"),
        ('objects.backups = "https://host/x"', "setting_value", "write a bucket and a prefix"),
        ('lineage.target = "kafka://host"', "setting_value", "kafka://host:9092/topic"),
        ('tracing.target = "kafka://host/topic"', "setting_value", "write a file, or an http"),
        ('events.reports = "maybe"', "setting_value", "Expected `bool`"),
        ('server.max_request_memory = "8 potatoes"', "setting_value", "such as 2GiB"),
        ('server.log_level = "loud"', "setting_value", "server.log_level"),
        ('tls.cert = "a.pem"', "setting_value", "given together"),
        ('tls.client_ca = "a.pem"', "setting_value", "needs tls.cert"),
        ('workflows.log = "kafka://a:1/b"', "setting_value", "needs objects.place"),
        ('[[server.tokens]]\nname = "a"\nsha256 = "abc"\nrights = {read = ["*"]}', "setting_value", "sha256"),
        (f'[[server.tokens]]\nname = "a"\nsha256 = "{"0" * 64}"\nrights = {{all = ["*"]}}', "setting_value", "not all"),
        ("server.port = ", "config_unreadable", "millpond.toml"),
    ],
)
def test_what_is_wrong_is_named(written: str, kind: str, named: str) -> None:
    Path("millpond.toml").write_text(written)
    with pytest.raises(Invalid) as refused:
        load_settings()
    assert refused.value.kind == kind
    assert named in str(refused.value)


@pytest.mark.parametrize(
    ("former", "now"),
    [
        ("port", "it is server.port now"), ("nodes", "it is nodes.urls now"), ("tls_cert", "it is tls.cert now"),
        ("events_retention", "it is events.retention now"), ("send_part_attempts", "it is client.attempts now"),
        ("replication_interval", "it is nodes.intervals.replicate now"),
        ("threads", "it is no setting any more, and always 64"),
        ("client.retry_delay", "always a sixtieth of client.read_timeout"),
        ("objects.allow_http", "always that of AWS_ALLOW_HTTP"), ("server.umask", "always 077"),
        ("server.max_connections", "always one for each 64KiB of server.max_request_memory"),
        ("events.watchers_max", "always 10000"), ("events.compress_after", "always 2d, but for queues"),
        ("nodes.serve_without_peers", "it is millpond serve --without-peers now"),
        ("client.snapshot_cache", "it is client.cache now"), ("objects.cache", "it is client.cache now"),
        ("versions.access_key", "it is client.token, as ACCESS_KEY:SECRET_KEY, now"),
        ("versions.secret_key", "it is client.token, as ACCESS_KEY:SECRET_KEY, now"),
        ("workflows.log_config", "it is the end of workflows.log, as ?config=FILE, now"),
        ("lineage.target_config", "it is the end of lineage.target, as ?config=FILE, now"),
        ("workflows.checkpoints", "it is objects.place now"),
    ],
)  # fmt: skip
def test_a_former_name_is_refused_with_its_name_of_now(monkeypatch: pytest.MonkeyPatch, former: str, now: str) -> None:
    Path("millpond.toml").write_text(f"{former} = 1")
    with pytest.raises(Invalid, match=re.escape(now)) as refused:
        load_settings()
    assert refused.value.kind == "setting_unknown"
    Path("millpond.toml").unlink()
    monkeypatch.setenv(f"MILLPOND_{former.upper().replace('.', '_')}", "1")
    if f"{former}".replace("_", ".", 1) not in SETTINGS:  # else that is its name in the environment still
        with pytest.raises(Invalid, match=re.escape(now)):
            load_settings()


def test_former_settings_are_the_constants_that_they_are_said_to_be() -> None:
    limits, hour = NodeLimits(), 3_600_000
    assert (limits.upload_bytes_max, limits.part_bytes_max, limits.head_bytes_max) == (2 << 30, 8 << 30, 64 << 10)
    assert (limits.head_seconds, limits.body_seconds, limits.idle_seconds) == (15, 300, 75)
    assert (limits.requests_queued_max, limits.queue_seconds, limits.question_seconds) == (256, 20, 60)
    assert (limits.threads, limits.large_threads, limits.upload_idle_ms) == (64, 4, hour)
    assert (FILE_BYTES_MAX, FILES_MAX, REMOTE_ROWS_MAX) == (16 << 20, 10, 1_000_000)
    assert limits.files_idle_ms == FILES_IDLE_MS == 60_000
    assert (MaintenanceRules().bytes_per_second, MaintenanceRules().compress_after_ms) == (16 << 20, 48 * hour)
    assert (limits.watchers_max, limits.connection_bytes, len(SETTINGS)) == (10_000, 64 << 10, 48)
    assert (limits.shutdown_seconds, limits.client_silent_ms, UMASK) == (10, 24 * hour, 0o077)
    assert (CHECKPOINT_SECONDS, RUN_PARTITIONS) == (300, 8)


def test_what_follows_from_other_settings_is_as_it_was() -> None:
    client = load_settings().client
    assert (client.connect_timeout, client.retry_delay) == (5_000, 1_000)
    assert (client.snapshot_fetch_timeout, client.snapshot_retry_interval) == (300_000, 60_000)
    quick = load_settings(client_read_timeout="2s", client_min_time_to_keep_snapshots="0s").client
    assert (quick.connect_timeout, quick.retry_delay, quick.snapshot_retry_interval) == (500, 33, 0)
    assert load_settings(client_read_timeout="1d").client.connect_timeout == 5_000
    assert load_settings().nodes.max_clock_skew == 30_000
    assert load_settings(server_token_requests_per_second=5).server.token_requests_burst == 15


def test_the_interval_of_no_job_is_refused() -> None:
    assert intervals_ms(load_settings(nodes_intervals={"verify": "1d"})) == {**INTERVALS_MS, "verify": 86_400_000}
    with pytest.raises(Invalid, match="the interval is of no job"):
        intervals_ms(load_settings(nodes_intervals={"sleep": "1d"}))


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("nodes.urls", "http://n1:7433,http://ann:a-secret@n2:7433"), ("server.url", "https://a-secret@n1:7433"),
        ("workflows.log", "kafka://ann:a-secret@host:9092/topic"), ("objects.place", "gs://ann:a-secret@bucket/x"),
    ],
)  # fmt: skip
def test_what_an_address_holds_is_not_shown_where_it_is_refused(setting: str, value: str) -> None:
    with pytest.raises(Invalid, match=r"\*\*\*") as caught:
        load_settings(**{setting.replace(".", "_"): value})
    assert caught.value.kind == "setting_value" and "a-secret" not in str(caught.value)


@pytest.mark.parametrize(
    "place",
    [
        "http://ann:a-secret@n1:7433", "https://a-secret@n1:7433", "http://n1:7433?token=a-secret",
        "http://n1:7433,http://ann:a/a-secret@n2", "ftp://ann:a-secret@n1", "http://n1:7433#a-secret",
    ],
)  # fmt: skip
def test_an_address_of_a_node_with_credentials_is_refused_and_not_shown(place: str) -> None:
    """It would stand in every log, error and plan of Spark that names the pond; and no node was sent it."""
    with pytest.raises(Invalid) as caught:
        millpond.open(place)
    assert caught.value.kind == "node_url" and "a-secret" not in str(caught.value)


def test_a_file_that_is_named_must_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLPOND_CONFIG", "nowhere.toml")
    with pytest.raises(Invalid, match="does not exist"):
        load_settings()
    with pytest.raises(Invalid, match="does not exist"):
        load_settings(config="elsewhere.toml")


def test_no_name_that_the_code_reads_from_the_environment_is_taken_for_a_misspelling(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sources = Path(millpond.__file__).parent.rglob("*.py")
    names = {name for source in sources for name in re.findall(r'"(MILLPOND_[A-Z_]+)"', source.read_text())}
    assert {"MILLPOND_POND", "MILLPOND_COMMITTER", "MILLPOND_BUCKET_CACHE_MAX"} <= names
    for name in names:
        monkeypatch.setenv(name, "x")
    assert set(unknown_in_environment()) <= {"MILLPOND_LOST", "MILLPOND_DAMAGED", "MILLPOND_FORMAT"}, "words of Redis"


def test_settings_are_values() -> None:
    settings = load_settings(client_token="mp_1", nodes_urls="http://a:1")
    assert pickle.loads(pickle.dumps(settings)) == settings
    with pytest.raises(AttributeError, match="cannot assign"):
        settings.server.port = 1  # type: ignore[misc]


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ({}, "http://127.0.0.1:7433"),
        ({"server_host": "::1", "server_port": 80}, "http://[::1]:80"),
        ({"tls_cert": "a", "tls_key": "b"}, "https://127.0.0.1:7433"),
        ({"server_url": "https://n1.example:7433/"}, "https://n1.example:7433"),
    ],
)
def test_a_node_has_an_address(given: dict[str, object], url: str) -> None:
    assert load_settings(**given).own_url() == url
