"""Values of a run, as a pipeline is declared: parameters, and outputs of steps, which later steps take.

    weather = load(…)            Value(("weather",))
    weather.rows                 Value(("weather", "rows"))
    f"raw/{day:%Y/%m/%d}"        text with a place, which is filled when the step begins

| in a plan | is |
|---|---|
| `{"$value": ["weather", "rows"]}` | a value of the run |
| `{"$text": ["raw/", {"$value": ["day"], "format": "%Y"}]}` | text, with values in it |
| `{"$test": [">", a, b]}` | a comparison |

Invariant: nothing of a plan is computed before the run; a value stands in a template as what it is, and not as text.
"""

from __future__ import annotations

import operator
import re
import string
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any

from millpond.errors import Invalid
from millpond.json_forms import parse_object, to_json
from millpond.pipelines.placeholders import Placeholder, not_yet, refusing

__all__ = ("Comparison", "Text", "Value", "filled", "holds_value", "leaves_in", "names_in", "readable", "step_of",
           "template_of", "without_skipped")  # fmt: skip

_TOKEN = "millpond_value_of_run"
_CHECK = f"{_TOKEN}{string.printable}"
"""Behind each value in text: what changes text changes some of it."""
_MARK = re.compile(f"\x1f\x02([^\x02\x03]*)\x02([0-9]+){re.escape(_CHECK)}\x03\x1f")
_PATH = re.compile(r"value\W+:\s*\[([^\]]*)", re.IGNORECASE)
"""Of a value in text that was changed, its names."""
_TESTS: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
_INSTANT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d.*")
_TAKEN = frozenset({"$value", "$text", "$test", "$skipped"})
_PLAIN = (
    "__new__", "__init__", "__class__", "__doc__", "__getattribute__", "__setattr__", "__delattr__",
    "__init_subclass__", "__subclasshook__", "__dir__", "__sizeof__", "__reduce__", "__reduce_ex__",
)  # fmt: skip


class _Compared(Placeholder):
    """A value, or text, that the run compares with others."""

    __slots__ = ()

    def __eq__(self, other: object) -> Comparison:  # type: ignore[override]
        return _test("==", self, other)

    def __ne__(self, other: object) -> Comparison:  # type: ignore[override]
        return _test("!=", self, other)

    def __lt__(self, other: object) -> Comparison:
        return _test("<", self, other)

    def __le__(self, other: object) -> Comparison:
        return _test("<=", self, other)

    def __gt__(self, other: object) -> Comparison:
        return _test(">", self, other)

    def __ge__(self, other: object) -> Comparison:
        return _test(">=", self, other)

    __hash__ = Placeholder.__hash__


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Comparison(Placeholder):
    """A comparison of values, for `when`."""

    template: Any
    __eq__ = __ne__ = refusing("==")
    __hash__ = Placeholder.__hash__

    def __named__(self) -> str:
        """See `Placeholder`."""
        return _named(self.template)

    def __format__(self, form: str) -> str:
        if form:
            raise not_yet(self, "format")
        return Text(_marked(self.template))

    def __repr__(self) -> str:
        return _marked(self.template)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Value(_Compared):
    """A value that the run will have: a parameter, an output of a step, or a field of one."""

    _path: tuple[str, ...]
    """No name that an output may have."""

    def __named__(self) -> str:
        """See `Placeholder`."""
        return ".".join(self._path)

    def __getattr__(self, name: str) -> Value:
        if name.startswith("_"):
            raise AttributeError(name)
        return Value((*self._path, name))

    def __getitem__(self, name: str) -> Value:
        if type(name) is not str:
            raise not_yet(self, "getitem")
        return Value((*self._path, name))

    def __format__(self, form: str) -> str:
        if holds_value(form):
            raise not_yet(self, "format")
        return Text(_marked({"$value": list(self._path), "format": form}))

    def __repr__(self) -> str:  # also within the text of a list
        return _marked({"$value": list(self._path), "repr": True})


