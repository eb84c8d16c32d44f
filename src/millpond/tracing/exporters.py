"""The target of spans: a collector that speaks OTLP over HTTP, or a file of OTLP's JSON lines.

Sampling, headers, certificates and the attributes of the resource are those of the variables of OpenTelemetry, such as
`OTEL_TRACES_SAMPLER`, `OTEL_EXPORTER_OTLP_HEADERS` and `OTEL_SERVICE_NAME`.

Source of the file's form: https://opentelemetry.io/docs/specs/otel/protocol/file-exporter/
"""

from __future__ import annotations

import logging
import os
from base64 import b64decode
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from google.protobuf.json_format import MessageToDict
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from millpond.json_forms import to_json
from millpond.stores.files import append_line

__all__ = ("provider_for",)

_SECONDS: Final = 3.0
_PATH: Final = "/v1/traces"
_IDS: Final = ("traceId", "spanId", "parentSpanId")
_LOG = logging.getLogger(__name__)


def provider_for(target: str) -> TracerProvider:
    """A provider whose spans go to a target, in the background; what does not fit its queue is dropped."""
    about = {"service.version": version("millpond")}
    if "OTEL_SERVICE_NAME" not in os.environ and "service.name=" not in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", ""):
        about["service.name"] = "millpond"
    provider = TracerProvider(resource=Resource.create(about), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(_exporter(target)))
    return provider


def _exporter(target: str) -> SpanExporter:
    if "://" not in target:
        return _File(Path(target))
    address = urlsplit(target)
    if address.path in ("", "/"):
        target = address._replace(path=_PATH).geturl()
    return OTLPSpanExporter(target, timeout=_SECONDS)


class _File(SpanExporter):
    """Appends each batch as one line, which lines of other processes do not mix with."""

    def __init__(self, path: Path) -> None:
        self._path, self._failed = path, False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Append some spans; what cannot be written is dropped, and said once."""
        form = MessageToDict(encode_spans(spans), use_integers_for_enums=True)
        try:
            append_line(self._path, to_json(_with_hex_ids(form)))
        except OSError as error:
            if not self._failed:
                _LOG.warning("spans are dropped. target=%s reason=%s", self._path, error)
            self._failed = True
            return SpanExportResult.FAILURE
        self._failed = False
        return SpanExportResult.SUCCESS


def _with_hex_ids(form: Any) -> Any:
    """A message as OTLP's JSON has it: ids in hexadecimal, where the JSON of protobuf has base64."""
    if isinstance(form, list):
        return [_with_hex_ids(part) for part in form]
    if not isinstance(form, dict):
        return form
    return {
        name: b64decode(part).hex() if name in _IDS else _with_hex_ids(part) for name, part in form.items()
    }  # fmt: skip
