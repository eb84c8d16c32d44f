"""Settings: the sources of values, refused values, and their display."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from millpond.errors import Invalid
from millpond.settings import Settings, explain, load_settings


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in Settings.model_fields:
        monkeypatch.delenv(f"MILLPOND_{name.upper()}", raising=False)
    monkeypatch.delenv("MILLPOND_CONFIG", raising=False)


def test_later_sources_win(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_settings().port == 7433
    Path("millpond.toml").write_text('port = 1\nhost = "::1"\nupload_expiry = "2h"\n')
    assert (load_settings().port, load_settings().host) == (1, "::1")
    monkeypatch.setenv("MILLPOND_PORT", "2")
    assert load_settings().port == 2
    assert load_settings(server_port=3).port == 3
    assert load_settings(server_port=None).port == 2, "what is not given does not count"
    other = tmp_path / "other.toml"
    other.write_text("threads = 5\n")
    monkeypatch.setenv("MILLPOND_CONFIG", str(other))
    assert (load_settings().threads, load_settings().host) == (5, "127.0.0.1"), "one file, not two"


def test_the_source_of_every_value_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("millpond.toml").write_text(
        'nodes = ["http://a:1", "http://b:1"]\ntoken = "mp_unshown"\nversions_secret_key = "unshown"\n'
    )
    monkeypatch.setenv("MILLPOND_PART_RETENTION", "14d")
    explained = {setting.name: setting for setting in explain(server_port=9)}
    assert list(explained) == list(Settings.model_fields)
    assert explained["nodes"][1:4] == (["http://a:1", "http://b:1"], [], "millpond.toml")
    assert explained["part_retention"][1:4] == ("14d", "7d", "MILLPOND_PART_RETENTION")
    assert explained["port"].origin == "command line"
    assert explained["verify_interval"].value == "off"
    assert explained["max_upload_bytes"].value == "2GiB"
    assert all(setting.meaning for setting in explained.values())
    assert "unshown" not in str(explained)
    assert "unshown" not in repr(load_settings())


@pytest.mark.parametrize(
    ("written", "setting", "value"),
    [
        ('upload_expiry = "90s"', "upload_expiry", 90_000),
        ('upload_expiry = "1min"', "upload_expiry", 60_000),
        ("upload_expiry = 1500", "upload_expiry", 1500),
        ('verify_interval = "off"', "verify_interval", 0),
        ('max_upload_bytes = "500 MB"', "max_upload_bytes", 500_000_000),
        ('max_upload_bytes = "1KiB"', "max_upload_bytes", 1024),
        ('nodes = "http://a, http://b"', "nodes", ("http://a", "http://b")),
        ("synchronise = true", "synchronise", True),
    ],
)
def test_units_are_understood(written: str, setting: str, value: object) -> None:
    Path("millpond.toml").write_text(written)
    assert getattr(load_settings(), setting) == value


def test_lists_come_with_commas_or_as_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLPOND_NODES", "http://a:1,http://b:1")
    assert load_settings().nodes == ("http://a:1", "http://b:1")
    monkeypatch.setenv("MILLPOND_NODES", '["http://a:1"]')
    assert load_settings().nodes == ("http://a:1",)


@pytest.mark.parametrize(
    ("written", "kind", "named"),
    [
        ("prot = 1", "setting_unknown", "did you mean port"),
        ('upload-expiry = "1h"', "setting_unknown", "upload_expiry"),
        ("port = 99999", "setting_value", "millpond.toml"),
        ('merge_interval = "soon"', "setting_value", "such as 10min"),
        ("merge_interval = -1", "setting_value", "greater than or equal to 0"),
        ('max_part_bytes = "8 potatoes"', "setting_value", "such as 2GiB"),
        ('log_level = "loud"', "setting_value", "log_level"),
        ('tls_cert = "a.pem"', "setting_value", "given together"),
        ('tls_client_ca = "a.pem"', "setting_value", "needs tls_cert"),
        ('[[tokens]]\nname = "a"\nsha256 = "abc"\nrights = {read = ["*"]}', "setting_value", "sha256"),
        (f'[[tokens]]\nname = "a"\nsha256 = "{"0" * 64}"\nrights = {{all = ["*"]}}', "setting_value", "not all"),
        ("port = ", "config_unreadable", "millpond.toml"),
    ],
)
def test_what_is_wrong_is_named(written: str, kind: str, named: str) -> None:
    Path("millpond.toml").write_text(written)
    with pytest.raises(Invalid) as refused:
        load_settings()
    assert refused.value.kind == kind
    assert named in str(refused.value)


def test_a_file_that_is_named_must_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLPOND_CONFIG", "nowhere.toml")
    with pytest.raises(Invalid, match="does not exist"):
        load_settings()
    with pytest.raises(Invalid, match="does not exist"):
        load_settings(config="elsewhere.toml")


def test_settings_are_values() -> None:
    settings = load_settings(client_token="mp_1", nodes_urls="http://a:1")
    assert pickle.loads(pickle.dumps(settings)) == settings
    with pytest.raises(ValueError, match="frozen"):
        settings.server.port = 1  # type: ignore[misc]


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ({}, "http://127.0.0.1:7433"),
        ({"host": "::1", "port": 80}, "http://[::1]:80"),
        ({"tls_cert": "a", "tls_key": "b"}, "https://127.0.0.1:7433"),
        ({"url": "https://n1.example:7433/"}, "https://n1.example:7433"),
    ],
)
def test_a_node_has_an_address(given: dict[str, object], url: str) -> None:
    assert load_settings(**given).own_url() == url