class Text(_Compared, str):  # type: ignore[misc]
    """Text that holds values of the run."""

    __slots__ = ()

    def __named__(self) -> str:
        """See `Placeholder`."""
        return _named(_text(str.__str__(self)))

    def __add__(self, other: str | Value) -> Text:
        if isinstance(other, Value):
            raise not_yet(other, "add")
        return Text(str.__add__(self, other))

    def __radd__(self, other: str) -> Text:
        return Text(str.__add__(other, self))

    def __format__(self, form: str) -> str:
        if form:
            raise not_yet(self, "format")
        return str.__str__(self)

    def __repr__(self) -> str:  # with quotes or without, who can say
        return f"\x02{self.__named__()}\x03"


for _name in {*dir(str)} - {*vars(Text), *vars(_Compared)} - {*_PLAIN}:
    setattr(Text, _name, refusing(_name.strip("_")))


def holds_value(text: object) -> bool:
    """True for what stands for a value of the run, and for text with one in it."""
    return isinstance(text, Placeholder) or (isinstance(text, str) and "\x02" in text)


def step_of(value: Value) -> str:
    """The step whose output a value is, or is of.

    Raises: `Invalid` for what is no output.
    """
    if not isinstance(value, Value):
        raise Invalid("not the output of a step", kind="pipeline_plan", type=type(value).__name__,
                      hint="give what the call of the step gave")  # fmt: skip
    return str(template_of(value)["$value"][0])


def _test(sign: str, left: object, right: object) -> Comparison:
    return Comparison({"$test": [sign, template_of(left), template_of(right)]})


def template_of(value: Any) -> Any:
    """A value as a plan holds it.

    Raises: `Invalid` for what no JSON can hold.
    """
    match value:
        case Value(path):
            return {"$value": list(path)}
        case Comparison():
            return value.template
        case str():
            return _text(str.__str__(value))
        case datetime() | date():
            return value.isoformat()
        case None | bool() | int() | float():
            return value
        case Mapping():
            if taken := _TAKEN & set(value):
                raise Invalid("a name that plans have for values of the run", kind="pipeline_input",
                              name=min(taken), hint="give it another, or as JSON in text")  # fmt: skip
            return {str(name): template_of(inner) for name, inner in value.items()}
        case list() | tuple() | range():
            return [template_of(inner) for inner in value]
    raise Invalid("not an input of a step", kind="pipeline_input", type=type(value).__name__,
                  hint="give text, a number, a date, a list, a dictionary, or the output of a step")  # fmt: skip


def readable(text: str) -> str:
    """Text with the names of values where it has places for them.

    >>> readable(f"raw/{Value(('day',))}")
    'raw/{day}'
    """
    return _MARK.sub(lambda mark: f"{{{_named(parse_object(mark[1].encode()))}}}", text)


def _named(template: Any) -> str:
    return ", ".join(dict.fromkeys(".".join(leaf["$value"]) for leaf in leaves_in(template)))


def _marked(template: Any) -> str:
    """A template as a place in text."""
    text = to_json(template)
    return f"\x1f\x02{text.decode()}\x02{zlib.crc32(text)}{_CHECK}\x03\x1f"


def _text(text: str) -> Any:
    parts: list[Any] = []
    end, whole = 0, True
    for mark in _MARK.finditer(text):
        whole = whole and zlib.crc32(mark[1].encode()) == int(mark[2])
        parts += [text[end : mark.start()], parse_object(mark[1].encode()) if whole else ""]
        end = mark.end()
    parts.append(text[end:])
    if not whole or any("\x02" in part or "\x03" in part or _TOKEN in part.lower() for part in parts[::2]):
        names = ".".join(re.findall(r"[A-Za-z]\w*", "".join(_PATH.findall(text)))) or readable(text)
        raise Invalid("a value of the run was changed as text, before it is there", kind="pipeline_value", value=names,
                      hint='write it whole, as in f"{day:%Y}", and change it by a function: python(…)')  # fmt: skip
    return text if len(parts) == 1 else {"$text": [part for part in parts if part != ""]}


