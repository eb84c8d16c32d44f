"""Attempts that failed, as workers report them."""

__all__ = ("TaskFailed",)


class TaskFailed(RuntimeError):
    """An attempt failed, and another may not: its text is the sentence that a worker reports, without a traceback."""
