"""The types of settings: text as people write it, taken to the values that the code works with."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from ipaddress import ip_network
from typing import Annotated, Any, Literal, NamedTuple, get_type_hints

import msgspec

from millpond.errors import Invalid
from millpond.json_forms import JsonForm, parse_list
from millpond.sizes import parse_size
from millpond.times.durations import UNITS_MS, format_duration, is_off, parse_duration

__all__ = (
    "Address", "Addresses", "Duration", "EventTarget", "FolderName", "Intervals", "Names", "Networks", "Place", "Port",
    "Setting", "Size", "SpanTarget", "Switch", "TokenSetting", "Tokens",
    "duration_in_words", "setting", "settings_of",
)  # fmt: skip

_SWITCHED = {"on": True, "yes": True, "off": False, "no": False}
_BOUNDS = {"ge": 0, "le": 100 * UNITS_MS["y"]}
_FILE, _ADDRESS = "((?!://).)*", r"https?://[^/\s].*"
_BUCKET = "s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/.*)?"
_PLACE = f"(?![A-Za-z0-9+]{{2,}}:).*|{_BUCKET}"
_TOPIC = r"kafka://[^/\s@]+/[A-Za-z0-9._-]{1,249}(\?config=\S+)?"


def _duration(value: object) -> object:
    """Milliseconds of `10min`, `1500ms`, `off`; a bare number is milliseconds already."""
    if not isinstance(value, str | bool):
        return value
    return 0 if is_off(value) else parse_duration(value)


def _size(value: object) -> object:
    """Bytes of `2GiB`, `500 MB`; a bare number is bytes already."""
    return parse_size(value) if isinstance(value, str) else value


def _several(value: Any) -> Any:
    """Names from text with commas, or from a list."""
    if not isinstance(value, str):
        return value
    if value.lstrip().startswith("["):
        return parse_list(value)
    return [piece.strip() for piece in value.split(",") if piece.strip()]


def _networks(value: Any) -> Any:
    """Addresses of machines, or networks such as `10.1.0.0/16`, from text with commas, or from a list."""
    networks = _several(value)
    try:
        list(map(ip_network, networks))
    except (TypeError, ValueError):
        raise ValueError("write addresses such as 10.1.2.3, or networks such as 10.1.0.0/16") from None
    return networks


def _intervals(value: Any) -> Any:
    """Pairs of names and milliseconds: from a table, or from text such as `merge=1s, verify=1d`."""
    if isinstance(value, str):
        value = dict(_pair(piece) for piece in value.split(",") if piece.strip())
    return [(job, _duration(every)) for job, every in value.items()] if isinstance(value, dict) else value


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


@dataclass(frozen=True, slots=True)
class TokenSetting:
    """A token as the file holds it: never itself, only its hash. `rights`: right → patterns, each
    with its kind: `map:weather*`, `stream:etl/*`, `tenant:default`; without one it is of maps.

    From `expires_ms` on it is not valid. While it is rotated, the secret before it is valid until `earlier_until_ms`.
    With an `access_key` it is a pair for versions: its patterns are `repo:flights`, or `repo:flights/branch`.
    """

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


class _Form(NamedTuple):
    """The form in which people write values of a type: `read` comes first; text of another pattern gets the hint."""

    pattern: str = ""
    hint: str = ""
    read: Callable[[Any], Any] = lambda value: value
    unit: str = ""
    bounds: Mapping[str, int] = {}


class Setting(NamedTuple):
    """One setting: its type and default, its meaning for people, and if it is a secret."""

    kind: Any
    form: _Form
    default: Any
    meaning: str
    secret: bool

    def value(self, stated: object) -> Any:
        """The value that was stated.

        Raises: `ValueError`, or `msgspec.ValidationError`, for what is none.
        """
        try:
            value = msgspec.convert(self.form.read(stated), self.kind, strict=False)
        except Invalid as error:
            raise ValueError(error.hint) from error
        texts = value if isinstance(value, tuple) else (value,)
        if self.form.pattern and not all(re.fullmatch(self.form.pattern, text) for text in texts):
            raise ValueError(self.form.hint)
        return value


def setting(default: object, meaning: str, *, secret: bool = False, **bounds: Any) -> Any:
    """The field of a setting, in a group of them. `bounds` have the names of `msgspec.Meta`."""
    return field(default=default, repr=not secret, metadata={"meaning": meaning, "bounds": bounds})


def settings_of(group: type) -> Iterator[tuple[str, Setting]]:
    """The settings of a group, by their names in it."""
    hints = get_type_hints(group, include_extras=True)
    for own in fields(group):
        kind: Any = hints[own.name]
        form = next((note for note in getattr(kind, "__metadata__", ()) if isinstance(note, _Form)), _Form())
        if bounds := {**form.bounds, **own.metadata["bounds"]}:
            kind = Annotated[kind, msgspec.Meta(**bounds)]
        yield own.name, Setting(kind, form, own.default, own.metadata["meaning"], not own.repr)


_TOKENS = JsonForm(tuple[TokenSetting, ...])
_OPEN = _Form(f"{_FILE}|[^@]*", "write it without a name or a password; the token is client.token")
Duration = Annotated[int, _Form(read=_duration, unit="ms", bounds=_BOUNDS)]
Size = Annotated[int, _Form(read=_size, unit="bytes", bounds={"ge": 0})]
Switch = Annotated[bool, _Form(read=lambda value: _SWITCHED.get(str(value).lower(), value))]
Port = Annotated[int, msgspec.Meta(ge=0, le=65535)] | Literal["auto", "off"]
Address = Annotated[str, _OPEN]
Addresses = Annotated[tuple[str, ...], _OPEN._replace(read=_several)]
FolderName = Annotated[str, _Form(f"{_FILE}|{_BUCKET}", "name a folder, or a bucket such as s3://bucket/prefix")]
Place = Annotated[str, _Form(_PLACE, "write a bucket and a prefix, such as s3://bucket/prefix, or a folder")]
SpanTarget = Annotated[str, _Form(f"{_FILE}|{_ADDRESS}", "write a file, or an http(s) address")]
_EVENT_TARGETS = f"{_FILE}|{_ADDRESS}|{_TOPIC}"
EventTarget = Annotated[str, _Form(_EVENT_TARGETS, "write a file, an http(s) address, or kafka://host:9092/topic")]
Names = Annotated[tuple[str, ...], _Form(read=_several)]
Networks = Annotated[tuple[str, ...], _Form(read=_networks)]
Intervals = Annotated[tuple[tuple[str, Annotated[int, msgspec.Meta(**_BOUNDS)]], ...], _Form(read=_intervals)]
Tokens = Annotated[tuple[TokenSetting, ...], _Form(read=lambda value: _TOKENS.build(_several(value)))]
