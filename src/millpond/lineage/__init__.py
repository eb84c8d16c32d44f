"""Lineage: the run events of OpenLineage (spec 2-0-2) that loads, enrichments and steps of pipelines send.

    START ─▶ COMPLETE, FAIL or ABORT     of one run: its inputs and outputs, with map, ref and commit, schemas, columns

| module | holds |
|---|---|
| `place` | the setting, and what a pond is called in events |
| `run_events` | the events, as values |
| `targets` | the file, address or topic that they are sent to |
| `job_stories` | jobs that are reported, with all their stories |
| `job_lineage` | jobs that are reported, as runs |
| `datasets` | files, and what an enrichment of files has in and out |
| `columns` | the columns of which those of a query are made |

Invariants:
* without a target nothing of this is imported, and nothing is computed;
* work never fails for its lineage: what cannot be sent is dropped, with a warning.
"""

from millpond.lineage.context import ENRICHING, MASK, PARENT, fields_of, lineage_of, wait_sent

__all__ = ("ENRICHING", "MASK", "PARENT", "fields_of", "lineage_of", "wait_sent")
