"""Failures of a node run: the name decides the status, and which handler takes it.

The names of `LHErrorType` are reserved for the system and lead to ERROR; any other name is a business exception.
"""

from __future__ import annotations

from littlehorse.model import Failure, FailureHandlerDef, LHErrorType, LHStatus, VariableValue

__all__ = (
    "RESERVED",
    "NodeFailed",
    "substitution",
    "status_of",
    "catches",
)

RESERVED = frozenset(LHErrorType.keys())
"""Names of failures that only the system gives."""

_WIDER = {
    "VAR_ERROR": frozenset({"VAR_SUB_ERROR", "VAR_MUTATION_ERROR"}),
    "TASK_ERROR": frozenset({"TASK_FAILURE", "TIMEOUT"}),
}


class NodeFailed(Exception):
    """The failure of a node run, on its way to the thread that it ends or interrupts."""

    def __init__(self, name: str, message: str, content: VariableValue | None = None) -> None:
        super().__init__(message)
        self.name = name
        self.message = message
        self.content = content

    def row(self) -> Failure:
        """The failure as a message."""
        return Failure(failure_name=self.name, message=self.message, content=self.content)


def substitution(message: str) -> NodeFailed:
    """A value that cannot be computed."""
    return NodeFailed("VAR_SUB_ERROR", message)


def status_of(name: str) -> LHStatus:
    """The status that a failure's name gives to node run, thread and run."""
    return LHStatus.ERROR if name in RESERVED else LHStatus.EXCEPTION


def catches(handler: FailureHandlerDef, name: str) -> bool:
    """True when a handler takes failures of a name.

    >>> catches(FailureHandlerDef(specific_failure="TASK_ERROR"), "TIMEOUT")
    True
    """
    match handler.WhichOneof("failure_to_catch"):
        case "specific_failure":
            return name == handler.specific_failure or name in _WIDER.get(handler.specific_failure, ())
        case "any_failure_of_type":
            of_errors = handler.any_failure_of_type == FailureHandlerDef.FAILURE_TYPE_ERROR
            return of_errors == (name in RESERVED)
        case _:
            return True
