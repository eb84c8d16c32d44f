"""The target of run events: a file of JSON lines, or an address that takes POSTs."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any, ClassVar

from millpond.clock import Clock
from millpond.error_values import shown_address
from millpond.json_forms import to_json

__all__ = ("Lineage",)

_LOG = logging.getLogger(__name__)
_SECONDS = 2.0
_PAUSE_SECONDS = 30.0
_PATH = "/api/v1/lineage"


class Lineage:
    """The lineage of the work on a pond; `namespace` names it. Threads may share it.

    An address that does not answer is left alone for 30 s: each event would cost its timeout.
    """

    _silent_until: ClassVar[dict[str, float]] = {}

    def __init__(self, target: str, namespace: str, clock: Clock) -> None:
        self.namespace, self.clock = namespace, clock
        self._target = target

    def send(self, event: dict[str, Any]) -> None:
        """Send an event; nothing is raised."""
        if self.clock.monotonic() < self._silent_until.get(self._target, 0.0):
            return
        try:
            (self._post if self._target.startswith(("http://", "https://")) else self._append)(to_json(event))
        except Exception as error:  # whatever it is, the work goes on
            self._silent_until[self._target] = self.clock.monotonic() + _PAUSE_SECONDS
            target = shown_address(self._target) if "://" in self._target else self._target
            _LOG.warning("run events are dropped for %g s. target=%s reason=%s", _PAUSE_SECONDS, target, error)

    def _append(self, line: bytes) -> None:
        path = Path(self._target)
        path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(file, line + b"\n")  # one write: lines of several processes do not mix
        finally:
            os.close(file)

    def _post(self, body: bytes) -> None:
        import urllib3

        address = urllib3.util.parse_url(self._target)
        url = self._target if (address.path or "/") != "/" else self._target.rstrip("/") + _PATH
        headers = {"Content-Type": "application/json"}
        answer = urllib3.request("POST", url, body=body, headers=headers, timeout=_SECONDS, retries=False)
        if answer.status >= 300:
            raise ConnectionError(f"status {answer.status}")
