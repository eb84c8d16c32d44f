"""Options of commands that carry out steps of pipelines: where their Spark is, and its driver."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from millpond.errors import Invalid

__all__ = ("DeployMode", "Shared", "check_mode", "name_spark")

DeployMode = Annotated[
    str, typer.Option("--deploy-mode", metavar="MODE", help="Where Spark's driver runs: client, here, or cluster.")
]
Shared = Annotated[
    str | None,
    typer.Option("--shared", metavar="FOLDER", help="With --deploy-mode cluster: a folder of here and of the cluster."),
]


def name_spark(master: str | None, deploy_mode: str, shared: str | None) -> None:
    """Let the steps of this process have Spark where the options say.

    Raises: `Invalid`, kind `spark_deploy`, for options that do not go together.
    """
    check_mode(master or "", deploy_mode, shared)
    if master is not None:
        os.environ["MILLPOND_SPARK_MASTER"] = master
    if shared is not None:
        os.environ["MILLPOND_SPARK_SHARED"] = str(Path(shared).absolute())


def check_mode(master: str, deploy_mode: str, shared: str | None) -> None:
    """Refuse options about where drivers run that do not go together.

    Raises: `Invalid`, kind `spark_deploy`.
    """
    from millpond.pipelines.clusters import is_managed

    if deploy_mode not in ("client", "cluster"):
        raise Invalid("there is no such place for a driver", kind="spark_deploy", deploy_mode=deploy_mode,
                      hint="client or cluster")  # fmt: skip
    if deploy_mode == "client":
        if shared is not None:
            raise Invalid("a driver beside its worker shares no folder", kind="spark_deploy", shared=shared,
                          hint="--deploy-mode cluster, or no --shared")  # fmt: skip
    elif not is_managed(master):
        raise Invalid("this cluster runs no drivers of Python", kind="spark_deploy", master=master or "local[*]",
                      hint="--deploy-mode client, or --master yarn or k8s://…")  # fmt: skip
    elif shared is None:
        raise Invalid("worker and driver meet in a folder, and none is named", kind="spark_deploy", master=master,
                      hint="--shared FOLDER, on a file system of this machine and of the cluster")  # fmt: skip
