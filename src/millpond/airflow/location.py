"""A node, as the provider reaches it: the addresses and the token of a connection of Airflow."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import millpond
from millpond.cli.workflows.server import connected
from millpond.settings import Settings, load_settings

__all__ = ("NodeLocation",)


@dataclass(frozen=True, slots=True)
class NodeLocation:
    """A node: its address of HTTP, `HOST:PORT` of its workflows, and who asks."""

    url: str
    workflows: str
    tenant: str = "default"
    token: str = ""
    ca: str = ""

    @property
    def settings(self) -> Settings:
        """The settings of a client of the node."""
        return load_settings(said="the connection of Airflow", client_token=self.token or None, tls_ca=self.ca or None)

    @contextmanager
    def call(self) -> Iterator[Any]:
        """As `connected`: a function that calls a method of the workflows."""
        with connected(self.workflows, self.tenant, self.settings) as call:
            yield call

    def open(self) -> Any:
        """The pond, as `millpond.open` gives it."""
        return millpond.open(self.url, client_token=self.token or None, tls_ca=self.ca or None)
