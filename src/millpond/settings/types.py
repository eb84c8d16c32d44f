"""The types of settings: text as people write it, taken to the values that the code works with."""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import ip_network
from typing import Annotated, NamedTuple

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field

from millpond.errors import Invalid
from millpond.json_forms import parse_list
from millpond.sizes import parse_size
from millpond.times.durations import UNITS_MS, format_duration, is_off, parse_duration

__all__ = (
    "Address", "Addresses", "Duration", "EventTarget", "FolderName", "Intervals", "Names", "Networks", "Place", "Size",
    "SpanTarget", "TokenSetting", "Tokens", "Unit",
    "duration_in_words",
)  # fmt: skip

_BUCKET = re.compile(r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/.*)?")
_TARGET = re.compile(r"https?://[^/\s].*|kafka://[^/\s@]+/[A-Za-z0-9._-]{1,249}(\?config=\S+)?")


def _duration(value: object) -> object:
    """Milliseconds of `10min`, `1500ms`, `off`; a bare number is milliseconds already."""
    if not isinstance(value, str | bool):
        return value
    try:
        return 0 if is_off(value) else parse_duration(value)
    except Invalid as error:
        raise ValueError(error.hint) from error


def _size(value: object) -> object:
    """Bytes of `2GiB`, `500 MB`; a bare number is bytes already."""
    if not isinstance(value, str):
        return value
    try:
        return parse_size(value)
    except Invalid as error:
        raise ValueError(error.hint) from error


def _folder(value: str) -> str:
    """A folder of this machine, or a bucket."""
    if "://" in value and not _BUCKET.fullmatch(value.rstrip("/")):
        raise ValueError("name a folder, or a bucket such as s3://bucket/prefix")
    return value


def _several(value: object) -> object:
    """Names from text with commas, or from a list."""
    if not isinstance(value, str):
        return value
    if value.lstrip().startswith("["):
        return parse_list(value)
    return [piece.strip() for piece in value.split(",") if piece.strip()]


def _intervals(value: object) -> object:
    """Pairs of names and milliseconds: from a table, or from text such as `merge=1s, verify=1d`."""
    if isinstance(value, str):
        value = dict(_pair(piece) for piece in value.split(",") if piece.strip())
    return tuple(value.items()) if isinstance(value, dict) else value


def _pair(text: str) -> tuple[str, str]:
    name, equals, every = text.partition("=")
    if not equals:
        raise ValueError("write each as job=duration, such as verify=1d")
    return name.strip(), every.strip()


def duration_in_words(milliseconds: int) -> str:
    """A duration in the largest unit that divides it; a setting of 0 is off.

    >>> duration_in_words(600_000), duration_in_words(0)
    ('10min', 'off')
    """
    return format_duration(milliseconds) if milliseconds else "off"


def _place(place: str) -> str:
    """A bucket with a prefix, or a folder."""
    if re.match(r"[A-Za-z0-9+]{2,}:", place) and not _BUCKET.fullmatch(place):
        raise ValueError("write a bucket and a prefix, such as s3://bucket/prefix, or a folder")
    return place


def _event_target(target: str) -> str:
    """A file, an address, or a topic."""
    if "://" in target and not _TARGET.fullmatch(target):
        raise ValueError("write a file, an http(s) address, or kafka://host:9092/topic")
    return target


def _span_target(target: str) -> str:
    """A file, or an address."""
    if "://" in target and not re.match(r"https?://[^/\s]", target):
        raise ValueError("write a file, or an http(s) address")
    return target


def _open_address(address: str) -> str:
    """An address of a node, which is shown wherever the node is spoken of."""
    if "://" in address and "@" in address:
        raise ValueError("write it without a name or a password; the token is client.token")
    return address


def _network(text: str) -> str:
    """An address of a machine, or a network such as `10.1.0.0/16`."""
    try:
        ip_network(text)
    except ValueError:
        raise ValueError("write addresses such as 10.1.2.3, or networks such as 10.1.0.0/16") from None
    return text


class Unit(NamedTuple):
    """The unit of a number, for whoever shows it."""

    name: str


Duration = Annotated[int, BeforeValidator(_duration), Unit("ms"), Field(ge=0, le=100 * UNITS_MS["y"])]
Size = Annotated[int, BeforeValidator(_size), Unit("bytes"), Field(ge=0)]
Place = Annotated[str, AfterValidator(_place)]
Address = Annotated[str, AfterValidator(_open_address)]
EventTarget = Annotated[str, AfterValidator(_event_target)]
SpanTarget = Annotated[str, AfterValidator(_span_target)]
Addresses = Annotated[tuple[Address, ...], BeforeValidator(_several)]
FolderName = Annotated[str, AfterValidator(_folder)]
Names = Annotated[tuple[str, ...], BeforeValidator(_several)]
Networks = Annotated[tuple[Annotated[str, AfterValidator(_network)], ...], BeforeValidator(_several)]
Intervals = Annotated[tuple[tuple[str, Duration], ...], BeforeValidator(_intervals)]


@dataclass(frozen=True, slots=True)
class TokenSetting:
    """A token as the file holds it: never itself, only its hash. `rights`: right → patterns, each
    with its kind: `map:weather*`, `stream:etl/*`, `tenant:default`; without one it is of maps.

    From `expires_ms` on it is not valid. While it is rotated, the secret before it is valid until `earlier_until_ms`.
    With an `access_key` it is a pair for versions: its patterns are `repo:flights`, or `repo:flights/branch`.
    """

    # For the file of settings, which pydantic reads; the file of tokens has the form of this dataclass.
    __pydantic_config__ = ConfigDict(extra="forbid")

    name: str
    sha256: str
    rights: dict[str, tuple[str, ...]]
    expires_ms: int | None = None
    earlier_sha256: str | None = None
    earlier_until_ms: int | None = None
    access_key: str | None = None

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("a token has a name")
        if self.access_key is not None and not re.fullmatch("AKIA[IJ][A-Z0-9]{14}Q", self.access_key):
            raise ValueError("an access key is AKIAI or AKIAJ, 14 letters or digits, and Q")
        if not all(
            re.fullmatch("[0-9a-f]{64}", hashed) for hashed in (self.sha256, self.earlier_sha256 or self.sha256)
        ):
            raise ValueError("sha256 is 64 hexadecimal digits, in small letters")
        unknown = set(self.rights) - {"read", "write", "admin"}
        if unknown:
            raise ValueError(f"rights are read, write and admin, not {', '.join(sorted(unknown))}")


Tokens = Annotated[tuple[TokenSetting, ...], BeforeValidator(_several)]
