"""Kernels: functions over whole arrays that become machine code when they are first called.

    @kernel
    def total(numbers): …

What is decorated is compiled by numba, kept on disk beside the module, and loaded from there by the next process.
Loading numba and its kernels takes most of a second, so neither is done before a kernel is called: who asks for a
single key never pays for it.

Invariants:
* a kernel is compiled once in a process, whichever thread asks first;
* kernels that it calls are compiled before it, and take their doors' places in its module.
"""

from __future__ import annotations

import functools
import importlib
import threading
from collections.abc import Callable
from typing import Any

__all__ = ("Kernel", "kernel", "kernel_of")

_COMPILING = threading.RLock()


class Kernel:
    """A door to a kernel: call it as the function it stands for."""

    __slots__ = ("__dict__", "_compiled", "_make")

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._compiled: Any = None

    def __call__(self, *arguments: Any) -> Any:
        return (self._compiled or self.compiled())(*arguments)

    def compiled(self) -> Any:
        """The kernel itself, as numba calls it from other kernels."""
        with _COMPILING:
            if self._compiled is None:
                self._compiled = self._make()
            return self._compiled


def kernel(function: Any = None, *, signature: str | None = None, inline: bool = False) -> Any:
    """Make a function a kernel; `signature`, in numba's words, bounds its types, `inline` copies it into callers."""
    if function is None:
        return functools.partial(kernel, signature=signature, inline=inline)
    door = Kernel(lambda: _compile(function, signature, inline))
    return functools.update_wrapper(door, function)


def kernel_of(module: str, name: str) -> Any:
    """A door to what numba itself made in a module, which is imported when the first kernel calls it."""
    return Kernel(lambda: getattr(importlib.import_module(module), name))


def _compile(function: Any, signature: str | None, inline: bool) -> Any:
    from numba import njit

    known = function.__globals__
    for name in function.__code__.co_names:
        if isinstance(known.get(name), Kernel) and name != function.__name__:
            known[name] = known[name].compiled()
    options: dict[str, Any] = {"cache": True, "nogil": True} | ({"inline": "always"} if inline else {})
    return njit(signature, **options)(function) if signature else njit(**options)(function)
