"""Attempts that failed, as workers report them."""

from __future__ import annotations

from littlehorse.model import LHErrorType, LHTaskError

__all__ = ("TaskFailed",)


class TaskFailed(RuntimeError):
    """An attempt failed, and another may not: its text is the sentence that a worker reports, without a traceback."""

    def __init__(self, sentence: str, *, is_timeout: bool = False) -> None:
        super().__init__(sentence)
        self.is_timeout = is_timeout

    def row(self) -> LHTaskError:
        """The error as a worker reports it."""
        return LHTaskError(type=LHErrorType.TIMEOUT if self.is_timeout else LHErrorType.TASK_ERROR, message=str(self))
