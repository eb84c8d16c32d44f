"""Spark drivers that a cluster runs: begun there, asked for and ended through the cluster's own interface.

| cluster | begun by | its id | asked for and ended by |
|---|---|---|---|
| YARN | `spark-submit` | `application_…` | the resource manager, by YARN's command line in Spark's jars |
| Kubernetes | `spark-submit` | `namespace:pod` | the API server, by `spark-submit --status` and `--kill` |

Each is a program of Java that ends within seconds. What names the cluster (`HADOOP_CONF_DIR`, `spark-defaults.conf`)
is Spark's, as are queues, memory and images. Spark has no such mode for Python on a standalone cluster.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from threading import Event
from typing import IO, Final

from millpond.clock import SystemClock
from millpond.error_values import shown
from millpond.errors import Unavailable

__all__ = ("ClusterDriver", "State", "is_managed", "submit", "submitted")

_YARN: Final = "org.apache.hadoop.yarn.client.cli.ApplicationCLI"
_COMMAND_SECONDS: Final = 120.0
_LOOK_SECONDS: Final = 0.1
_IDS: Final = {
    "yarn": re.compile(r"Submitted application (application_\d+_\d+)"),
    "k8s": re.compile(r"submission ID (\S+:\S+)"),
}
_STATES: Final = {
    "yarn": re.compile(r"^\s*State : (\w+)", re.MULTILINE), "k8s": re.compile(r"phase: (\w+)"),
}  # fmt: skip
_ENDED: Final = frozenset(("FINISHED", "FAILED", "KILLED", "SUCCEEDED"))
_LOGGING: Final = "-Dlog4j2.configurationFile=classpath:org/apache/spark/log4j2-defaults.properties"
"""Spark's own: it tells the id, whatever a machine's settings leave out."""
_GONE: Final = ("doesn't exist", "No applications found", "not found")
_SETTINGS: Final = {
    # It is left when it has begun, and a driver that fails is begun anew by a worker, not by the cluster.
    "yarn": {"spark.yarn.submit.waitAppCompletion": "false", "spark.yarn.maxAppAttempts": "1"},
    "k8s": {"spark.kubernetes.submission.waitAppCompletion": "false"},
}  # fmt: skip


class State(Enum):
    """A driver as its cluster knows it; `UNKNOWN` where the cluster does not answer."""

    GOES_ON = "goes on"
    ENDED = "ended"
    UNKNOWN = "unknown"


def is_managed(master: str) -> bool:
    """True for a cluster that runs drivers, and can be asked for them.

    >>> is_managed("yarn"), is_managed("k8s://https://host:6443"), is_managed("spark://host:7077")
    (True, True, False)
    """
    return _kind(master) in _IDS


def _kind(master: str) -> str:
    return master.partition(":")[0]


@dataclass(frozen=True, slots=True)
class ClusterDriver:
    """A driver by the id that its cluster gave it."""

    master: str
    id: str

    def state(self) -> State:
        """Its state, as the cluster tells it."""
        text = self._answer("-status", "--status")
        if match := _STATES[_kind(self.master)].search(text):
            return State.ENDED if match[1].upper() in _ENDED else State.GOES_ON
        return State.ENDED if any(words in text for words in _GONE) else State.UNKNOWN

    def kill(self) -> None:
        """End it; one that has ended already stays as it is."""
        self._answer("-kill", "--kill")

    def _answer(self, of_yarn: str, of_spark: str) -> str:
        if _kind(self.master) == "yarn":
            return _run("spark-class", _YARN, "application", of_yarn, self.id)
        return _run("spark-submit", "--master", self.master, of_spark, self.id)


def submit(
    master: str, program: Path, arguments: Sequence[str], name: str, log: Path, look: Callable[[], object]
) -> ClusterDriver:  # fmt: skip
    """Let a cluster begin a driver, and do not wait until it has. What `spark-submit` writes is in `log`, from which
    `submitted` has the id; it goes on when this process is killed. `look` is called now and then.

    Raises: `Unavailable`, kind `spark_failed`, with what `spark-submit` says, where the cluster takes none; what `look`
        raises, and then the driver ends.
    """
    settings = [word for own in _SETTINGS[_kind(master)].items() for word in ("--conf", "=".join(own))]
    words = [
        "spark-submit", "--master", master, "--deploy-mode", "cluster", "--name", name, *settings,
        f"local://{program}" if _kind(master) == "k8s" else str(program), *arguments,
    ]  # fmt: skip
    clock = SystemClock()
    with log.open("xb") as log_file:
        submitting = _begin(words, log_file)
    try:
        while submitting.poll() is None:
            look()
            clock.wait(Event(), clock.monotonic() + _LOOK_SECONDS)
    except BaseException:
        submitting.kill()
        submitting.wait()
        if (driver := submitted(master, log)) is not None:
            driver.kill()
        raise
    driver = submitted(master, log)
    if driver is None:
        text = log.read_text(errors="replace")
        lines = [line for line in text.splitlines() if line.strip()] or [f"it ended with {submitting.returncode}"]
        reason = next((line for line in lines if "Exception" in line or "Error" in line), lines[-1])
        raise Unavailable("the cluster began no driver", kind="spark_failed", master=master, reason=shown(reason))
    return driver


def submitted(master: str, log: Path) -> ClusterDriver | None:
    """The driver that was begun; None while `spark-submit` has not told its id."""
    try:
        match = _IDS[_kind(master)].search(log.read_text(errors="replace"))
    except OSError:
        return None
    return None if match is None else ClusterDriver(master, match[1])


def _run(*words: str) -> str:
    """The output of a program of Spark."""
    try:
        process = _begin(words, subprocess.PIPE)
        try:
            return process.communicate(timeout=_COMMAND_SECONDS)[0].decode(errors="replace")
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            return ""
    except OSError as error:
        return str(error)


def _begin(words: Sequence[str], output: IO[bytes] | int) -> subprocess.Popen[bytes]:
    import pyspark

    home = Path(os.environ.get("SPARK_HOME") or str(Path(pyspark.__file__).parent))
    python = dict.fromkeys(("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"), sys.executable)
    options = f"{os.environ.get('SPARK_SUBMIT_OPTS', '')} {_LOGGING}"
    return subprocess.Popen(
        [str(home / "bin" / words[0]), *words[1:]], stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
        env={**python, **os.environ, "SPARK_HOME": str(home), "SPARK_SUBMIT_OPTS": options}, start_new_session=True,
    )  # fmt: skip
