"""Loading settings: from a file, the environment, the command line and arguments; and showing them.

A setting has the name of its group and its own: `server.port`. Where a value comes from, later ones winning:

1. the default, written in `groups.py`;
2. a file, with a table for each group: `millpond.toml` in the working folder, or the one that `MILLPOND_CONFIG` or
   `--config` names;
3. the environment: `MILLPOND_SERVER_PORT`, `MILLPOND_NODES_URLS` (with commas) …;
4. the command line: `--set server.port=7433`; or arguments in Python: `millpond.open(…, client_token="…")`.

Durations are milliseconds and sizes are bytes inside, and words outside: `10min`, `7d`, `off`; `2GiB`. How durations
are written is said in `times/durations.py`; `off` is 0 here. A name that is
no setting is refused, naming the nearest that is.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Iterator, Mapping
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from millpond.error_values import shown_address
from millpond.errors import Invalid
from millpond.settings.former import FORMER
from millpond.settings.groups import GROUPS, SETTINGS, Settings
from millpond.settings.types import duration_in_words
from millpond.sizes import size_in_words

__all__ = (
    "CONFIG", "Explained", "all_in_words", "explain", "in_words", "load_settings", "unknown_in_environment",
)  # fmt: skip

CONFIG = "MILLPOND_CONFIG"
"""The environment variable that names the file."""
_HERE = Path("millpond.toml")
_OTHER_NAMES = frozenset(
    (CONFIG, "MILLPOND_BUCKET_CACHE_MAX", "MILLPOND_COMMITTER", "MILLPOND_DRIVER_SECONDS", "MILLPOND_PIPELINE_FILES",
     "MILLPOND_POND", "MILLPOND_REDIS_PASSWORD", "MILLPOND_SPARK_MASTER", "MILLPOND_SPARK_SHARED",
     "MILLPOND_TRACEBACK", "MILLPOND_WORKFLOWS")
)  # fmt: skip
_FOR_TESTS = frozenset(("MILLPOND_STEPS_LOG", "MILLPOND_KILL_AT", "MILLPOND_KILL_FILE", "MILLPOND_CLOCK_FILE"))
_CREDENTIALS = frozenset(("access_key", "access_key_id", "secret_access_key", "secret_key", "session_token"))
_MASK = "********"
_EMPTY: Mapping[str, Any] = {}
_FLAT = {name.replace(".", "_"): name for name in SETTINGS}
_BARE = {name.partition(".")[2]: name for name in SETTINGS} | _FLAT
_IN_ENVIRONMENT = {f"MILLPOND_{flat.upper()}": name for flat, name in _FLAT.items()}


class Explained(NamedTuple):
    """One setting, for people: value and default in words, secrets masked."""

    name: str
    value: Any
    default: Any
    origin: str
    meaning: str


def load_settings(
    config: str | os.PathLike[str] | None = None, *, said: str = "given here", **arguments: Any
) -> Settings:
    """The settings that hold for this process; an argument that is not None wins over file and environment.

    `server_port`, or `server.port`, gives the setting `server.port`.

    Raises: `Invalid` naming the setting, where its value came from and what is wrong with it.
    """
    settings, _ = _load(config, arguments, said)
    return settings


def explain(
    config: str | os.PathLike[str] | None = None, *, said: str = "command line", **arguments: Any
) -> list[Explained]:
    """Every setting: what it is, what it would be, where it came from, what it means.

    Raises: as `load_settings`.
    """
    settings, origins = _load(config, arguments, said)
    return [
        Explained(
            name, in_words(name, attrgetter(name)(settings)), in_words(name, setting.default),
            origins.get(name, "default"), setting.meaning,
        )
        for name, setting in SETTINGS.items()
    ]  # fmt: skip


def all_in_words(settings: Settings) -> dict[str, Any]:
    """Every setting as one would write it in the file, secrets masked."""
    return {name: in_words(name, attrgetter(name)(settings)) for name in SETTINGS}


def unknown_in_environment() -> list[str]:
    """Names in the environment that look like settings and are none, in order: most likely a misspelling."""
    names = _IN_ENVIRONMENT.keys() | _OTHER_NAMES | _FOR_TESTS
    return sorted(name for name in os.environ if name.startswith("MILLPOND_") and name not in names)


def _load(
    config: str | os.PathLike[str] | None, arguments: Mapping[str, Any], said: str
) -> tuple[Settings, dict[str, str]]:
    stated: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for origin, name, value in _layers(config, arguments, said):
        _check_known(name, origin)
        stated[name], origins[name] = value, origin
    groups: dict[str, dict[str, Any]] = {group: {} for group in GROUPS}
    for name, value in stated.items():
        group, _, own = name.partition(".")
        groups[group][own] = _checked(name, value, origins[name])
    try:
        return Settings(**{group: kind(**groups[group]) for group, kind in GROUPS.items()}), origins
    except ValueError as error:
        raise _refused(error) from None


def _layers(
    config: str | os.PathLike[str] | None, arguments: Mapping[str, Any], said: str
) -> Iterator[tuple[str, str, Any]]:
    """The origin, name and value of each setting, a later one winning over an earlier one of the same name."""
    named = config or os.environ.get(CONFIG)
    file = Path(named) if named else _HERE
    for key, table in _read_file(file, required=bool(named)).items():
        if key in GROUPS and isinstance(table, Mapping):
            yield from ((str(file), f"{key}.{name}", value) for name, value in table.items())
        else:
            yield str(file), key, table
    for variable, value in os.environ.items():
        former = variable.removeprefix("MILLPOND_").lower()
        if value and variable in _IN_ENVIRONMENT:
            yield variable, _IN_ENVIRONMENT[variable], value
        elif value and variable.startswith("MILLPOND_") and former in FORMER:
            yield variable, former, value
    for key, value in arguments.items():
        if value is not None:
            yield said, _FLAT.get(key, key), value


def _read_file(file: Path, *, required: bool) -> Mapping[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if not required:
            return _EMPTY
        raise Invalid(
            "the file of settings does not exist", kind="config_missing", file=file,
            hint="check the path; where no other is given, MILLPOND_CONFIG names it",
        ) from None  # fmt: skip
    except (OSError, ValueError) as error:
        raise Invalid(
            "the file of settings cannot be read", kind="config_unreadable", file=file, reason=error,
            hint="it is written in TOML, such as: server.port = 7433",
        ) from error  # fmt: skip


def _check_known(name: str, origin: str) -> None:
    if name in SETTINGS:
        return
    if name.lower().removeprefix("objects").lstrip("._").removeprefix("aws_") in _CREDENTIALS:
        raise Invalid(
            "credentials are no setting: files are copied and shown", kind="setting_unknown", setting=name,
            origin=origin,
            hint="set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment, and take them out of the file",
        )  # fmt: skip
    flat = name.lower().replace("-", "_").replace(".", "_")
    near = difflib.get_close_matches(flat, _BARE, n=1, cutoff=0.5)
    hint = FORMER.get(flat) or FORMER.get(flat.partition("_")[2]) or (f"did you mean {_BARE[near[0]]}?" if near else "")
    raise Invalid(
        "there is no such setting", kind="setting_unknown", setting=name, origin=origin,
        hint=f"{hint}; 'millpond config' shows them all".removeprefix("; "),
    )  # fmt: skip


def _checked(name: str, value: object, origin: str) -> Any:
    try:
        return SETTINGS[name].value(value)
    except (ValueError, msgspec.ValidationError) as error:
        shown = _MASK if SETTINGS[name].secret else _without_secrets(value)
        raise _refused(error, setting=name, value=shown, origin=origin) from None


def _refused(reason: Exception, **values: object) -> Invalid:
    return Invalid(
        "a setting is not understood", kind="setting_value", hint="'millpond config' shows them all", **values,
        reason=str(reason),
    )  # fmt: skip


def _without_secrets(value: object) -> object:
    """A value as people are shown it: addresses without their passwords."""
    if isinstance(value, list | tuple):
        return [_without_secrets(piece) for piece in value]
    if isinstance(value, str) and "://" in value:
        return ",".join(map(shown_address, value.split(",")))
    return value


def in_words(name: str, value: Any) -> Any:
    """A value as one would write it in the file; a secret masked."""
    setting = SETTINGS[name]
    if setting.secret:
        return _MASK if value else ""
    if setting.form.unit == "ms":
        return duration_in_words(value)
    if setting.form.unit == "bytes":
        return size_in_words(value)
    if name == "nodes.intervals":
        return {job: duration_in_words(every) for job, every in value}
    if name == "server.tokens":
        return [{"name": token.name, "sha256": _MASK, "rights": token.rights} for token in value]
    return _without_secrets(list(value) if isinstance(value, tuple) else value)