def names_in(template: Any) -> Iterator[str]:
    """The parameters and steps that a template takes values of."""
    for leaf in leaves_in(template):
        yield leaf["$value"][0]


def leaves_in(template: Any) -> Iterator[Mapping[str, Any]]:
    """The values of the run that a template takes, as templates of their own."""
    if isinstance(template, Mapping):
        if "$value" in template:
            yield template
        else:
            for inner in template.values():
                yield from leaves_in(inner)
    elif isinstance(template, list):
        for inner in template:
            yield from leaves_in(inner)


def filled(template: Any, values: Mapping[str, Any]) -> Any:
    """A template with the values of a run in it.

    >>> filled({"$text": ["raw/", {"$value": ["day"], "format": "%Y"}]}, {"day": "2026-01-01"})
    'raw/2026'

    Raises: `Invalid` for an output that is not there, or of a step that was skipped.
    """
    match template:
        case {"$value": path, **more}:
            value = _at(path, values)
            if "repr" in more:
                return repr(value)
            return _formatted(value, str(more["format"])) if "format" in more else value
        case {"$text": parts}:
            return "".join(part if isinstance(part, str) else str(filled(part, values)) for part in parts)
        case {"$test": [sign, left, right]}:
            return _compared(sign, filled(left, values), filled(right, values))
        case Mapping():
            return {name: filled(inner, values) for name, inner in template.items()}
        case list():
            return [filled(inner, values) for inner in template]
    return template


def _at(path: list[str], values: Mapping[str, Any]) -> Any:
    value: Any = values
    for number, name in enumerate(path):
        _refuse_skipped(path[0], value)
        if not isinstance(value, Mapping) or name not in value:
            there = ", ".join(value) if isinstance(value, Mapping) else type(value).__name__
            raise Invalid("the run has no such value", kind="pipeline_value", value=".".join(path[: number + 1]),
                          hint=f"there is: {there}")  # fmt: skip
        value = value[name]
    _refuse_skipped(path[0], value)
    return value


def without_skipped(templates: list[Any], values: Mapping[str, Any]) -> list[Any]:
    """Those of some templates that take no output of a step that was skipped."""
    skipped = {name for name, own in values.items() if _is_skipped(own)}
    return [own for own in templates if skipped.isdisjoint(names_in(own))]


def _is_skipped(output: Any) -> bool:
    return isinstance(output, Mapping) and bool(output.get("$skipped"))


def _refuse_skipped(step: str, output: Any) -> None:
    if _is_skipped(output):
        raise Invalid("the step was skipped, and has no output", kind="pipeline_value", step=step,
                      hint="give this step the same condition, or another input")  # fmt: skip


def _formatted(value: Any, form: str) -> str:
    if not form:
        return str(value)
    try:
        return f"{datetime.fromisoformat(value) if isinstance(value, str) and '%' in form else value:{form}}"
    except (TypeError, ValueError):
        raise Invalid("a value has no such format", kind="pipeline_value", format=form, type=type(value).__name__,
                      hint='days and times take "%Y-%m-%d", numbers ",.2f"') from None  # fmt: skip


def _instants(left: Any, right: Any) -> tuple[Any, Any]:
    """Two values to compare; times as times, for their texts may have other offsets and digits."""
    if all(isinstance(own, str) and _INSTANT.fullmatch(own) for own in (left, right)):
        with suppress(ValueError):
            return datetime.fromisoformat(left), datetime.fromisoformat(right)
    return left, right


def _compared(sign: str, left: Any, right: Any) -> bool:
    try:
        return _TESTS[sign](*_instants(left, right))
    except TypeError:
        kinds = " and ".join(type(own).__name__ for own in (left, right))
        raise Invalid("values of these types have no order", kind="pipeline_value", test=sign, types=kinds,
                      hint="compare numbers with numbers, and text with text") from None  # fmt: skip
