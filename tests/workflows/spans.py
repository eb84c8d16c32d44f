"""Spans as a collector of OpenTelemetry gets them: from a file of OTLP's JSON lines, or by HTTP as protobuf."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

__all__ = ("Collector", "Seen", "spans_of", "within")


@dataclass(frozen=True)
class Seen:
    """A span, as it was sent."""

    name: str
    trace: str
    id: str
    parent: str
    facts: dict[str, Any]
    error: str
    times: tuple[int, int]


def spans_of(file: Path) -> list[Seen]:
    """The spans in a file."""
    lines = file.read_text().splitlines() if file.exists() else []
    parts = [part for line in lines for part in json.loads(line)["resourceSpans"]]
    return [_of_json(own) for part in parts for scope in part["scopeSpans"] for own in scope["spans"]]


def _of_json(own: dict[str, Any]) -> Seen:
    facts = {fact["key"]: next(iter(fact["value"].values())) for fact in own.get("attributes", ())}
    times = int(own["startTimeUnixNano"]), int(own["endTimeUnixNano"])
    error = own.get("status", {}).get("message", "")
    return Seen(own["name"], own["traceId"], own["spanId"], own.get("parentSpanId", ""), facts, error, times)


def within(spans: Iterable[Seen], inner: Seen) -> list[str]:
    """The names of the spans that one is within, from the outermost to itself."""
    known = {span.id: span for span in spans}
    names: list[str] = []
    own: Seen | None = inner
    while own is not None:
        assert own.trace == inner.trace
        names.insert(0, own.name)
        own = known.get(own.parent)
    return names


class Collector:
    """A server that takes OTLP over HTTP; while it is held it answers nobody."""

    def __init__(self, held: Event | None = None) -> None:
        self.names: list[str] = []
        self.services: set[str] = set()
        self.paths: set[str] = set()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if held is not None:
                    held.wait()
                collector.paths.add(self.path)
                for part in ExportTraceServiceRequest.FromString(body).resource_spans:
                    own = {fact.key: fact.value.string_value for fact in part.resource.attributes}
                    collector.services.add(own["service.name"])
                    collector.names += [span.name for scope in part.scope_spans for span in scope.spans]
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        Thread(target=self._server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        """End it."""
        self._server.shutdown()
        self._server.server_close()
