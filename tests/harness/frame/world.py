"""A world: what a campaign runs, how long, and whether the seed decides all of it."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.harness.frame.report import Broken, Report

__all__ = ("Order", "Say", "World")

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Order:
    """One run that is wanted: `chosen` are the options of its world, `folder` an empty one for whatever it leaves."""

    seed: int
    length: float
    folder: Path
    say: Say
    chosen: Namespace


@dataclass(frozen=True, slots=True)
class World:
    """A world, by the module that is its command; `option` names the length of a run, `length` is the usual one.

    `exact`: a seed and a length are a run, the same in every process. Then `run` raises `Broken`; else its report says
    what was wrong. `options` are further ones, as `argparse` takes them.
    """

    module: str
    option: str
    length: float
    run: Callable[[Order], Report]
    exact: bool = False
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def replay(self, seed: int, length: float) -> str:
        """The command that makes a run again."""
        return f"python -m {self.module} --seed {seed} --{self.option} {length:g}"

    @contextmanager
    def traced(self, report: Report, length: float) -> Iterator[None]:
        """Let any error of an exact run be `Broken`, with the trace until there and the command that replays it."""
        try:
            yield
        except Exception as error:
            replay = f"replay: {self.replay(report.seed, length)}"
            raise Broken("\n".join([*report.trace, f"{type(error).__name__}: {error}", replay])) from error
