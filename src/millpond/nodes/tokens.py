"""Access control: tokens, and the rights each carries.

    tokens.json     in the data folder: [{"name", "sha256", "rights": {"read": [pattern…], "write": …, "admin": …},
                    "expires_ms", "earlier_sha256", "earlier_until_ms", "access_key"}]

A token with an access key is a *pair*, the credentials of clients of versions. A pair opens no map. A token without an
access key opens repositories to such clients when it names some, `repo:pond`, or has `admin` on everything.

Invariants:
* the file's existence says that tokens are wanted: one that names none lets nobody in. A node is open to everybody on
  this machine before there is a file, or because the setting `server.access` says so, and for no other reason;
* whoever changes the file holds `.tokens.lock`; the file is readable by its owner alone from its first byte on;
* a token is never stored, only its SHA-256; 32 random bytes need no salt and no stretching;
* every token known is compared, each in constant time, so that answers tell nothing by how long they take;
* `admin` implies `write`, and `write` implies `read`, for the same names; patterns are of the shell (`weather*`);
* a pattern opens things of one kind: `map:weather*`, `stream:etl/*`, `tenant:default`, `repo:flights/fix-*`. One
  without a kind is one of maps, or, in a pair, of repositories. `*` alone is everything;
* a token is valid before its `expires_ms`, and the secret that it had before it was rotated, before `earlier_until_ms`;
* what is about no one map (the log, the jobs) needs its right on `*`.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import stat
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path

from millpond.clock import Clock
from millpond.error_values import shown
from millpond.errors import AlreadyExists, Denied, Invalid, NotFound, Unavailable
from millpond.json_forms import JsonForm, to_json
from millpond.settings import TokenSetting
from millpond.stores.files import write_file_atomically
from millpond.stores.locks import alone

__all__ = (
    "ANYBODY", "LISTED", "NOBODY", "RIGHTS", "Caller", "TokenFile", "TokenList", "Tokens", "draw_access_key",
    "draw_token", "hash_token", "split_pattern",
)  # fmt: skip

RIGHTS = ("read", "write", "admin")
"""Each implies those before it."""
_EVERYTHING = "*"
_KINDS, _KINDS_OF_PAIRS = ("map", "stream", "tenant", "repo"), ("repo",)
"""The kinds of things that a token opens, and a pair; the first is that of a pattern which names none."""
_RANDOM_BYTES = 32
_ACCESS_KEY_DRAWN = 14
_LOCK_SECONDS = 10.0
_OWNER_ONLY = 0o600
"""Hashes only, but nobody else's business."""
LISTED = JsonForm(list[TokenSetting])


