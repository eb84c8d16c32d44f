"""The rows of repositories in LMDB and in PostgreSQL, side by side: how many a second; beside them bare SQL."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import millpond
from _servers import postgres_server
from _versions_data import entries
from _versions_rivals import encoded_rows
from millpond.pond import Pond
from millpond.versions.objects.entries import Entry
from millpond.versions.repository import Repository

__all__ = ("Rate", "print_spaces", "space_rates")

Rate: TypeAlias = tuple[str, str, float]
"""The task, the way, and how many a second."""


def space_rates(near: Pond, folder: Path, small: int) -> list[Rate]:
    """The rates of a pond in its own folder, and of one with its repositories in a server of this machine."""
    with postgres_server() as url:
        if url is None:
            print("PostgreSQL is missing: `make postgres` installs it", file=sys.stderr)
            return []
        place = {"versions_space": f"{url}#bench", "versions_objects": str(folder / "bytes")}
        with millpond.open(folder / "pond", **place) as far:
            found: list[Rate] = []
            for name, pond in (("LMDB", near), ("PostgreSQL", far)):
                found += _space_figures(pond.repositories.create(f"space-{name.lower()}"), name, small)
        return found + _bare_postgres(url, small)


def _space_figures(made: Repository, name: str, small: int) -> list[Rate]:
    main, table, singles_put = made.branch("main"), entries(range(small)), small // 100
    found: list[Rate] = []

    def measured(what: str, per: int, act: Callable[[], object]) -> None:
        gc.collect()
        began = time.perf_counter()
        act()
        found.append((what, name, per / (time.perf_counter() - began)))

    def stage() -> None:
        for start in range(0, small, 4_000):
            main.staging.stage(table.slice(start, min(4_000, small - start)))

    def delete() -> None:
        for start in range(0, small, 1_000):
            main.staging.delete_many(paths[start : start + 1_000])

    single_rows = [Entry(f"one/{number}", f"s3://bucket/{number}", number) for number in range(singles_put)]
    paths = table["path"].to_pylist()
    measured("rows staged, one a call", singles_put, lambda: [main.staging.link(entry) for entry in single_rows])
    measured("rows staged, 4,000 a call", small, stage)
    measured("entries listed, all staged, as Arrow", small, lambda: [batch.num_rows for batch in main.entries()])
    measured("rows committed", small, lambda: main.commit("rows"))
    measured("paths deleted, 1,000 a call", small, delete)
    measured("tombstones in an uncommitted difference", small, lambda: [*main.staging.uncommitted()])
    measured("stat, committed", singles_put, lambda: [main.stat(f"one/{number}") for number in range(singles_put)])
    return found


def _bare_postgres(url: str, small: int) -> list[Rate]:
    """The rates of psycopg with a table of the same keys and values."""
    import psycopg

    encoded = encoded_rows(entries(range(small)))
    found: list[Rate] = []
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE TABLE bare (key bytea PRIMARY KEY, value bytea)")
        for what, rows, step in (("one a call", encoded[: small // 100], 1), ("4,000 a call", encoded, 4_000)):
            connection.execute("TRUNCATE bare")
            began = time.perf_counter()
            for start in range(0, len(rows), step):
                with connection.transaction(), connection.cursor() as cursor:
                    cursor.executemany("INSERT INTO bare VALUES (%s, %s)", rows[start : start + step])
            found.append((f"rows staged, {what}", "bare SQL", len(rows) / (time.perf_counter() - began)))
        began = time.perf_counter()
        connection.execute("SELECT key, value FROM bare ORDER BY key").fetchall()
        found.append(("entries listed, all staged, as Arrow", "bare SQL", small / (time.perf_counter() - began)))
        began = time.perf_counter()
        for start in range(0, small, 1_000):
            keys = [key for key, _ in encoded[start : start + 1_000]]
            connection.execute("DELETE FROM bare WHERE key = ANY(%s)", (keys,))
        found.append(("paths deleted, 1,000 a call", "bare SQL", small / (time.perf_counter() - began)))
    return found


SPACE_FIGURES = {
    "rows staged, one a call": ("127 / 108 over HTTP", ""), "rows staged, 4,000 a call": ("no bulk", ""),
    "paths deleted, 1,000 a call": ("24–34 k / 1.6–3.2 k", "≥ 100 k / ≥ 20 k"),
    "stat, committed": ("236 / – over HTTP", ""),
}  # fmt: skip


def print_spaces(found: list[Rate]) -> None:
    """The figures of both spaces as a Markdown table: how many a second."""
    print("\n| a second | LMDB | PostgreSQL | bare SQL, PostgreSQL | lakeFS, local / PostgreSQL | wanted |")
    print("|---|---|---|---|---|---|")
    rates = {(what, name): rate for what, name, rate in found}
    for what in dict.fromkeys(what for what, _, _ in found):
        cells = [f"{rates[what, name]:,.0f}" if (what, name) in rates else ""
                 for name in ("LMDB", "PostgreSQL", "bare SQL")]  # fmt: skip
        print(f"| {' | '.join([what, *cells, *SPACE_FIGURES.get(what, ('', ''))])} |")
