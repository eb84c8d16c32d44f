"""Work that waits for its first use: modules that take long to import, and parts that take long to open.

    from millpond.deferred import np, pa

NumPy and Arrow take more of a processor than all of a question for one key, which needs neither. Modules that such a
question imports take them from here; all others import them as usual.
"""

from __future__ import annotations

import functools
import importlib
import threading
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

__all__ = ("DeferredModule", "np", "opened_once", "pa", "pc")

T = TypeVar("T")


class DeferredModule(ModuleType):
    """A module that is imported when something of it is asked for."""

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(importlib.import_module(self.__name__), name)
        setattr(self, name, attribute)  # from now on it is found without this method
        return attribute


if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc
else:
    np, pa, pc = (DeferredModule(name) for name in ("numpy", "pyarrow", "pyarrow.compute"))


class opened_once(functools.cached_property[T]):  # noqa: N801  # it is used as a decorator
    """A part of an object that is made when it is first asked for: once, whichever thread asks first."""

    def __init__(self, make: Callable[[Any], T]) -> None:
        super().__init__(make)
        self._making = threading.RLock()

    if not TYPE_CHECKING:

        def __get__(self, instance: Any, owner: type[Any] | None = None) -> Any:
            if instance is None:
                return self
            with self._making:
                return super().__get__(instance, owner)
