"""Kernels: functions over whole arrays that become machine code when they are first called.

    @kernel
    def total(numbers): …

What is decorated is compiled by numba, stored on disk (see `arrays/compile_cache.py`), and loaded by the next process.
Loading numba and its kernels takes most of a second, so neither is done before a kernel is called: a program that asks
for a single key never pays for it.

All kernels together take some ten seconds to compile. Before the first one is compiled in a process, a line is logged
and those who `watch` are called; `millpond warm` compiles all of them beforehand (`arrays/warming.py`).

Invariants:
* a kernel is compiled once in a process, whichever thread asks first;
* kernels that it calls are compiled before it, and take their doors' places in its module;
* a cache that cannot be written to never fails a call: the kernel is compiled for this process alone.
"""

from __future__ import annotations

import functools
import importlib
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from millpond.arrays.compile_cache import adopt, cache_location, one_at_a_time

__all__ = ("KERNELS", "Kernel", "kernel", "kernel_of", "watch")

_LOG = logging.getLogger(__name__)
_COMPILING = threading.RLock()
_WATCHERS: list[Callable[[], None]] = []

KERNELS: dict[tuple[str, str], Kernel] = {}
"""Every kernel of the modules that were imported, by module and name."""


class Kernel:
    """A door to a kernel: call it as the function it stands for."""

    __slots__ = ("__dict__", "_compiled", "_make", "_typed")

    def __init__(self, make: Callable[[], Any], *, typed: bool = False) -> None:
        self._make = make
        self._typed = typed  # its types are declared: it is compiled for them when it is made
        self._compiled: Any = None

    def __call__(self, *arguments: Any) -> Any:
        return (self._compiled or self.compiled())(*arguments)

    def compiled(self) -> Any:
        """The kernel itself, as numba calls it from other kernels."""
        with _COMPILING:
            if self._compiled is None:
                self._compiled = self._make()
            return self._compiled

    @property
    def signatures(self) -> list[Any]:
        """The types that this process has it compiled for."""
        return [] if self._compiled is None else list(self._compiled.signatures)

    def prepare(self, types: str) -> bool:
        """Have it compiled for these types, in numba's words; True when the cache did not have it."""
        compiled = self.compiled()
        if not self._typed:
            from numba.core import sigutils

            # The cache is searched by what is passed here, and a call passes the types themselves, not their names.
            compiled.compile(sigutils.normalize_signature(types)[0])
        return bool(compiled.stats.cache_misses)


def kernel(function: Any = None, *, signature: str | None = None, inline: bool = False) -> Any:
    """Make a function a kernel; `signature`, in numba's words, bounds its types, `inline` copies it into callers."""
    if function is None:
        return functools.partial(kernel, signature=signature, inline=inline)
    door = Kernel(lambda: _compile(function, signature, inline), typed=signature is not None)
    KERNELS[function.__module__, function.__name__] = door
    return functools.update_wrapper(door, function)


def kernel_of(module: str, name: str) -> Any:
    """A door to what numba itself made in a module, which is imported when the first kernel calls it."""
    return Kernel(lambda: getattr(importlib.import_module(module), name))


@contextmanager
def watch(compiling: Callable[[], None]) -> Iterator[None]:
    """While this lasts, `compiling` is called before the first kernel of the process that is not in the cache."""
    _WATCHERS.append(compiling)
    try:
        yield
    finally:
        _WATCHERS.remove(compiling)


def _compile(function: Any, signature: str | None, inline: bool) -> Any:
    _listen()
    names = function.__globals__
    for name in function.__code__.co_names:
        if isinstance(names.get(name), Kernel) and name != function.__name__:
            names[name] = names[name].compiled()
    options: dict[str, Any] = {"nogil": True} | ({"inline": "always"} if inline else {})
    dispatcher = _stored(function, options)
    if signature is not None:
        dispatcher.compile(signature)
        dispatcher.disable_compile()
    return dispatcher


def _stored(function: Any, options: dict[str, Any]) -> Any:
    """The function as numba calls it, with a cache where there is a place for one."""
    from numba import config, njit

    location = cache_location()
    if location is None:
        return njit(**options)(function)
    # Numba chooses the folder of a function when it is decorated, from this setting, which all its users share.
    shared = config.CACHE_DIR
    config.CACHE_DIR = "" if location.beside else str(location.folder)
    try:
        dispatcher = njit(cache=True, **options)(function)
    except RuntimeError:  # "cannot cache function": the folder of one module is less writable than the package's
        return njit(**options)(function)
    finally:
        config.CACHE_DIR = shared
    one_at_a_time(dispatcher)
    if not location.beside:
        source = Path(function.__code__.co_filename)
        adopt(source, function.__qualname__, function.__code__.co_firstlineno, Path(dispatcher.stats.cache_path))
    return dispatcher


@functools.cache
def _listen() -> None:
    """Have numba say, once, that it compiles one of our kernels because the cache has none."""
    from numba.core import event

    class Compiling(event.Listener):  # type: ignore[misc]  # numba is not typed
        """Hears of every function that is compiled, also of other packages."""

        def on_start(self, event: Any) -> None:
            if str(event.data["dispatcher"].py_func.__module__).startswith("millpond."):
                _announce()

        def on_end(self, event: Any) -> None:
            """Nothing to say."""

    event.register("numba:compile", Compiling())


@functools.cache
def _announce() -> None:
    location = cache_location()
    where = "nowhere: no folder can be written to" if location is None else location.folder
    _LOG.info("compiling kernels, once; stored in %s", where)
    for compiling in tuple(_WATCHERS):
        compiling()
