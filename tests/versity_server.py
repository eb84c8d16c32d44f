"""A second real S3 server on a free loopback port: versitygw over a folder, whose conditional writes are atomic.

`tools/setup versitygw` installs it where Go is there. A race of two that swap by one tag can be tried with it, and
credentials that lack a right.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.harness.cluster import free_port
from tests.s3_server import KEY, SECRET, S3Server, end, wait_until_it_answers

__all__ = ("credentials_of", "grant", "keep_versions", "running")


@contextmanager
def running(folder: Path, accounts: Sequence[str] = ()) -> Iterator[S3Server]:
    """Start a server, wait until it answers, and end it with the block; with `accounts` that have no right yet."""
    server = shutil.which("versitygw", path=str(Path(sys.prefix, "bin"))) or shutil.which("versitygw")
    assert server, "the server is missing: run `tools/setup versitygw`"
    port, log = free_port(), folder / "versitygw.log"
    buckets, about, iam, versions = (folder / name for name in ("buckets", "about", "iam", "versions"))
    for made in (buckets, about, iam, versions):
        made.mkdir()
    users = {name: {"access": name, "secret": SECRET, "role": "user"} for name in accounts}
    (iam / "users.json").write_text(json.dumps({"accessAccounts": users}))
    command = [
        server, "--access", KEY, "--secret", SECRET, "--port", f"127.0.0.1:{port}", "--keep-alive", "--quiet",
        "--iam-dir", str(iam), "posix", "--sidecar", str(about), "--versioning-dir", str(versions), str(buckets),
    ]  # fmt: skip
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out)
    try:
        wait_until_it_answers(process, f"http://127.0.0.1:{port}", log)
        yield S3Server(f"http://127.0.0.1:{port}", buckets)
    finally:
        end(process, 10)


def credentials_of(account: str) -> dict[str, str]:
    """The environment that says who we are."""
    return {"AWS_ACCESS_KEY_ID": account, "AWS_SECRET_ACCESS_KEY": SECRET}


def grant(server: S3Server, bucket: str, rights: Mapping[str, Sequence[str]]) -> None:
    """Give each of some accounts these rights, such as `GetObject`, on a bucket, and none besides."""
    statements = [
        {"Effect": "Allow", "Principal": {"AWS": [account]}, "Action": [f"s3:{right}"],
         "Resource": [f"arn:aws:s3:::{bucket}" + ("" if right == "ListBucket" else "/*")]}
        for account, granted in rights.items() for right in granted
    ]  # fmt: skip
    _set(server, bucket, "policy", json.dumps({"Version": "2012-10-17", "Statement": statements}).encode())


def keep_versions(server: S3Server, bucket: str) -> None:
    """Let a bucket keep versions of its objects."""
    _set(server, bucket, "versioning", b"\x01")


def _set(server: S3Server, bucket: str, name: str, said: bytes) -> None:
    file = server.folder.parent / "about" / bucket / "meta" / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(said)
