"""`millpond token add`, `rotate`, `list` and `revoke`: the tokens of a node."""

from __future__ import annotations

from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from millpond import json_forms
from millpond.cli.options import Json, comma_list
from millpond.cli.serve import ConfigFile, DataFolder
from millpond.cli.terminal import console
from millpond.cli.verbs import verb
from millpond.client.location import in_bucket
from millpond.clock import Clock, SystemClock
from millpond.times.durations import optional_duration

if TYPE_CHECKING:
    from collections.abc import Iterator

    from millpond.nodes.tokens import TokenList
    from millpond.settings import Settings, TokenSetting

__all__ = ("add", "listed", "revoke", "rotate")

Read = Annotated[
    list[str] | None, typer.Option("--read", metavar="PATTERN", help="What it may read; '*' is everything.")
]
Write = Annotated[
    list[str] | None, typer.Option("--write", metavar="PATTERN", help="What it may load, append or run, and read.")
]
Admin = Annotated[
    list[str] | None, typer.Option("--admin", metavar="PATTERN", help="What it may make, drop, tend; '*': the node.")
]
Versions = Annotated[
    bool,
    typer.Option("--versions", help="A pair for clients of versions; patterns are repo:NAME, or repo:NAME/BRANCH."),
]
TokenName = Annotated[str, typer.Argument(metavar="NAME", help="Whose token it is.")]


Expires = Annotated[
    str | None,
    typer.Option("--expires", metavar="DURATION", help="Age at which it ends, such as 90d.", show_default="never"),
]


@verb(
    "token add",
    "millpond token add loader --write 'weather*' --read '*'",
    "millpond token add nodes --admin '*' --expires 90d --json",
    "millpond token add worker --write tenant:default --read 'stream:default/*'",
    "millpond token add --versions etl --write 'repo:flights/fix-*' --read repo:flights",
)
def add(
    name: TokenName, read: Read = None, write: Write = None, admin: Admin = None, versions: Versions = False,
    expires: Expires = None, data: DataFolder = None, config: ConfigFile = None, json: Json = False,
) -> None:  # fmt: skip
    """Draw a token and let in whoever shows it. It is printed once and stored only as a hash.

    A pattern names its kind: `map:weather*`, `stream:QUEUE/JOBSET` for events, `tenant:NAME` for workflows. One without
    a kind means maps, and `*` alone everything.

    With `--versions` it is a pair, an access key and its secret, for the API of versions and nothing else: its patterns
    are of repositories, `repo:flights` or `repo:flights/fix-*`, and `repo:` may be left out.

    A running node knows it at once, one on a bucket within a second. For a pond of several nodes with folders of their
    own, put what `--json` prints (name, sha256, rights) into `server.tokens` of the file of settings that they share.
    """
    from millpond.nodes.tokens import draw_access_key, draw_token

    clock = SystemClock()
    token = draw_token(clock)
    access_key = draw_access_key(clock) if versions else None
    rights = {"read": comma_list(read), "write": comma_list(write), "admin": comma_list(admin)}
    with _stored(_settings(data, config), create=True) as tokens:
        setting = tokens.add(name, token, rights, expires_ms=_after(clock, expires), access_key=access_key)
    _note(data, config, "token add", name)
    _show(token, setting, json=json)


@verb("token rotate", "millpond token rotate loader", "millpond token rotate nodes --overlap 1d")
def rotate(
    name: TokenName,
    overlap: Annotated[str, typer.Option("--overlap", metavar="DURATION", help="How long both are valid.")] = "7d",
    expires: Expires = None, data: DataFolder = None, config: ConfigFile = None, json: Json = False,
) -> None:  # fmt: skip
    """Draw a new secret for a token. The one that it has stays valid for a while, so that clients can be changed.

    Its rights stay, and the time at which it expires, unless `--expires` gives another. A running node knows
    it at once.
    """
    from millpond.nodes.tokens import draw_token

    clock = SystemClock()
    token = draw_token(clock)
    until_ms = _after(clock, overlap)
    with _stored(_settings(data, config)) as tokens:
        rotated = tokens.rotate(
            name, token, earlier_until_ms=clock.now_ms() if until_ms is None else until_ms,
            expires_ms=_after(clock, expires),
        )  # fmt: skip
    _note(data, config, "token rotate", name)
    _show(token, rotated, json=json)


