"""A fault campaign on three real nodes: writers and readers at work while a seeded plan of faults strikes.

    python -m tests.harness.chaos --minutes 10 --seed 7

| module | holds |
|---|---|
| `plan` | the faults, their order, nodes and durations: a function of the seed |
| `batches` | the maps, and the rows of each load: a function of the seed |
| `oracle` | the judgement of what readers saw, given what was acknowledged |
| `sights` | what a reader saw, from the rows or answers of a node |
| `faults` | the strike and the end of each fault on a running cluster |
| `actors` | writers and readers, each a thread with clients of its own |
| `campaign` | all of it together, and the audit at the end |
| `report` | the tables of a campaign |

Times are real, so two campaigns of one seed differ in detail; they do the same to the same nodes with the same data.
"""

from __future__ import annotations

from tests.harness.chaos.campaign import run_campaign
from tests.harness.chaos.oracle import Oracle
from tests.harness.chaos.plan import Fault, plan_of
from tests.harness.chaos.report import Report

__all__ = ("Fault", "Oracle", "Report", "plan_of", "run_campaign")
