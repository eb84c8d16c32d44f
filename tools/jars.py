"""Fetches the Java programs that the tests start, with the libraries they load, pinned by their SHA-256.

    python tools/jars.py s3_server FOLDER     S3Proxy
    python tools/jars.py kafka FOLDER         a broker of Kafka, and Spark's connector
    python tools/jars.py yarn FOLDER          YARN's resource manager and node manager
    python tools/jars.py tla FOLDER           TLC, which checks the specifications of tests/specs

Files that are there and whole are not fetched again. They come from Maven's central repository; its address is the
one in the settings of Ivy, which PySpark brings, or `MAVEN_REPOSITORY` names a mirror.
"""

from __future__ import annotations

import hashlib
import os
import ssl
import sys
import urllib.request
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyspark

IVY_SETTINGS = "org/apache/ivy/core/settings/repository.properties"
ATTEMPTS = 3


def pinned(server: str) -> dict[str, str]:
    """Each file's path in the repository, and its SHA-256."""
    pins = Path(__file__).with_name(f"{server}.sha256").read_text()
    return {path: digest for digest, path in (line.split() for line in pins.splitlines())}


def repository() -> str:
    """The address of the repository, with a slash at its end."""
    if named := os.environ.get("MAVEN_REPOSITORY"):
        return named.rstrip("/") + "/"
    [ivy] = (Path(pyspark.__file__).parent / "jars").glob("ivy-*.jar")
    with zipfile.ZipFile(ivy) as jar:
        lines = jar.read(IVY_SETTINGS).decode().splitlines()
    return next(value.strip() for line in lines for value in line.split("=") if value.strip().endswith("/maven2/"))


def whole(file: Path, digest: str) -> bool:
    """True when the file is there and is the one that was pinned."""
    return file.is_file() and hashlib.sha256(file.read_bytes()).hexdigest() == digest


def trusted() -> ssl.SSLContext:
    """The certificates that pip is given on this machine, else the system's."""
    return ssl.create_default_context(cafile=os.environ.get("SSL_CERT_FILE") or os.environ.get("PIP_CERT") or None)


def fetch(address: str, path: str, digest: str, folder: Path) -> None:
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
            with urllib.request.urlopen(address + path, timeout=60, context=trusted()) as answer:
                partial.write_bytes(answer.read())
        except OSError as error:
            reason = error
            continue
        partial.replace(target)
        reason = "its SHA-256 is not the one that is pinned"
    if not whole(target, digest):
        raise SystemExit(f"{address}{path} cannot be used: {reason}")


def main() -> None:
    """Fetch all files, and remove those of other versions."""
    folder, files, address = Path(sys.argv[2]), pinned(sys.argv[1]), repository()
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():
        if old.name not in {path.rpartition("/")[2] for path in files}:
            old.unlink()
    with ThreadPoolExecutor(8) as threads:
        fetched = threads.map(lambda path: fetch(address, path, files[path], folder), files)
        for number, path in enumerate(files, 1):
            next(fetched)
            print(f"{number} of {len(files)} {path.rpartition('/')[2]}", flush=True)


if __name__ == "__main__":
    main()
