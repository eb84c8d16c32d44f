"""The modules of messages are what `tools/protocols.py` makes of their definitions."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.protocols import generated, protocols


@pytest.mark.parametrize("proto", protocols(), ids=lambda proto: proto.stem)
def test_generated_modules_are_current(proto: Path) -> None:
    for path, text in generated(proto):
        assert path.read_text(encoding="utf-8") == text, "run `make docs`"
