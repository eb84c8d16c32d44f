"""Topics of output: the records that commands note, and their way into topics."""

from __future__ import annotations

import pytest

pytest.importorskip("littlehorse")
