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
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any, NoReturn

from millpond.errors import Invalid
from millpond.json_forms import FormError, parse_object, to_json

__all__ = ("Comparison", "Value", "filled", "leaves_in", "names_in", "step_of", "template_of",
           "without_skipped")  # fmt: skip

_MARK, _MARKS = re.compile("\x02([^\x02\x03]*)\x03"), frozenset("\x02\x03")
_TESTS: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip


@dataclass(frozen=True, slots=True, repr=False)
class Comparison:
    """A comparison of values, for `when`."""

    template: Any

    def __repr__(self) -> str:
        return _marked(self.template)

    def __bool__(self) -> NoReturn:
        raise _not_yet()


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Value:
    """A value that the run will have: a parameter, an output of a step, or a field of one."""

    _path: tuple[str, ...]
    """No name that an output may have."""

    def __getattr__(self, name: str) -> Value:
        if name.startswith("_"):
            raise AttributeError(name)
        return Value((*self._path, name))

    def __getitem__(self, name: str) -> Value:
        return Value((*self._path, str(name)))

    def __format__(self, form: str) -> str:
        return _marked({"$value": list(self._path), "format": form})

    def __repr__(self) -> str:  # also within the text of a list
        return format(self, "")

    def __bool__(self) -> NoReturn:
        raise _not_yet()

    def __iter__(self) -> NoReturn:
        raise _not_yet()

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

    __hash__ = None  # type: ignore[assignment]


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


def _not_yet() -> Invalid:
    return Invalid("a value of the run is not there yet when the pipeline is declared", kind="pipeline_value",
                   hint="a condition is the option when of a step, and a list its option over")  # fmt: skip


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
            return _text(value)
        case datetime() | date():
            return value.isoformat()
        case None | bool() | int() | float():
            return value
        case Mapping():
            return {str(name): template_of(inner) for name, inner in value.items()}
        case list() | tuple():
            return [template_of(inner) for inner in value]
    raise Invalid("not an input of a step", kind="pipeline_input", type=type(value).__name__,
                  hint="give text, a number, a date, a list, a dictionary, or the output of a step")  # fmt: skip


def _marked(template: Any) -> str:
    """A template as a place in text."""
    return f"\x02{to_json(template).decode()}\x03"


def _text(text: str) -> Any:
    pieces = _MARK.split(text)
    parts: list[Any] = list(pieces)
    with suppress(FormError):
        parts[1::2] = [parse_object(piece.encode()) for piece in pieces[1::2]]
    odd = [part for part in parts[1::2] if not {"$value", "$test"} & set(part)]
    if odd or any(set(part) & _MARKS for part in parts[::2]):
        raise Invalid("a value of the run was changed as text, before it is there", kind="pipeline_value",
                      hint='write it whole, as in f"{day:%Y}", and change it by a function: python(…)')  # fmt: skip
    return text if len(pieces) == 1 else {"$text": [part for part in parts if part != ""]}


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


def _compared(sign: str, left: Any, right: Any) -> bool:
    try:
        return _TESTS[sign](left, right)
    except TypeError:
        kinds = " and ".join(type(own).__name__ for own in (left, right))
        raise Invalid("values of these types have no order", kind="pipeline_value", test=sign, types=kinds,
                      hint="compare numbers with numbers, and text with text") from None  # fmt: skip
