"""Operations: methods of an interface that are declared once. Requests, routes, commands and pages follow from them.

    class MapOperations(Protocol):
        @operation(
            "GET", "/v1/maps/{name}/keys", right="read", answer="keys", command="keys",
            examples=("millpond keys weather",), words={"limit": "At most so many."},
        )
        def keys(self, *, limit: int = 100) -> list[str]:
            \"\"\"The first keys of a map.\"\"\"
            declared()

A class that is far from the data inherits such a method, with its signature and its words: a call becomes the operation
and its arguments by name, and goes to `_perform` of the object. A class that has the data has a method of that name.

Invariants:
* each argument is sent once: in the path where its template names it, else in the query or in the body;
* an argument that is None is not sent: the other side has the same default.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import wraps
from types import SimpleNamespace
from typing import Any, NoReturn, TypeVar, cast, get_type_hints

__all__ = ("Operation", "Requested", "declared", "operation", "operation_of", "operations_of")

F = TypeVar("F", bound=Callable[..., Any])
_ATTRIBUTE = "__operation__"


@dataclass(frozen=True, slots=True)
class Requested:
    """A request of an operation: the segments of its path, its query, and its body."""

    segments: Sequence[str]
    query: Mapping[str, Any]
    body: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """A declared method: the request that it is, and what its route and its command add to its signature."""

    function: Callable[..., Any]
    method: str
    path: str
    """The template of its path. Its names are of the object, or of arguments."""
    query: tuple[str, ...] = ()
    """The arguments that a request with a body has in its query all the same."""
    sent: Mapping[str, str] = field(default_factory=dict)
    """The names of arguments in a request, where they differ; with a dot, in an object of the body."""
    absent: Mapping[str, Any] = field(default_factory=dict)
    """Values of arguments that are None, where the other side has no default."""
    needed: tuple[str, ...] = ()
    """The arguments that a request names even where a call need not."""
    answer: str = ""
    """The name in the answer that the result stands under; none: the result is an object, and the answer."""
    repeatable: bool = False
    """True when it may be sent again after its answer was lost."""
    right: str = ""
    """The right that it needs, where a node serves it by its declaration; none: it has a handler of its own."""
    large: bool = False
    """True when it takes as long as the data is large."""
    command: str = ""
    """The command that is made of it, if one is."""
    examples: tuple[str, ...] = ()
    words: Mapping[str, str] = field(default_factory=dict)
    """Words about its arguments, for its route and its command."""
    forms: Mapping[str, str] = field(default_factory=dict)
    """The forms of arguments in its command, where they are not their names, as `--since AGE=all kept`."""

    @property
    def name(self) -> str:
        """The name of the method."""
        return self.function.__name__

    @property
    def summary(self) -> str:
        """The words about the method, but for its errors."""
        return inspect.cleandoc(self.function.__doc__ or "").split("\n\nRaises:")[0]

    @property
    def parameters(self) -> list[inspect.Parameter]:
        """The parameters of the method, but for its object, with their types; that of the result may wait."""
        # Annotations are texts in modules like this one; routes and commands are made of types.
        _, *parameters = inspect.signature(self.function).parameters.values()
        own = SimpleNamespace(__annotations__={parameter.name: parameter.annotation for parameter in parameters})
        hints = get_type_hints(own, self.function.__globals__, include_extras=True)
        return [parameter.replace(annotation=hints[parameter.name]) for parameter in parameters]

    @property
    def result(self) -> Any:
        """The type of the result."""
        return get_type_hints(self.function, include_extras=True)["return"]

    def bind(self, self_: object, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """The arguments of a call by name, with defaults."""
        # By the signature: a call that is wrong fails before anything is sent, as it does where the data is.
        bound = inspect.signature(self.function).bind(self_, *args, **kwargs)
        bound.apply_defaults()
        _, *names = bound.signature.parameters
        return {name: bound.arguments[name] for name in names}

    def request(self, names: Mapping[str, str], arguments: Mapping[str, Any]) -> Requested:
        """The request of a call; `names` are those of its object.

        >>> @operation("POST", "/tags/{tag}", sent={"at": "as_of", "message": "words.message"}, query=("at",))
        ... def move_tag(self, tag, at=None, message=""): ...
        >>> operation_of(move_tag).request({}, {"tag": "v1", "at": 5, "message": "fix"})
        Requested(segments=['tags', 'v1'], query={'as_of': 5}, body={'words': {'message': 'fix'}})
        """
        segments = self.path.strip("/").split("/")
        arguments = {name: self.absent.get(name) if value is None else value for name, value in arguments.items()}
        in_path = {segment[1:-1] for segment in segments if segment.startswith("{")}
        # The names of the object win: the path leads to the object, whatever its arguments are called.
        values = {**{self.sent.get(name, name): value for name, value in arguments.items()}, **names}
        path = [str(values[segment[1:-1]]) if segment.startswith("{") else segment for segment in segments]
        query: dict[str, Any] = {}
        body: dict[str, Any] = {}
        for name, value in arguments.items():
            other = self.sent.get(name, name)
            if value is not None and other not in in_path:
                # A body has no meaning in these two, and nodes take none.
                whole = self.method in ("GET", "DELETE") or name in self.query
                *above, last = other.split(".")
                target = query if whole else body
                for outer in above:
                    target = target.setdefault(outer, {})
                target[last] = value
        return Requested(path, query, body)


def operation(method: str, path: str, **facts: Any) -> Callable[[F], F]:
    """Declare a method of an interface as an operation; `facts` are those of `Operation`."""

    def declare(function: F) -> F:
        record = Operation(function=function, method=method, path=path, **facts)

        @wraps(function)
        def perform(self: Any, *args: Any, **kwargs: Any) -> Any:
            return self._perform(record, record.bind(self, *args, **kwargs))

        # On the function, not in a list beside it: so it is found by the interface that declares it, and not by the
        # classes that have a method of the same name.
        setattr(perform, _ATTRIBUTE, record)
        return cast(F, perform)

    return declare


def declared() -> NoReturn:
    """The body of a method that is declared: it is done elsewhere."""
    raise AssertionError("a declared method is performed by its object")


def operations_of(interface: type) -> Iterator[Operation]:
    """The operations that an interface declares, in its order."""
    # Not `dir`, which sorts: pages and commands have the order of the text.
    return (operation_of(member) for member in vars(interface).values() if hasattr(member, _ATTRIBUTE))


def operation_of(method: Callable[..., Any]) -> Operation:
    """The operation that a declared method is."""
    record: Operation = getattr(method, _ATTRIBUTE)
    return record
