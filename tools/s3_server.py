"""Fetches the S3 server that the tests start: S3Proxy and the libraries it loads, pinned by their SHA-256.

    python tools/s3_server.py FOLDER

Files that are there and whole are not fetched again. They come from Maven's central repository, by its own name.
"""

from __future__ import annotations

import hashlib
import os
import ssl
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

REPOSITORY = "https://repo.maven.apache.org/maven2/"
PINNED = Path(__file__).with_suffix(".sha256")
ATTEMPTS = 3


def pinned() -> dict[str, str]:
    """Each file's path in the repository, and its SHA-256."""
    return {path: digest for digest, path in (line.split() for line in PINNED.read_text().splitlines())}


def whole(file: Path, digest: str) -> bool:
    """True when the file is there and is the one that was pinned."""
    return file.is_file() and hashlib.sha256(file.read_bytes()).hexdigest() == digest


def trusted() -> ssl.SSLContext:
    """The certificates that pip is given on this machine, else the system's."""
    return ssl.create_default_context(cafile=os.environ.get("SSL_CERT_FILE") or os.environ.get("PIP_CERT") or None)


def fetch(path: str, digest: str, folder: Path) -> None:
    """Bring one file, unless it is there.

    Raises: `SystemExit` when it cannot be fetched, or is another than was pinned.
    """
    target = folder / path.rpartition("/")[2]
    reason: object = None
    for _ in range(ATTEMPTS):
        if whole(target, digest):
            return
        partial = target.with_suffix(".partial")
        try:
            with urllib.request.urlopen(REPOSITORY + path, timeout=60, context=trusted()) as answer:
                partial.write_bytes(answer.read())
        except OSError as error:
            reason = error
            continue
        partial.replace(target)
        reason = "its SHA-256 is not the one in tools/s3_server.sha256"
    if not whole(target, digest):
        raise SystemExit(f"{REPOSITORY}{path} cannot be used: {reason}")


def main() -> None:
    """Fetch all files, and remove those of other versions."""
    folder, files = Path(sys.argv[1]), pinned()
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():
        if old.name not in {path.rpartition("/")[2] for path in files}:
            old.unlink()
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda path: fetch(path, files[path], folder), files))


if __name__ == "__main__":
    main()
