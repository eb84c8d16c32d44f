"""A provider for Apache Airflow 3: what Airflow loads, and nothing else of Millpond.

    DAG ── MillpondRunOperator ──▶ a run of a pipeline, which every retry of the task takes up again
        ── MillpondSensor ───────▶ waits for a load of a map, a commit on a branch, the end of a run
        ◀── millpond://NODE/MAP ── an asset: `watched` updates it with each load, as an outlet a task does

| module | holds |
|---|---|
| `location`, `hook` | a node, and the connection of Airflow that names it |
| `waits` | waiting for the three, by long polls and streams of the node: no thread meanwhile |
| `runs` | the run of a task: its name, its start, how it ended |
| `triggers`, `operators`, `sensors`, `assets` | those, as Airflow calls them |

Invariant: Airflow imports this module to see what the provider has, so it imports nothing.
"""

from __future__ import annotations

from typing import Any

__all__ = ("get_provider_info",)


def get_provider_info() -> dict[str, Any]:
    """The parts of the provider, as Airflow asks for it by the entry point `apache_airflow_provider`."""
    here = "millpond.airflow"
    return {
        "package-name": "millpond",
        "name": "Millpond",
        "description": "Runs of Millpond's pipelines, and DAGs that begin with its loads and commits.",
        "integrations": [{"integration-name": "Millpond"}],
        "operators": [{"integration-name": "Millpond", "python-modules": [f"{here}.operators"]}],
        "sensors": [{"integration-name": "Millpond", "python-modules": [f"{here}.sensors"]}],
        "hooks": [{"integration-name": "Millpond", "python-modules": [f"{here}.hook"]}],
        "triggers": [{"integration-name": "Millpond", "python-modules": [f"{here}.triggers"]}],
        "connection-types": [
            {"connection-type": "millpond", "hook-class-name": f"{here}.hook.MillpondHook", "hook-name": "Millpond"}
        ],
        "asset-uris": [{"schemes": ["millpond"], "handler": f"{here}.assets.sanitize_uri"}],
    }
