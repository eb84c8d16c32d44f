"""A bare route that stores what it is sent, as durably as a node stores a small load, and does nothing else with it.

    PUT /<name>  ─▶ a thread: <folder>/<name>/data, synced; the names of both folders, synced; a row of LMDB, committed

The server is that of a node: uvicorn with httptools and uvloop. Nothing is checked, merged or logged.

    python bench/_bare.py FOLDER PORT
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import anyio.to_thread
import lmdb
import uvicorn


def make_app(folder: Path) -> Any:
    """The route, over a folder that is there."""
    environment = lmdb.open(str(folder / "rows"), map_size=1 << 30)

    def store(name: str, body: bytes) -> None:
        place = folder / name
        place.mkdir()
        file = os.open(place / "data", os.O_WRONLY | os.O_CREAT)
        os.write(file, body)
        for handle in (file, os.open(place, os.O_RDONLY), os.open(folder, os.O_RDONLY)):
            os.fsync(handle)
            os.close(handle)
        with environment.begin(write=True) as transaction:
            transaction.put(name.encode(), body[:100])

    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert scope["type"] == "http"
        chunks, more = [], True
        while more:
            message = await receive()
            chunks.append(message.get("body", b""))
            more = message.get("more_body", False)
        await anyio.to_thread.run_sync(store, scope["path"][1:], b"".join(chunks))
        await send({"type": "http.response.start", "status": 201, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    return app


if __name__ == "__main__":
    place = Path(sys.argv[1])
    place.mkdir(parents=True)
    uvicorn.run(
        make_app(place), port=int(sys.argv[2]), http="httptools", loop="uvloop", lifespan="off", log_level="error"
    )