@dataclass(frozen=True, slots=True)
class Caller:
    """The sender of a request, and their rights: right → patterns. `of_pair`: they showed an access key."""

    name: str
    rights: Mapping[str, tuple[str, ...]]
    of_pair: bool = False
    _patterns: dict[tuple[str, str], list[str]] = field(default_factory=dict, init=False, repr=False, compare=False)
    """The patterns of each right and kind that were looked for."""

    def may(self, right: str, map: str | None = None) -> bool:
        """True when the caller has this right: on a map, or, without one, on everything."""
        if map is None:
            return bool(self.patterns(right, _EVERYTHING))
        return any(fnmatchcase(map.lower(), pattern) for pattern in self.patterns(right, "map"))

    def need(self, right: str, *maps: str) -> None:
        """Insist on a right: on each of these maps, or, without any, on everything.

        Raises: `Denied`.
        """
        for map in maps or (None,):
            if not self.may(right, map):
                raise self.denied(right, "everything" if map is None else map)

    def need_all(self, right: str, maps: Iterable[str]) -> None:
        """Insist on a right on each of some maps; on any map at all, when there is none of them.

        Raises: `Denied`.
        """
        self.need_somewhere(right)
        for map in maps:
            self.need(right, map)

    def need_somewhere(self, right: str, kind: str = "map") -> None:
        """Insist on a right on anything of a kind at all.

        Raises: `Denied`.
        """
        if not self.patterns(right, kind):
            raise self.denied(right, f"any {kind}")

    def may_tenant(self, right: str, tenant: str) -> bool:
        """True for a right on a tenant of workflows."""
        patterns = self.patterns(right, "tenant")
        return "*" in patterns or any(fnmatchcase(tenant, pattern) for pattern in patterns)

    def need_tenant(self, right: str, tenant: str) -> None:
        """Insist on a right on a tenant of workflows.

        Raises: `Denied`.
        """
        if not self.may_tenant(right, tenant):
            raise self.denied(right, f"tenant:{tenant}")

    def patterns(self, right: str, kind: str) -> list[str]:
        """The patterns of this right on things of a kind, and of the rights that imply it.

        >>> loader = Caller("loader", {"write": ("weather*", "stream:etl/*")})
        >>> loader.patterns("read", "map"), loader.patterns("read", "stream"), loader.patterns("read", "tenant")
        (['weather*'], ['etl/*'], [])
        """
        patterns = self._patterns.get((right, kind))
        if patterns is None:
            enough = RIGHTS[RIGHTS.index(right) :]
            parted = (_parted(pattern) for right_ in enough for pattern in self.rights.get(right_, ()))
            patterns = self._patterns[right, kind] = [
                name for pattern_kind, name in parted if pattern_kind in (kind, _EVERYTHING)
            ]
        return patterns

    def names(self, kind: str) -> bool:
        """True when a right names things of a kind, and not only everything."""
        return any(_parted(pattern)[0] == kind for patterns in self.rights.values() for pattern in patterns)

    def denied(self, right: str, what: str) -> Denied:
        """The error for a right that the caller does not have."""
        return Denied(
            "the token does not carry this right", kind="right_missing", token=self.name, right=right, on=what,
            hint="use a token that does, or ask who runs the node: millpond token add",
        )  # fmt: skip


def _parted(pattern: str, kind: str = _KINDS[0]) -> tuple[str, str]:
    """The kind of a pattern, by default this one, and the pattern of its names."""
    kind_name, colon, name = pattern.partition(":")
    if pattern == _EVERYTHING:
        return _EVERYTHING, pattern
    return (kind_name, name) if colon else (kind, pattern)


def split_pattern(pattern: str) -> tuple[str, str]:
    """The two parts of a pattern of streams or repositories; without the second, all that there is in the first.

    >>> split_pattern("etl/night-*"), split_pattern("etl")
    (('etl', 'night-*'), ('etl', '*'))
    """
    first, slash, second = pattern.partition("/")
    return first, second if slash else "*"


ANYBODY = Caller("anybody", {"admin": ("*",)})
"""The caller of every request to a node without tokens."""
NOBODY = Caller("", {})
"""The caller of a request that needs no token on a node with tokens: all of them share what one token may hold."""


def hash_token(token: str) -> str:
    """The hash that is stored of a token."""
    return hashlib.sha256(token.encode()).hexdigest()


def draw_access_key(clock: Clock) -> str:
    """A new access key, in the form that clients of versions expect."""
    return f"AKIAJ{clock.random_id()[-_ACCESS_KEY_DRAWN:].upper()}Q"


def draw_token(clock: Clock) -> str:
    """A new token of 32 random bytes."""
    drawn = ""
    while len(drawn) < 2 * _RANDOM_BYTES:
        drawn += clock.random_id()
    return f"mp_{drawn}"


