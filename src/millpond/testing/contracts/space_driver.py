"""Drivers of spaces as their suites open them: here, again, and in other processes.

    LMDB = SpaceDriver("millpond.stores.lmdb.space:LmdbSpace", options={"durable": False})

A driver's storage lies at a *location*, a text that its opener understands: a folder for most.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, cast

from millpond.kernel.space import Space

__all__ = ("SpaceDriver",)


def _folder(scratch: Path) -> str:
    return str(scratch / "space")


@dataclass(frozen=True)
class SpaceDriver:
    """A driver of spaces, by the name of what opens one: `module:callable`, called with a location and the options.

    `lasting`: a location keeps its rows when it is closed, or its process is killed. Without it there are no locations.
    `shared`: several processes may have one location open at a time.
    `locate`: a new location; a folder of tests is there to be used.
    """

    opener: str
    options: dict[str, Any] = field(default_factory=dict)
    lasting: bool = True
    shared: bool = True
    locate: Callable[[Path], str] = _folder

    def open(self, location: str) -> Space:
        """A space at a location, made if there is none."""
        module, _, name = self.opener.partition(":")
        opener = getattr(import_module(module), name)
        return cast(Space, opener(location, **self.options) if self.lasting else opener(**self.options))

    def start_child(self, location: str, act: str, **about: Any) -> subprocess.Popen[str]:
        """Another process that opens the location and does one of the acts of `space_child`."""
        assert self.lasting
        order = {"opener": self.opener, "options": self.options, "location": location, "act": act, "about": about}
        return subprocess.Popen(
            [sys.executable, "-m", "millpond.testing.contracts.space_child", json.dumps(order)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
