"""Validating a part, as a node does when it is handed over: processor time, beside that of sealing the same rows.

python bench/validate.py [rows]
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

from _results import Run
from millpond.maps.model.columns import canonical_schema
from millpond.maps.model.definition import Kind, MapDefinition, Scheme, parse_value_type
from millpond.maps.parts.part import PartWriter
from millpond.maps.parts.validate import validate_part

ROWS = 1_000_000


def main(rows: int) -> None:
    """Print a line for each kind of part."""
    run = Run("validate")
    number = np.arange(rows)
    keys = pa.array([f"key-{n * 7919 % rows:08d}" for n in range(rows)], pa.binary())
    times = pa.array(number % 50 * 3_600_000)
    texts = pa.array(["x" * 200] * rows)
    cases = {
        "state, long": ("state", "auto", "long", [keys, pa.array(number)]),
        "temporal_state, double": ("temporal_state", "auto", "double", [keys, times, pa.array(number / 3)]),
        "temporal_state by hash, text": ("temporal_state", "hash", "string", [keys, times, keys.cast(pa.string())]),
        "state, text of 200 bytes": ("state", "auto", "string", [keys, texts]),
    }
    for name, (kind, scheme, value, columns) in cases.items():
        definition = MapDefinition(
            name="m", kind=Kind(kind), incarnation="0" * 16, scheme=Scheme(scheme), value=parse_value_type(value)
        )
        batch = pa.RecordBatch.from_arrays(columns, schema=canonical_schema(definition))
        found = [_measured(definition, batch) for _ in range(3)]
        print(name, *min(found), sep="\t")
        validated, sealed, _ = zip(*found, strict=True)
        run.note(name, "Millpond, validate", validated, things=rows)
        run.note(name, "Millpond, seal", sealed, things=rows)
    run.write(whole=rows == ROWS, rows=rows)


def _measured(definition: MapDefinition, batch: pa.RecordBatch) -> tuple[float, float, float]:
    """Seconds to validate, seconds to seal, and gigabytes validated in a second."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.process_time()
        writer = PartWriter(definition, Path(folder) / "part")
        writer.write(batch)
        [part] = writer.finish()
        sealed = time.process_time()
        validate_part(part.file, part.manifest, definition)
        took = time.process_time() - sealed
    return round(took, 3), round(sealed - began, 3), round(part.manifest.data_bytes / took / 1e9, 2)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else ROWS)
