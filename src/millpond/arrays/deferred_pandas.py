"""Leaving pandas out of processes that do not use it.

pyarrow imports pandas, where it is installed, when it converts its first value: more than a second of a process that
may live no longer. `defer_pandas` tells pyarrow that there is none, as soon as pyarrow is imported. When anybody
imports pandas later, pyarrow is told that it is there now, so that whoever uses pandas sees no difference.

Invariants:
* after `import pandas` pyarrow takes Series and data frames as always;
* a process that has pandas already is left as it is.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import cast

__all__ = ("defer_pandas",)

_PANDAS = "pandas"


def defer_pandas() -> None:
    """Have pyarrow look for pandas when this process imports it, not before."""
    if _PANDAS in sys.modules or any(isinstance(finder, _Finder) for finder in sys.meta_path):
        return
    if "pyarrow" in sys.modules:
        _look_in_vain()
    else:
        sys.meta_path.insert(0, _Finder("pyarrow", _look_in_vain))


def _look_in_vain() -> None:
    """Have pyarrow look for pandas, which it does once, and not find it."""
    if _PANDAS in sys.modules:
        return  # it imports pyarrow itself
    import pyarrow as pa

    finder = _Finder(_PANDAS, _look_again)
    finder.hidden = True
    sys.meta_path.insert(0, finder)
    pa.array([0])
    finder.hidden = False


def _look_again() -> None:
    import pyarrow as pa

    shim = getattr(pa.lib, "_pandas_api", None)
    getattr(shim, "pd", None)  # it imports what it did not find before


class _Finder(MetaPathFinder):
    """Finds no module of this name while it is `hidden`; else it does, once, with a loader that calls `then`."""

    def __init__(self, name: str, then: Callable[[], None]) -> None:
        self.hidden = False
        self._name, self._then = name, then

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The place of the module; None for all other modules.

        Raises: `ModuleNotFoundError` while it is hidden.
        """
        if fullname != self._name:
            return None
        if self.hidden:
            raise ModuleNotFoundError("pyarrow looks for it later", name=fullname)
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self._then)
        return spec


class _Loader(Loader):
    """Loads a module as its own loader does, and calls `then`."""

    def __init__(self, loader: Loader, then: Callable[[], None]) -> None:
        self._loader, self._then = loader, then

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        spec = cast("ModuleSpec", module.__spec__)
        spec.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._then()
