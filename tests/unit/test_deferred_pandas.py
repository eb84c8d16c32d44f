"""pandas is imported by those who use it, and by nobody else."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("pandas")

BEGIN = """
import sys
import numpy as np, pyarrow as pa, pyarrow.compute as pc
from millpond.arrays.deferred_pandas import defer_pandas
defer_pandas()
defer_pandas()
numbers = pa.array([1, 2, None])
pc.add(numbers, 1), pa.array(np.arange(3)), numbers.to_numpy(zero_copy_only=False)
assert "pandas" not in sys.modules
"""


def run(code: str) -> None:
    done = subprocess.run([sys.executable, "-c", BEGIN + code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.usefixtures("process")
def test_pyarrow_takes_series_once_pandas_is_imported() -> None:
    run(
        "import pandas as pd\n"
        "times = pd.Series(pd.to_datetime(['2020-01-01', None]))\n"
        "assert pa.array(times).null_count == 1\n"
        "assert pa.table(pd.DataFrame({'a': [1.0, None]})).column('a').null_count == 1\n"
        "assert pd.__spec__.loader is pd.__loader__ and 'Source' in type(pd.__loader__).__name__\n"
    )


@pytest.mark.usefixtures("process")
def test_pyarrow_imports_pandas_when_it_is_asked_for_a_series() -> None:
    run("assert numbers.to_pandas().isna().sum() == 1\nassert 'pandas' in sys.modules\n")


@pytest.mark.usefixtures("process")
def test_pandas_that_is_there_is_left_alone() -> None:
    code = """
import sys
import pandas as pd, pyarrow as pa
from millpond.arrays.deferred_pandas import defer_pandas
finders = list(sys.meta_path)
defer_pandas()
assert sys.meta_path == finders
assert pa.array(pd.Series([1.0, None])).null_count == 1
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
