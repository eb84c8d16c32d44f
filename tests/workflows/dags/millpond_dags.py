"""DAGs of a user of Airflow. Not run by pytest; `NODE` is the host and port of a node."""

from __future__ import annotations

import datetime
import os

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, Asset

from millpond.airflow.assets import watched
from millpond.airflow.operators import MillpondRunOperator
from millpond.airflow.sensors import MillpondSensor

BEGIN = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
WEATHER, DELAYS = (f"millpond://{os.environ['NODE']}/{name}" for name in ("weather", "delays"))

with DAG("nightly", schedule=None, start_date=BEGIN):
    arrived = MillpondSensor(task_id="arrived", map="weather", timeout=300)
    run = MillpondRunOperator(
        task_id="run", pipeline="nightly", parameters={"day": "{{ ds }}"}, deferrable=True, outlets=[Asset(DELAYS)]
    )
    ended = MillpondSensor(task_id="ended", run="{{ ti.xcom_pull(task_ids='run') }}", deferrable=False, timeout=300)
    arrived >> run >> ended

with DAG("retried", schedule=None, start_date=BEGIN):
    MillpondRunOperator(
        task_id="run", pipeline="nightly", parameters={"day": "2026-02-02"}, deferrable=False,
        execution_timeout=datetime.timedelta(seconds=30), stops=os.environ.get("STOPS") == "1",
        retries=1, retry_delay=datetime.timedelta(seconds=0),
    )  # fmt: skip

with DAG("refused", schedule=None, start_date=BEGIN):
    MillpondRunOperator(task_id="run", pipeline="nightly", parameters={"day": "no-date"}, retries=0)

with DAG("after", schedule=[watched(WEATHER)], start_date=BEGIN, is_paused_upon_creation=False):
    EmptyOperator(task_id="done")
