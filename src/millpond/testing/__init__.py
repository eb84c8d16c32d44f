"""Tests of pipelines that use Millpond: a pond in a temporary folder, a clock to be moved, faults, runs of workflows.

    with temporary_pond() as pond:                    a pond of its own, on a clock that stands still
        load_prices(pond)                             what is tested
        with faults_of(pond).losing_results(committed=True):
            load_prices(pond)                         the answer of a commit is lost

| module | holds |
|---|---|
| `ponds`, `faulty_space`, `passing_time` | the names here |
| `workflows`, `pipelines` | `WorkflowRuns`, `PipelineRuns`, `replayed`; need the extras `node` and `workflows` |
| `fixtures` | the same as fixtures of pytest: `pytest_plugins = ["millpond.testing.fixtures"]` |
| `faults` | processes that die at a step, files that are damaged |
| `contracts` | suites for drivers of spaces, objects and command logs |

The guide is `docs/testing.md`.
"""

from millpond.clock import ManualClock
from millpond.testing.faulty_space import FaultySpace
from millpond.testing.passing_time import until, while_time_passes
from millpond.testing.ponds import faults_of, temporary_pond

__all__ = ("FaultySpace", "ManualClock", "faults_of", "temporary_pond", "until", "while_time_passes")
