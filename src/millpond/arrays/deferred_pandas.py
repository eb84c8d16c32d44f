"""Leaving pandas out of processes that do not use it.

pyarrow imports pandas, where it is installed, when it converts its first value: more than a second of a process that
may live no longer. `defer_pandas` tells pyarrow that there is none. When anybody imports pandas later, pyarrow is told
that it is there now, so that whoever uses pandas sees no difference.

Invariants:
* after `import pandas` pyarrow takes Series and data frames as always;
* a process that has pandas already is left as it is.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import cast

import pyarrow as pa

__all__ = ("defer_pandas",)

_PANDAS = "pandas"


def defer_pandas() -> None:
    """Have pyarrow look for pandas when this process imports it, not before."""
    if _PANDAS in sys.modules or any(isinstance(finder, _PandasFinder) for finder in sys.meta_path):
        return
    finder = _PandasFinder()
    sys.meta_path.insert(0, finder)
    pa.array([0])  # pyarrow looks once, and does not find it
    finder.hidden = False


class _PandasFinder(MetaPathFinder):
    """Finds no pandas while it is `hidden`; then it does, once, with a loader that tells pyarrow."""

    def __init__(self) -> None:
        self.hidden = True

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The place of pandas; None for all other modules.

        Raises: `ModuleNotFoundError` while it is hidden.
        """
        if fullname != _PANDAS:
            return None
        if self.hidden:
            raise ModuleNotFoundError("pyarrow looks for it later", name=fullname)
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _PandasLoader(spec.loader)
        return spec


class _PandasLoader(Loader):
    """Loads pandas as its own loader does, and has pyarrow look again."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """The module that the loader of pandas makes."""
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Run pandas, and have pyarrow find it."""
        spec = cast("ModuleSpec", module.__spec__)
        spec.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        shim = getattr(pa.lib, "_pandas_api", None)
        getattr(shim, "pd", None)  # it imports what it did not find before
