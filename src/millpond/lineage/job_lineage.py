"""Jobs that are reported, as runs of OpenLineage: loads by Python, the command line and Spark; enrichments of files."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING

from millpond.error_values import shown
from millpond.kernel.job_reports import Fact
from millpond.lineage.context import ENRICHING, PARENT
from millpond.lineage.run_events import Dataset, Kind, Run, run_event

if TYPE_CHECKING:
    from millpond.lineage.datasets import Enriching
    from millpond.lineage.targets import Lineage

__all__ = ("LineageStory",)

_LOG = logging.getLogger(__name__)
Fields = Callable[[str], dict[str, str]]
_REASON_CHARACTERS = 2_000


@dataclass(frozen=True, slots=True)
class _Ends:
    """The datasets that a job reads, and those that it writes, by the facts that it noted."""

    inputs: Callable[[], Sequence[Dataset]]
    outputs: Callable[[dict[str, Fact]], list[Dataset]]


@dataclass(frozen=True, slots=True)
class LineageStory:
    """A `Story` that sends the run events of loads, and of enrichments of files; `fields_of` gives a map's columns."""

    lineage: Lineage
    fields_of: Fields

    def __call__(
        self, job_set: str, job_id: str, _facts: Mapping[str, Fact]
    ) -> AbstractContextManager[Callable[..., object]]:  # fmt: skip
        kind, _, name = job_set.partition("/")
        if kind == "load":
            return self._run(job_set, job_id, _Ends(list, partial(self._loaded, name)))
        if kind == "enrich" and (files := ENRICHING.get()) is not None:
            # Once: what the maps have got meanwhile was not read.
            inputs = cache(partial(files.inputs, self.lineage.namespace))
            return self._run(job_set, job_id, _Ends(inputs, partial(self._enriched, files)))
        return nullcontext(lambda **_: None)

    @contextmanager
    def _run(self, job_set: str, job_id: str, ends: _Ends) -> Iterator[Callable[..., object]]:
        run = Run(key=job_id, namespace=self.lineage.namespace, job=job_set, parent=PARENT.get())
        noted: dict[str, Fact] = {}
        self._send("START", run, ends, {})
        try:
            yield noted.update
        except BaseException as error:
            reason = f"{type(error).__name__}: {shown(str(error))}"[:_REASON_CHARACTERS]
            self._send("FAIL", run, ends, {}, reason)
            raise
        self._send("COMPLETE", run, ends, noted)

    def _enriched(self, files: Enriching, facts: dict[str, Fact]) -> list[Dataset]:
        rows = facts.get("rows")
        return files.outputs(self.lineage.namespace, None if rows is None else int(rows))

    def _loaded(self, name: str, facts: dict[str, Fact]) -> list[Dataset]:
        rows = {name: facts.get("rows")} if name else {}
        for pair in str(facts.get("maps", "")).split():  # a load of several maps
            own, _, count = pair.rpartition(":")
            rows[own] = int(count)
        return [
            Dataset(namespace=self.lineage.namespace, name=own, fields=self.fields_of(own),
                    version=str(facts.get("load", "")), rows=None if count is None else int(count))
            for own, count in rows.items()
        ]  # fmt: skip

    def _send(self, kind: Kind, run: Run, ends: _Ends, facts: dict[str, Fact], error: str = "") -> None:
        try:
            event = run_event(kind, self.lineage.clock.now_ms(), run, ends.inputs(), ends.outputs(facts), error)
        except Exception:  # the work goes on, whatever its lineage is
            _LOG.warning("a run event was not made. job=%s", run.job, exc_info=True)
        else:
            self.lineage.send(event)
