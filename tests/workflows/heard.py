"""A server on this machine that hears posts."""

from __future__ import annotations

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from typing import Any

__all__ = ("Heard",)


class Heard:
    """A server that answers each POST with the status that its path says, when it is not `held`, and keeps what it
    was sent.
    """

    def __init__(self, held: Event | None = None) -> None:
        self.posts: list[tuple[str, str, Any]] = []
        posts = self.posts

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                posts.append((self.path, self.headers["Idempotency-Key"], body))
                if held is not None:
                    held.wait()
                self.send_response(int(self.path[1:4]))
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"

    def close(self) -> None:
        """End it."""
        self.server.shutdown()
        self.server.server_close()
