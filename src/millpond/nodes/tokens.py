"""Who may do what: tokens, and the rights each carries.

    tokens.json     in the data folder: [{"name", "sha256", "rights": {"read": [pattern…], "write": …, "admin": …}}]

Invariants:
* a token is never stored, only its SHA-256; 32 random bytes need no salt and no stretching;
* every token known is compared, each in constant time, so that answers tell nothing by how long they take;
* `admin` implies `write`, and `write` implies `read`, for the same names; patterns are of the shell (`weather*`);
* what is about no one map (the log, the jobs) needs its right on `*`.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from pydantic import TypeAdapter

from millpond.clock import Clock
from millpond.errors import AlreadyExists, Corrupt, Denied, Invalid, NotFound
from millpond.settings import TokenSetting
from millpond.stores.files import write_file_atomically

__all__ = ("ANYBODY", "RIGHTS", "Caller", "TokenFile", "Tokens", "draw_token", "hash_token")

RIGHTS = ("read", "write", "admin")
"""Each implies those before it."""
_RANDOM_BYTES = 32
_LISTED = TypeAdapter(list[TokenSetting])


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks, and what they may do: right → patterns of names of maps."""

    name: str
    rights: Mapping[str, tuple[str, ...]]

    def may(self, right: str, map: str | None = None) -> bool:
        """Whether this right is theirs: on a map, or, without one, on everything."""
        patterns = self._patterns(right)
        return "*" in patterns if map is None else any(fnmatchcase(map.lower(), each) for each in patterns)

    def may_somewhere(self, right: str) -> bool:
        """Whether this right is theirs on any map at all."""
        return bool(self._patterns(right))

    def need(self, right: str, *maps: str) -> None:
        """Insist on a right: on each of these maps, or, without any, on everything.

        Raises: `Denied`.
        """
        for map in maps or (None,):
            if not self.may(right, map):
                raise self._denied(right, "everything" if map is None else map)

    def need_somewhere(self, right: str) -> None:
        """Insist on a right on any map at all.

        Raises: `Denied`.
        """
        if not self.may_somewhere(right):
            raise self._denied(right, "any map")

    def _patterns(self, right: str) -> list[str]:
        enough = RIGHTS[RIGHTS.index(right) :]
        return [pattern for each in enough for pattern in self.rights.get(each, ())]

    def _denied(self, right: str, what: str) -> Denied:
        return Denied(
            "the token does not carry this right", kind="right_missing", token=self.name, right=right, on=what,
            hint="use a token that does, or ask who runs the node: millpond token add",
        )  # fmt: skip


ANYBODY = Caller("anybody", {"admin": ("*",)})
"""Who asks a node that asks for no tokens."""


def hash_token(token: str) -> str:
    """What is stored of a token."""
    return hashlib.sha256(token.encode()).hexdigest()


def draw_token(clock: Clock) -> str:
    """A new token of 32 random bytes."""
    drawn = ""
    while len(drawn) < 2 * _RANDOM_BYTES:
        drawn += clock.random_id()
    return f"mp_{drawn}"


class TokenFile:
    """The tokens of one data folder."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "tokens.json"

    def version(self) -> tuple[int, int, int]:
        """Changes whenever the file does; zeros when there is none."""
        try:
            known = self.path.stat()
        except FileNotFoundError:
            return 0, 0, 0
        return known.st_mtime_ns, known.st_size, known.st_ino

    def read(self) -> list[TokenSetting]:
        """All tokens.

        Raises: `Corrupt` when the file is not understood: nobody is let in by mistake.
        """
        try:
            return _LISTED.validate_json(self.path.read_bytes())
        except FileNotFoundError:
            return []
        except ValueError as error:
            raise Corrupt(
                "the file of tokens cannot be read", kind="tokens_damaged", file=self.path,
                reason=str(error).splitlines()[0], hint="mend it, or remove it and add the tokens anew",
            ) from error  # fmt: skip

    def add(self, name: str, token: str, rights: Mapping[str, Sequence[str]]) -> TokenSetting:
        """Let in who knows a token.

        Raises: `AlreadyExists` when there is one of that name; `Invalid` for rights not understood.
        """
        known = self.read()
        if any(each.name == name for each in known):
            raise AlreadyExists(
                "there is a token of this name",
                kind="token_exists",
                token=name,
                hint="revoke it first, or name another",
            )
        made = _token_of(name, token, rights)
        self._write([*known, made])
        return made

    def revoke(self, name: str) -> None:
        """Let in no more.

        Raises: `NotFound`.
        """
        known = self.read()
        left = [each for each in known if each.name != name]
        if len(left) == len(known):
            told = ", ".join(each.name for each in known) or "none"
            raise NotFound("there is no such token", kind="token_not_found", token=name, hint=f"there is: {told}")
        self._write(left)

    def _write(self, tokens: Iterable[TokenSetting]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        told = json.dumps([each.model_dump(mode="json") for each in tokens], indent=1)
        write_file_atomically(self.path, told.encode())
        os.chmod(self.path, 0o600)  # noqa: PTH101 - hashes only, but nobody else's business


def _token_of(name: str, token: str, rights: Mapping[str, Sequence[str]]) -> TokenSetting:
    told = {right: tuple(patterns) for right, patterns in rights.items() if patterns}
    if not told:
        raise Invalid(
            "a token needs a right", kind="token_rights", token=name, hint="such as --read '*' or --write 'weather*'"
        )
    return TokenSetting(name=name, sha256=hash_token(token), rights=told)


class Tokens:
    """The tokens a node takes: of its data folder, which may change while it runs, and of its settings."""

    def __init__(self, file: TokenFile, settings: Sequence[TokenSetting], *, required: bool) -> None:
        """`required`: nobody is let in without one, also when there is none (any more)."""
        self._file, self._settings, self._required = file, tuple(settings), required
        self._lock = threading.Lock()
        self._version: tuple[int, int, int] | None = None
        self._known: tuple[tuple[bytes, Caller], ...] = ()

    def any(self) -> bool:
        """Whether there is a token at all."""
        return bool(self._all())

    def wanted(self) -> bool:
        """Whether callers must show one."""
        return self._required or self.any()

    def caller(self, token: str | None) -> Caller:
        """Who shows this token.

        Raises: `Denied`, kinds `token_missing` and `token_unknown`.
        """
        known = self._all()
        if not known and not self._required:
            return ANYBODY
        if not token:
            raise Denied(
                "this node wants a token", kind="token_missing", hint="set MILLPOND_TOKEN, or `token` in millpond.toml"
            )
        hashed = hash_token(token).encode()
        found = [caller for stored, caller in known if hmac.compare_digest(stored, hashed)]
        if not found:
            raise Denied("this token is not known here", kind="token_unknown", hint="it may have been revoked")
        return found[0]

    def _all(self) -> tuple[tuple[bytes, Caller], ...]:
        version = self._file.version()
        if version != self._version:
            with self._lock:
                self._known = tuple(_as_caller(each) for each in (*self._settings, *self._file.read()))
                self._version = version
        return self._known


def _as_caller(told: TokenSetting) -> tuple[bytes, Caller]:
    return told.sha256.encode(), Caller(
        told.name, {right: tuple(p.lower() for p in patterns) for right, patterns in told.rights.items()}
    )