def _note(data: str | None, config: Path | None, command: str, name: str) -> None:
    """Write a change of a token to the audit log of the node's folder, which a running node writes to as well."""
    from millpond.nodes.audit import AuditLog

    settings = _settings(data, config)
    if in_bucket(settings.server.data):
        return  # the logs of its nodes lie on their machines
    with closing(AuditLog(Path(settings.server.data), SystemClock(), alone=False)) as log:
        log.write_command(command, name=name)


def _show(token: str, setting: TokenSetting, *, json: bool) -> None:
    """Print a token, for the only time."""
    if json:
        console.print_json({"token": token, **json_forms.plain(setting)})
    elif setting.access_key is not None:
        console.say(f"access_key_id: {setting.access_key}\nsecret_access_key: {token}")
        console.note("the secret is not shown again; clients take both from ~/.lakectl.yaml, or the environment")
    else:
        console.say(token)
        console.note("it is not shown again; clients take it from MILLPOND_CLIENT_TOKEN, or from millpond.toml")


def _after(clock: Clock, duration: str | None) -> int | None:
    """The time that is a duration from now; None when there is none, or when it is off."""
    age_ms = optional_duration(duration)
    return None if age_ms is None else clock.now_ms() + age_ms


def _time(ms: int | None) -> str | None:
    return None if ms is None else datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="seconds")


@verb("token list", "millpond token list", "millpond token list --json")
def listed(data: DataFolder = None, config: ConfigFile = None) -> console.Shown:
    """Show who may use the node, and what for."""
    settings = _settings(data, config)
    from millpond.nodes.tokens import RIGHTS

    with _stored(settings) as stored:
        required, tokens = stored.exists(), [(token, stored.where) for token in stored.read()]
    tokens += [(token, "settings") for token in settings.server.tokens]
    return console.table(
        (
            {
                "name": token.name,
                "access_key": token.access_key,
                "rights": dict(token.rights),
                "expires": _time(token.expires_ms),
                "earlier_until": _time(token.earlier_until_ms),
                "from": origin,
            }
            for token, origin in tokens
        ),
        ["token", "access key", *RIGHTS, "expires", "earlier secret until", "from"],
        [
            [
                token.name,
                token.access_key,
                *(", ".join(token.rights.get(right, ())) or None for right in RIGHTS),
                _time(token.expires_ms),
                _time(token.earlier_until_ms),
                origin,
            ]
            for token, origin in tokens
        ],
        nothing=_nobody(required=required, access=settings.server.access),
    )


@verb("token revoke", "millpond token revoke loader", "millpond token revoke loader --data data/pond")
def revoke(name: TokenName, data: DataFolder = None, config: ConfigFile = None, json: Json = False) -> None:
    """Let a token in no more. A running node knows it at once."""
    settings = _settings(data, config)
    with _stored(settings) as tokens:
        left = tokens.revoke(name) + len(settings.server.tokens)
    _note(data, config, "token revoke", name)
    if json:
        console.print_json({"token": name, "revoked": True})
    else:
        console.say(f"revoked {name}")
        if not left:
            typer.echo(_nobody(required=True, access=settings.server.access), err=True)


def _nobody(*, required: bool, access: str) -> str:
    """The sentence for a node that knows no tokens."""
    if access == "open" or (access == "auto" and not required):
        return "there are no tokens: on this machine's own address, everybody may do everything"
    return 'there are no tokens: nobody is let in; add one, or set server.access = "open", on this machine alone'


def _settings(data: str | None, config: Path | None) -> Settings:
    from millpond.settings import load_settings

    return load_settings(config, server_data=data)


@contextmanager
def _stored(settings: Settings, *, create: bool = False) -> Iterator[TokenList]:
    """The tokens that are stored with a pond, which is made if it is to be made and is missing."""
    import millpond
    from millpond.nodes.tokens import TokenFile

    folder = Path(settings.server.data)
    if in_bucket(settings.server.data):
        from millpond.client.location import BucketLocation
        from millpond.nodes.node import token_list

        location, cache = BucketLocation(settings.server.data), settings.client.cache_folder("buckets")
        with location.open(create=create, cache=cache, space=settings.objects.space) as pond:
            yield token_list(pond)
        return
    if create and not (folder / "pond.json").is_file():
        millpond.open(str(folder)).close()
    yield TokenFile(folder)
