"""The demo as a workflow: its maps loaded, checked, and every flight enriched, by the steps of `millpond.pipelines`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from littlehorse.workflow import WorkflowThread

from millpond.demo.plan import LOOKUPS, MAPS, VIEWS, PlannedMap, PlannedView
from millpond.demo.sources import Sources
from millpond.pipelines import ColumnRule, KeyRule, Pipeline, Question, Rows, Rules, Target, View

__all__ = ("FlightsPipeline",)


@dataclass(frozen=True, slots=True)
class FlightsPipeline:
    """The steps: a load of each map, checks of the weather, the enrichment, and a notice.

    `suffix` ends the names of maps, so that several runs have their own. `only` are conditions on views by their names,
    for a part of the data.
    """

    sources: Sources
    out: Path
    suffix: str = ""
    only: tuple[tuple[str, str], ...] = ()
    retries: int = 10
    timeout_seconds: int = 600
    delay_seconds_max: int = 30

    @property
    def maps(self) -> tuple[PlannedMap, ...]:
        """The maps under the names that they have here."""
        return tuple(replace(planned, name=self.name_of(planned.name)) for planned in MAPS)

    def name_of(self, name: str) -> str:
        """The name of a map here."""
        return f"{name}{self.suffix}"

    def rows(self, sql: str) -> Rows:
        """The rows of a query over the data."""
        conditions = dict(self.only)
        views: dict[str, View] = {}
        for planned in VIEWS:
            condition = conditions.get(planned.name)
            hidden = f"all_{planned.name}" if condition else planned.name
            views[hidden] = self._view(planned)
            if condition:
                views[planned.name] = View(sql=f"select * from {hidden} where {condition}")
        return Rows(sql=sql, views=views)

    def _view(self, planned: PlannedView) -> View:
        if planned.sql:
            return View(sql=planned.sql)
        file = str(Path(getattr(self.sources, planned.file)).absolute())
        return View(files=[file], format=planned.format, schema=planned.schema, options=planned.options)

    def body(self) -> Callable[[WorkflowThread], None]:
        """The workflow, as the SDK declares it."""

        def flights(thread: WorkflowThread) -> None:
            pipeline = Pipeline(
                thread, retries=self.retries, timeout_seconds=self.timeout_seconds,
                delay_seconds_max=self.delay_seconds_max,
            )  # fmt: skip
            fahrenheit = Rules(rows_min=1, columns={"temp": ColumnRule(min=-40, max=130, null_share_max=0.1)})
            for planned in self.maps:
                rows = self.rows(planned.rows)
                if planned.name == self.name_of("weather"):
                    pipeline.check(planned.name, fahrenheit, rows)
                pipeline.load(planned.name, rows, Target(kind=planned.kind, value=planned.value or ""))
            rules = Rules(keys=KeyRule(column="origin", at="time_hour", found_share_min=0.9))
            pipeline.check(self.name_of("weather"), rules, self.rows("select origin, time_hour from flights"))
            pipeline.enrich(self.rows("select * from flights"), self._questions(), str(self.out.absolute()))
            pipeline.notify("flights", "demo", "ready", {"maps": [planned.name for planned in self.maps]})

        return flights

    def _questions(self) -> list[Question]:
        return [
            Question(map=self.name_of(lookup.map), key=lookup.key, at=lookup.at or "", into=lookup.into)
            for lookup in LOOKUPS
        ]