class TokenList(ABC):
    """The tokens that the nodes of a pond take, as they are stored."""

    @property
    @abstractmethod
    def where(self) -> str:
        """The place of the list, as people know it."""

    @abstractmethod
    def version(self) -> Hashable | None:
        """A value that changes whenever the list does; None when there is none.

        Raises: `Unavailable` when that cannot be found out.
        """

    @abstractmethod
    def read(self) -> list[TokenSetting]:
        """All tokens; none when there is no list.

        Raises: `Corrupt` when it is not understood, `Unavailable` when it cannot be read: nobody is let in by mistake.
        """

    @abstractmethod
    def _change(self, edit: Callable[[list[TokenSetting]], list[TokenSetting]]) -> None:
        """Let a list made of the present one take its place, alone."""

    def exists(self) -> bool:
        """True once a token was ever added: tokens are wanted from then on, also when all are revoked.

        Raises: as `version`.
        """
        return self.version() is not None

    def add(
        self, name: str, token: str, rights: Mapping[str, Sequence[str]], *, expires_ms: int | None = None,
        access_key: str | None = None,
    ) -> TokenSetting:  # fmt: skip
        """Let in who knows a token, or the secret of an access key, until it expires.

        Raises: `AlreadyExists` when there is one of that name; `Invalid` for rights not understood; `Unavailable` when
            another process does not let go of the list.
        """
        kinds = _KINDS if access_key is None else _KINDS_OF_PAIRS
        setting = replace(_token_of(name, token, rights, kinds), expires_ms=expires_ms, access_key=access_key)

        def added(tokens: list[TokenSetting]) -> list[TokenSetting]:
            if any(other.name == name for other in tokens):
                raise AlreadyExists(
                    "there is a token of this name", kind="token_exists", token=name,
                    hint="revoke it first, or name another",
                )  # fmt: skip
            return [*tokens, setting]

        self._change(added)
        return setting

    def rotate(self, name: str, token: str, *, earlier_until_ms: int, expires_ms: int | None = None) -> TokenSetting:
        """Give a token a new secret; the one it has stays valid for a while, and any that it had before does not.

        Raises: `NotFound`; `Unavailable` as `add`.
        """
        settings: list[TokenSetting] = []

        def rotated(tokens: list[TokenSetting]) -> list[TokenSetting]:
            before = next((other for other in tokens if other.name == name), None)
            if before is None:
                raise _no_token(name, tokens)
            after = replace(
                before, sha256=hash_token(token), expires_ms=expires_ms or before.expires_ms,
                earlier_sha256=before.sha256, earlier_until_ms=earlier_until_ms,
            )  # fmt: skip
            settings[:] = [after]
            return [after if other is before else other for other in tokens]

        self._change(rotated)
        return settings[0]

    def revoke(self, name: str) -> int:
        """Let a token in no more; how many are left. When none is, nobody is let in.

        Raises: `NotFound`; `Unavailable` as `add`.
        """
        left: list[TokenSetting] = []

        def revoked(tokens: list[TokenSetting]) -> list[TokenSetting]:
            left[:] = [token for token in tokens if token.name != name]
            if len(left) == len(tokens):
                raise _no_token(name, tokens)
            return left

        self._change(revoked)
        return len(left)


