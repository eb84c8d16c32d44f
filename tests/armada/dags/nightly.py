"""A pipeline of a user of Airflow: a task for Armada's operator, and nothing of Millpond. Not run by pytest.

`ARMADA_PORT` is the port of Armada's API.
"""

from __future__ import annotations

import datetime
import os

from airflow import DAG
from armada.model import GrpcChannelArgs
from armada.operators.armada import ArmadaOperator
from armada_client.armada.submit_pb2 import JobSubmitRequestItem
from armada_client.k8s.io.api.core.v1 import generated_pb2 as core_v1

POD = core_v1.PodSpec(containers=[core_v1.Container(name="main", image="busybox")])

with DAG("nightly", schedule=None, start_date=datetime.datetime(2026, 1, 1)) as dag:
    ArmadaOperator(
        task_id="load",
        name="load",
        channel_args=GrpcChannelArgs(target=f"127.0.0.1:{os.environ['ARMADA_PORT']}"),
        armada_queue="airflow",
        job_request=JobSubmitRequestItem(priority=1, namespace="default", pod_specs=[POD]),
        poll_interval=1,
        deferrable=False,
    )
