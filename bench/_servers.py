"""Rivals that are servers: started on a loopback port or a socket of their own, ended with the benchmark."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from _results import program_version

__all__ = (
    "bare_grpc_server", "bare_server", "nginx_server", "postgres_server", "postgres_version", "redis_server",
    "wait_port",
)  # fmt: skip

NGINX = """
daemon off; master_process off; pid {folder}/nginx.pid; error_log {folder}/error.log;
events {{ worker_connections 64; }}
http {{
  access_log off; client_max_body_size 0; client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi; uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  server {{ listen 127.0.0.1:{port}; location / {{ root {folder}/files; dav_methods PUT DELETE; sendfile on; }} }}
}}
"""

BARE = """
import sys, uvicorn
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route
def bare(request): return Response(b'{"found":true}', media_type="application/json")
async def bare_async(request): return Response(b'{"found":true}', media_type="application/json")
app = Starlette(routes=[Route("/bare", bare), Route("/bare_async", bare_async)])
uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning", access_log=False, timeout_keep_alive=75)
"""

BARE_GRPC = """
import sys, grpc, uvloop
async def many(requests, context):
    count, size = map(int, (await context.read()).split())
    for _ in range(count):
        await context.write(bytes(size))
async def main():
    server = grpc.aio.server()
    handler = grpc.stream_stream_rpc_method_handler(many)
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("bare", {"Many": handler})])
    server.add_insecure_port(f"127.0.0.1:{sys.argv[1]}")
    await server.start()
    await server.wait_for_termination()
uvloop.run(main())
"""


def wait_port(port: int, process: subprocess.Popen[bytes]) -> None:
    """Wait until somebody listens."""
    for _ in range(400):
        if process.poll() is not None:
            raise RuntimeError(f"{process.args!r} ended with {process.returncode}")
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise RuntimeError(f"{process.args!r} does not listen")


@contextmanager
def _running(command: list[str], port: int) -> Iterator[int]:
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        wait_port(port, process)
        yield port
    finally:
        process.terminate()
        process.wait()


@contextmanager
def nginx_server(folder: Path, port: int) -> Iterator[int | None]:
    """An nginx that takes files by PUT into `<folder>/files`; None when there is none to start."""
    program = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin:/usr/local/sbin")
    if program is None:
        yield None
        return
    (folder / "files").mkdir(parents=True)
    folder.chmod(0o755)
    config = folder / "nginx.conf"
    config.write_text(("user root;" if Path("/proc/self").owner() == "root" else "") + NGINX.format(**locals()))
    with _running([program, "-c", str(config), "-e", f"{folder}/error.log"], port) as ready:
        yield ready


@contextmanager
def redis_server(port: int) -> Iterator[int | None]:
    """A Redis that keeps everything in memory only; None when there is none to start."""
    program = shutil.which("redis-server")
    if program is None:
        yield None
        return
    with _running(
        [program, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"], port
    ) as ready:
        yield ready


def postgres_version() -> str:
    """The version of the newest server that is installed."""
    programs = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    return program_version(str(programs[-1]), "--version") if programs else "unknown"


@contextmanager
def postgres_server() -> Iterator[str | None]:
    """A PostgreSQL that syncs, with a data folder of its own; its URL, None when there is none to start."""
    programs = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    place = programs[-1] if programs else Path(shutil.which("initdb") or "/nowhere/initdb").resolve().parent
    if not (place / "initdb").exists():
        yield None
        return
    data, prefix = Path(tempfile.mkdtemp(prefix="millpond-bench-")), list[str]()
    if data.owner() == "root":  # it refuses to run as root
        shutil.chown(data, "postgres", "postgres")
        prefix = ["setpriv", "--reuid", "postgres", "--regid", "postgres", "--init-groups"]
    made = [*prefix, str(place / "initdb"), "-D", str(data), "-U", "bench", "--auth", "trust", "--locale", "C"]
    subprocess.run([*made, "-E", "UTF8"], check=True, capture_output=True, cwd=data)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [*prefix, str(place / "postgres"), "-D", str(data), "-p", str(port), "-c", "unix_socket_directories="]
    process = subprocess.Popen(command, cwd=data, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_port(port, process)
        yield f"postgresql://bench@127.0.0.1:{port}/postgres"
    finally:
        process.send_signal(signal.SIGINT)
        process.wait()
        shutil.rmtree(data)


@contextmanager
def bare_server(port: int) -> Iterator[int]:
    """The same kind of server as a node's, with routes that do nothing."""
    with _running([sys.executable, "-c", BARE, str(port)], port) as ready:
        yield ready


@contextmanager
def bare_grpc_server(port: int) -> Iterator[int]:
    """The same gRPC as a node's: it sends as many messages, of so many bytes, as the request says."""
    with _running([sys.executable, "-c", BARE_GRPC, str(port)], port) as ready:
        yield ready
