"""Runs cells in a kernel of Jupyter and prints what each shows, a line of JSON a cell: its text and its HTML.

python jupyter_kernel.py PYTHON FOLDER     the cells are lines of the input; FOLDER is empty, and for the kernel

The kernel is a process of PYTHON, to which the packages of this environment come last.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from jupyter_client.manager import KernelManager

SECONDS = 120
_KERNEL = "import sys; sys.path.append(sys.argv.pop(1)); from ipykernel.kernelapp import main; main()"


def shown(client: Any, code: str) -> dict[str, str]:
    """The outputs of a cell. Raises: `SystemExit` when it fails."""
    outputs: list[dict[str, Any]] = []
    reply = client.execute_interactive(code, output_hook=outputs.append, timeout=SECONDS)
    if reply["content"]["status"] != "ok":
        sys.exit(f"{code}: {reply['content']['ename']} {reply['content']['evalue']}")
    data = [output["content"]["data"] for output in outputs if output["msg_type"] == "execute_result"]
    return data[0] if data else {}


def main() -> None:
    """Start the kernel, run the cells, end it."""
    python, folder = sys.argv[1], Path(sys.argv[2])
    packages = next(path for path in sys.path if path.endswith("site-packages"))
    spec = folder / "kernels" / "tested" / "kernel.json"
    spec.parent.mkdir(parents=True)
    words = [python, "-c", _KERNEL, packages, "-f", "{connection_file}"]
    spec.write_text(json.dumps({"argv": words, "display_name": "tested", "language": "python"}), encoding="utf-8")
    os.environ["JUPYTER_PATH"], os.environ["JUPYTER_RUNTIME_DIR"] = str(folder), str(folder)
    manager = KernelManager(kernel_name="tested")
    manager.start_kernel(cwd=str(folder))
    try:
        client = manager.blocking_client()
        client.start_channels()
        client.wait_for_ready(timeout=SECONDS)
        for code in sys.stdin:
            print(json.dumps(shown(client, code)), flush=True)
    finally:
        manager.shutdown_kernel(now=True)


if __name__ == "__main__":
    main()
