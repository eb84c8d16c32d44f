"""The Python modules of messages: `*_pb2.py` and `*_pb2.pyi`, beside each `.proto` of the sources.

`python tools/protocols.py --write` makes them; without `--write` it says which of them are not current.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

from grpc_tools import protoc

SOURCES = Path(__file__).parent.parent / "src"
ENDINGS = ("_pb2.py", "_pb2.pyi")


def protocols() -> list[Path]:
    """The definitions of messages."""
    return sorted(SOURCES.rglob("*.proto"))


def generated(proto: Path) -> Iterator[tuple[Path, str]]:
    """The modules that a definition becomes: their paths and texts."""
    with tempfile.TemporaryDirectory() as folder:
        status = protoc.main(
            ["protoc", f"-I{SOURCES}", f"-I{files('grpc_tools') / '_proto'}", f"--python_out={folder}",
             f"--pyi_out={folder}", str(proto)]
        )  # fmt: skip
        if status:
            raise SystemExit(f"{proto} is not understood")
        for ending in ENDINGS:
            name = proto.relative_to(SOURCES).with_name(proto.stem + ending)
            yield SOURCES / name, (Path(folder) / name).read_text(encoding="utf-8")


def main() -> None:
    """Write what is not current, or say what it is."""
    stale = [
        (path, text)
        for proto in protocols()
        for path, text in generated(proto)
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    if "--write" in sys.argv:
        for path, text in stale:
            path.write_text(text, encoding="utf-8")
    elif stale:
        raise SystemExit(f"not current: {', '.join(path.name for path, _ in stale)}; python tools/protocols.py --write")


if __name__ == "__main__":
    main()