class TokenFile(TokenList):
    """The tokens of one data folder."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "tokens.json"
        self._name = str(self.path)  # each call looks at it, and `Path` takes several times as long as the system

    @property
    def where(self) -> str:
        return self._name

    def version(self) -> tuple[int, int, int] | None:
        try:
            status = os.lstat(self._name)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._unreadable(error) from error
        if stat.S_ISLNK(status.st_mode):
            try:
                status = self.path.stat()
            except OSError as error:  # it leads nowhere, or not now
                raise self._unreadable(error) from error
        return status.st_mtime_ns, status.st_size, status.st_ino

    def read(self) -> list[TokenSetting]:
        if not self.exists():
            return []
        try:
            return LISTED.stored(
                self.path.read_bytes(), "the file of tokens cannot be read", kind="tokens_damaged", file=self.path,
                hint="stop the node, mend the file or write [] into it, and add the tokens anew",
            )  # fmt: skip
        except OSError as error:
            raise self._unreadable(error) from error

    def _unreadable(self, error: OSError) -> Unavailable:
        return Unavailable(
            "the file of tokens cannot be read", kind="tokens_unreadable", file=self.path, reason=error.strerror,
            hint="it belongs to the user that runs the node, who must be able to read it",
        )  # fmt: skip

    def _change(self, edit: Callable[[list[TokenSetting]], list[TokenSetting]]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        busy = Unavailable(
            "another process is changing the tokens", kind="tokens_busy", file=self.path, seconds=_LOCK_SECONDS,
            hint="try again",
        )  # fmt: skip
        with alone(self.path.with_name(".tokens.lock"), _LOCK_SECONDS, busy):
            write_file_atomically(self.path, to_json(edit(self.read()), indent=1), mode=_OWNER_ONLY)


def _no_token(name: str, tokens: Iterable[TokenSetting]) -> NotFound:
    names = ", ".join(token.name for token in tokens) or "none"
    return NotFound("there is no such token", kind="token_not_found", token=name, hint=f"there is: {names}")


def _token_of(name: str, token: str, rights: Mapping[str, Sequence[str]], kinds: Sequence[str]) -> TokenSetting:
    granted = {right: tuple(patterns) for right, patterns in rights.items() if patterns}
    if not granted:
        raise Invalid(
            "a token needs a right", kind="token_rights", token=name, hint="such as --read '*' or --write 'weather*'"
        )
    for pattern in (pattern for patterns in granted.values() for pattern in patterns):
        kind, names = _parted(pattern, kinds[0])
        if kind not in (*kinds, _EVERYTHING) or not names or ("/" in names and kind in ("map", "tenant")):
            raise Invalid(
                "a pattern opens nothing", kind="token_pattern", token=name, pattern=pattern,
                hint="write map:weather*, stream:etl/night-*, tenant:default, repo:flights/fix-*; in a pair only repo:",
            )  # fmt: skip
    return TokenSetting(name=name, sha256=hash_token(token), rights=granted)


class Tokens:
    """The tokens a node takes: of its pond, which may change while it runs, and of its settings."""

    def __init__(
        self, stored: TokenList, settings: Sequence[TokenSetting], clock: Clock, *, required: bool,
        everybody: bool = False,
    ) -> None:  # fmt: skip
        """`required`: a token is wanted, also when there is none yet. `everybody`: none is wanted, ever."""
        self._stored, self._settings, self._clock = stored, tuple(settings), clock
        self._open, self._required = everybody, required or bool(settings)
        self._lock = threading.Lock()
        self._version: Hashable | None = None
        self._secrets = _secrets(self._settings)

    def listed(self) -> list[TokenSetting]:
        """The tokens of the pond, and those of the settings.

        Raises: as `TokenList.read`.
        """
        return [*self._stored.read(), *self._settings]

    def any(self) -> bool:
        """True when there is a token at all."""
        return bool(self._current())

    def required(self) -> bool:
        """True when callers must show one.

        Once they must, they must until the node ends: that somebody takes the file away opens nothing.
        """
        return not self._open and (self._required or self._seen())

    def caller(self, token: str | None) -> Caller:
        """The caller a token belongs to.

        Raises: `Denied`, kinds `token_missing`, `token_unknown` and `token_expired`; `Corrupt` and `Unavailable` as
            `TokenFile.read`.
        """
        if not self.required():
            return ANYBODY
        secrets = [secret for secret in self._current() if secret.access_key is None]
        if not token:
            way_out = "set MILLPOND_CLIENT_TOKEN, or `client.token` in millpond.toml"
            hint = way_out if secrets else "there is none yet, or none any more: millpond token add NAME --read '*'"
            raise Denied("this node wants a token", kind="token_missing", hint=hint)
        return self._valid(secrets, token)

    def caller_named(self, name: str) -> Caller:
        """The caller that a token of this name belongs to, for whoever was signed in elsewhere under it.

        Raises: `Denied`, kind `user_unknown`; `Corrupt` and `Unavailable` as `TokenFile.read`.
        """
        if not self.required():
            return ANYBODY
        now = self._clock.now_ms()
        for secret in self._current():
            valid = secret.until_ms is None or now < secret.until_ms
            if secret.access_key is None and secret.caller.name == name and valid:
                return secret.caller
        raise Denied(
            "no token that is valid has the name of this user", kind="user_unknown", user=shown(name),
            hint="ask who runs the node for one: millpond token add NAME",
        )  # fmt: skip

    def caller_of_pair(self, access_key: str | None, secret: str) -> Caller:
        """The caller that an access key and its secret belong to.

        Raises: as `caller`.
        """
        if not self.required():
            return ANYBODY
        if not access_key:
            raise Denied(
                "this node wants an access key and its secret", kind="token_missing",
                hint="millpond token add --versions NAME --write '*' prints a pair",
            )  # fmt: skip
        return self._valid([candidate for candidate in self._current() if candidate.access_key == access_key], secret)

    def caller_of_key(self, access_key: str) -> Caller:
        """The caller of an access key whose secret was shown before.

        Raises: as `caller`.
        """
        if not self.required():
            return ANYBODY
        now = self._clock.now_ms()
        for candidate in self._current():
            if candidate.access_key == access_key and (candidate.until_ms is None or now < candidate.until_ms):
                return candidate.caller
        raise Denied("this token is not known here", kind="token_unknown", hint="it may have been revoked")

    def _valid(self, secrets: Sequence[_Secret], token: str) -> Caller:
        hashed = hash_token(token).encode()
        matches = [secret for secret in secrets if hmac.compare_digest(secret.hashed, hashed)]
        if not matches:
            raise Denied("this token is not known here", kind="token_unknown", hint="it may have been revoked")
        now = self._clock.now_ms()
        valid = next((secret.caller for secret in matches if secret.until_ms is None or now < secret.until_ms), None)
        if valid is None:
            raise Denied(
                "this token has expired", kind="token_expired", token=matches[0].caller.name,
                hint="ask who runs the node for the new one: millpond token rotate",
            )  # fmt: skip
        return valid

    def _seen(self) -> bool:
        self._required = self._required or self._stored.exists()
        return self._required

    def _current(self) -> tuple[_Secret, ...]:
        version = self._stored.version()
        if version != self._version:
            with self._lock:
                self._secrets = _secrets((*self._settings, *self._stored.read()))
                self._version = version
        return self._secrets


@dataclass(frozen=True, slots=True)
class _Secret:
    """The hash of a secret, its caller, and the time until which it is valid."""

    hashed: bytes
    caller: Caller
    until_ms: int | None
    access_key: str | None = None


def _secrets(tokens: Iterable[TokenSetting]) -> tuple[_Secret, ...]:
    secrets: list[_Secret] = []
    for token in tokens:
        rights = {right: tuple(_folded(token, patterns)) for right, patterns in token.rights.items()}
        caller = Caller(token.name, rights, token.access_key is not None)
        secrets.append(_Secret(token.sha256.encode(), caller, token.expires_ms, token.access_key))
        if token.earlier_sha256 is not None:
            ends = [until for until in (token.expires_ms, token.earlier_until_ms) if until is not None]
            until_ms = min(ends, default=0)
            secrets.append(_Secret(token.earlier_sha256.encode(), caller, until_ms, token.access_key))
    return tuple(secrets)


def _folded(token: TokenSetting, patterns: Iterable[str]) -> Iterable[str]:
    """Patterns with their kinds. Names of maps have no case; all others have."""
    for pattern in patterns:
        kind, name = _parted(pattern, (_KINDS if token.access_key is None else _KINDS_OF_PAIRS)[0])
        yield pattern if kind == _EVERYTHING else f"{kind}:{name.lower() if kind == 'map' else name}"
