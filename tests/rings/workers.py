"""The workers of a run: forked from a process that has imported all tests, for each would import them for itself.

    xdist ── popen, of a script ──▶ forked_command.py ── words, environment, files ──▶ this process ── forks ──▶ worker

A worker finds the modules where it looks for them, and collects its tests as it always does.
"""

from __future__ import annotations

import gc
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from _pytest.config import _prepareconfig
from _pytest.pathlib import ImportMode, import_path, module_name_from_path

from tests.rings import forked

__all__ = ("Workers", "import_tests")


class Workers:
    """The plugin of the process that controls a run: it starts the process that the workers are forked from."""

    def __init__(self) -> None:
        self._stack = ExitStack()

    def pytest_xdist_setupnodes(self, config: pytest.Config, specs: Sequence[Any]) -> None:
        place = forked.start_workers(self._stack, config.args)
        for spec in specs:
            spec.python = f"{sys.executable} -IS {forked.FORKED} {place} python"

    def pytest_unconfigure(self) -> None:
        self._stack.close()


def _files(places: Sequence[str]) -> Iterator[Path]:
    for place in places:
        path = Path(place.partition("::")[0]).absolute()
        for pattern in ("conftest.py", "test_*.py"):
            yield from sorted(path.rglob(pattern)) if path.is_dir() else [path]


def import_tests(places: Sequence[str]) -> None:
    """Import the modules of tests at some places as pytest does; one that fails is left to who collects it."""
    gc.disable()
    config = _prepareconfig(["-s", *places])
    root = config.rootpath
    for path in _files(places):
        try:
            import_path(path, mode=ImportMode.importlib, root=root, consider_namespace_packages=False)
        except BaseException:
            sys.modules.pop(module_name_from_path(path, root), None)
    from hypothesis.internal.conjecture.providers import _get_local_constants

    with warnings.catch_warnings(action="ignore"):  # it is early: before any test is collected
        _get_local_constants()
    config._ensure_unconfigure()
    gc.enable()
