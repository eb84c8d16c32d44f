"""Versions from Python: staging, commits, differences, merges, deletions and what they leave behind, on one processor.

Beside it, in the same run, on the same rows:
* **bare LMDB**: the rows encoded beforehand, put or scanned by py-lmdb, and nothing else;
* **bare SQL**: DuckDB over Arrow tables in memory where whole states are compared or rewritten, and its result as a
  Parquet file, compressed as our ranges are; SQLite with a primary key where rows are staged, deleted and listed.

lakeFS is not run: its column holds what lakeFS 1.84 answered over HTTP, with its local store, on such a machine.

    python bench/versions.py             a million entries, three rounds, and a commit over ten million
    python bench/versions.py --quick     a tenth of all, one round
    python bench/versions.py --only merge,diff

Each figure is elapsed time; processor time of all threads stands behind the stroke, for a machine that has other work.
"""

from __future__ import annotations

import argparse
import itertools
import resource
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

import millpond
from _versions_data import entries, path
from _versions_rivals import bare_lmdb, encoded_rows, merge_by_sql, rewrite_by_sql, sqlite_rows
from _versions_rows import LAKEFS_TOMBSTONES, OURS, Row, seconds_text, write_results
from _versions_spaces import Rate, print_spaces, space_rates
from millpond.errors import MillpondError
from millpond.versions.branch import Branch
from millpond.versions.repository import Repository


class Bench:
    """A pond, and the rows of the table so far."""

    def __init__(self, folder: Path, count: int, rounds: int) -> None:
        folder.mkdir(exist_ok=True)
        self.folder, self.count, self.rounds = folder, count, rounds
        self.pond = millpond.open(folder / "pond")
        self.rows: list[Row] = []
        self.spaces: list[Rate] = []
        self.tombstones: dict[tuple[str, str, int], Row] = {}
        self._names = itertools.count()

    def row(self, task: str, **about: Any) -> Row:
        """A new line of the table."""
        self.rows.append(Row(task, **about))
        print(f"{time.strftime('%H:%M:%S')} {task}", file=sys.stderr)
        return self.rows[-1]

    def repository(self) -> Repository:
        """A new repository."""
        return self.pond.repositories.create(f"bench-{next(self._names)}")

    def base(self) -> Repository:
        """A repository with all entries committed."""
        made = self.repository()
        made.branch("main").staging.stage(entries(range(self.count)))
        made.branch("main").commit("base")
        return made

    @contextmanager
    def fresh(self, made: Repository) -> Iterator[Repository]:
        """A repository of a pond that has opened no range yet."""
        with millpond.open(self.folder / "pond") as pond:
            yield pond.repository(made.name)

    def scratch(self) -> Path:
        """A new folder."""
        made = self.folder / f"scratch-{next(self._names)}"
        made.mkdir()
        return made


# -- staging, deleting --------------------------------------------------------------------------------


def bulk(bench: Bench) -> None:
    """A table staged and committed; single rows of a token committed."""
    table = entries(range(bench.count))
    staged = bench.row("stage a table", rows=bench.count, wanted="≥ 300 k/s", lakefs="no bulk; import 10–34 k/s")
    imported = bench.row("stage it, and commit", rows=bench.count, wanted="≤ 5 s", lakefs="import 29–101 s")
    encoded = encoded_rows(table)
    for _ in range(bench.rounds):
        main = bench.repository().branch("main")
        with imported.run("Millpond"):
            with staged.run("Millpond"):
                main.staging.stage(table)
            main.commit("base")
        with staged.run("bare LMDB"), bare_lmdb(bench.scratch()) as environment, environment.begin(write=True) as tx:
            tx.cursor().putmulti(encoded, append=True)
        with staged.run("bare SQL"):
            sqlite_rows(bench.scratch(), encoded).close()
    small = bench.count // 10
    few = bench.row(f"commit of {small:,} staged rows", rows=small, wanted="≤ 0.5 s", lakefs="0.46 s")
    for _ in range(bench.rounds):
        main = bench.repository().branch("main")
        for start in range(0, small, 4_000):
            main.staging.stage(table.slice(start, min(4_000, small - start)))
        with few.run("Millpond"):
            main.commit("rows")
        with few.run("bare LMDB"), bare_lmdb(bench.scratch()) as environment, environment.begin(write=True) as tx:
            tx.cursor().putmulti(encoded[:small], append=True)


def deletions(bench: Bench) -> None:
    """Many paths, a thousand a call, and a folder at once."""
    small = bench.count // 10
    row = bench.row(f"delete {small:,} paths, 1,000 a call", rows=small, wanted="≥ 100 k/s", lakefs="24–34 k/s")
    folder = bench.row(f"delete a folder of {small:,}", wanted="≤ 10 ms", lakefs="4 s, a tombstone each")
    table = entries(range(small))
    paths, encoded = table["path"].to_pylist(), encoded_rows(table)
    for _ in range(bench.rounds):
        made = bench.repository()
        made.branch("main").staging.stage(table)
        made.branch("main").commit("base")
        with row.run("Millpond"):
            for start in range(0, small, 1_000):
                made.branch("main").staging.delete_many(paths[start : start + 1_000])
        branch = made.create_branch("folder", "main")
        with folder.run("Millpond"):
            branch.staging.delete_prefix("big/")
        with bare_lmdb(bench.scratch()) as environment, row.run("bare LMDB"):
            for start in range(0, small, 1_000):
                with environment.begin(write=True) as tx:
                    tx.cursor().putmulti([(key, b"\0") for key, _ in encoded[start : start + 1_000]])
        connection = sqlite_rows(bench.scratch(), encoded)
        with row.run("bare SQL"):
            for start in range(0, small, 1_000):
                connection.execute("BEGIN")
                connection.executemany(
                    "DELETE FROM rows WHERE key = ?", [(key,) for key, _ in encoded[start : start + 1_000]]
                )
                connection.execute("COMMIT")
        connection.close()


def tombstones(bench: Bench) -> None:
    """One object behind many deletions: before compaction, and after."""
    print(
        "\n| tombstones | | before compaction | after | bare LMDB | bare SQL | lakeFS |\n|---|---|---|---|---|---|---|"
    )
    for count in (1_000, 10_000, 100_000, 1_000_000):
        if count <= bench.count:
            _behind(bench, count)
    print()


def _behind(bench: Bench, count: int) -> None:
    made = bench.repository()
    main = made.branch("main")
    table = entries(range(count))
    main.staging.stage(table)
    main.put("big/zzz", b"1")
    main.commit("base")
    paths = table["path"].to_pylist()
    for start in range(0, count, 10_000):
        main.staging.delete_many(paths[start : start + 10_000])
    acts: dict[str, Callable[[], object]] = {
        "list one object": lambda: main.list("big/"), "uncommitted difference, a page": lambda: main.diff(),
        "the same, all as Arrow": lambda: sum(batch.num_rows for batch in main.staging.uncommitted()),
        "dirty check of a merge": lambda: _refused(main),
    }  # fmt: skip
    found = {name: [_timed(act, bench.rounds)] for name, act in acts.items()}
    compacted = _timed(main.staging.compact, 1)
    for name, act in acts.items():
        found[name].append(_timed(act, bench.rounds))
    encoded = [(key, b"\0") for key, _ in encoded_rows(table)]
    with bare_lmdb(bench.scratch()) as environment, environment.begin(write=True) as tx:
        tx.cursor().putmulti(encoded, append=True)
        scan = _timed(lambda: sum(1 for _ in tx.cursor().iternext()), bench.rounds)
    connection = sqlite_rows(bench.scratch(), encoded)
    select = _timed(lambda: connection.execute("SELECT * FROM rows WHERE value <> x'00'").fetchall(), bench.rounds)
    connection.close()
    theirs = LAKEFS_TOMBSTONES.get(count)
    for number, (name, (before, after)) in enumerate(found.items()):
        bare = f"{scan.text(OURS)} | {select.text(OURS)}" if not number else " | "
        bench.tombstones |= {(name, OURS, count): before, (name, f"{OURS}, after compaction", count): after}
        said = seconds_text(theirs[(0, 1, 1, 2)[number]] / 1e3) if theirs else ""
        print(f"| {count:,} | {name} | {before.text(OURS)} | {after.text(OURS)} | {bare} | {said} |")
    bench.tombstones["the compaction itself", OURS, count] = compacted
    bench.tombstones["list one object", "LMDB, a scan of the rows", count] = scan
    bench.tombstones["list one object", "SQLite, a scan of the rows", count] = select
    print(f"| {count:,} | the compaction itself | {compacted.text(OURS)} | | | | not shipped |")


def _timed(act: Callable[[], object], rounds: int) -> Row:
    """The times of some rounds."""
    row = Row("")
    for _ in range(rounds):
        with row.run(OURS):
            act()
    return row


def _refused(branch: Branch) -> None:
    try:
        branch.merge("main~1")
    except MillpondError as error:
        if error.kind != "branch_dirty":
            raise


# -- commits, differences, merges over many ------------------------------------------------------------


def commits(bench: Bench) -> None:
    """Commits over many entries, and what they leave as it was."""
    made, base = bench.base(), entries(range(bench.count))
    tenth = bench.count // 10
    plans = {
        "every tenth": (range(0, bench.count, 10), "≤ 1 s", "3.3 s"),
        "every hundredth": (range(3, bench.count, 100), "", "2.1–2.8 s"),
        "1 % side by side": (range(tenth, tenth + bench.count // 100), "", "0.22 s"),
        "one": (range(1), "", "27 ms"),
    }
    context = made.branch("main").context
    before = {entry.id for entry in context.index(made.ref("main").head().tree).entries}
    for name, (numbers, wanted, theirs) in plans.items():
        row = bench.row(f"commit onto {bench.count:,}: {name}", wanted=wanted, lakefs=theirs)
        changes = entries(numbers, 1)
        for number in range(bench.rounds):
            branch = made.create_branch(f"{name.replace(' ', '-').replace('%', 'p')}-{number}", "main")
            branch.staging.stage(changes)
            with row.run("Millpond"):
                branch.commit(name)
            if len(numbers) > 1:
                with row.run("bare SQL"):
                    rewrite_by_sql(base, changes, bench.scratch())
    index = context.index(made.ref("main").head().tree)
    size = bench.row("metadata, bytes an entry", wanted="≤ 25", lakefs="21.5")
    size.figure = f"{index.size / index.count:.1f} in {len(index.entries)} ranges"
    for name, numbers in (
        ("spread", range(0, bench.count, 20)), ("side by side", range(tenth, tenth + bench.count // 20)),
    ):  # fmt: skip
        branch = made.create_branch(f"reuse-{name.replace(' ', '-')}", "main")
        branch.staging.stage(entries(numbers, 2))
        after = [entry.id for entry in context.index(branch.commit(name).tree).entries]
        row = bench.row(f"ranges taken over after 5 % changed, {name}")
        row.figure = f"{sum(id_ in before for id_ in after)} of {len(after)}"


def differences(bench: Bench) -> None:
    """Differences of a tenth."""
    made = bench.base()
    branch = made.create_branch("changed", "main")
    changes = entries(range(0, bench.count, 10), 1)
    branch.staging.stage(changes)
    branch.commit("changed")
    connection = duckdb.connect()
    connection.register("old", entries(range(bench.count)))
    connection.register("changes", changes)
    connection.execute(
        "CREATE TABLE new AS SELECT * FROM old ANTI JOIN changes USING (path) UNION ALL SELECT * FROM changes"
    )
    name = f"difference, {bench.count // 10:,} of {bench.count:,}"
    arrow = bench.row(f"{name}, as Arrow", wanted="≤ 0.3 s")
    pages = bench.row(f"{name}, by pages of 1,000", wanted="≤ 1.5 s", lakefs="5.5 s")
    for _ in range(bench.rounds):
        with bench.fresh(made) as found, arrow.run("Millpond"):
            assert sum(batch.num_rows for batch in found.diff_rows("main", "changed")) == bench.count // 10
        with pages.run("Millpond"):
            after = ""
            while (page := made.diff("main", "changed", after=after, amount=1_000)).has_more:
                after = page.next_offset
        with arrow.run("bare SQL"):
            connection.execute(
                "SELECT * FROM old FULL JOIN new USING (path) WHERE old.checksum IS DISTINCT FROM new.checksum "
                "OR old.size IS DISTINCT FROM new.size"
            ).to_arrow_table()


def merges(bench: Bench) -> None:
    """Both sides changed every range; and one side alone."""
    made = bench.base()
    for name, first in (("ours", 3), ("theirs", 7)):
        branch = made.create_branch(name, "main")
        branch.staging.stage(entries(range(first, bench.count, 100), first))
        branch.commit(name)
    hard = bench.row(f"merge, both sides changed every range of {bench.count:,}", wanted="≤ 1 s", lakefs="3.4 s")
    easy = bench.row("merge of a tenth, the other side as it was", lakefs="2–9 ms")
    base, ours, theirs = (entries(numbers, seed) for numbers, seed in (
        (range(bench.count), 0), (range(3, bench.count, 100), 3), (range(7, bench.count, 100), 7)
    ))  # fmt: skip
    made.create_branch("tenth", "main").staging.stage(entries(range(0, bench.count, 10), 1))
    made.branch("tenth").commit("tenth")
    for number in range(bench.rounds):
        into = made.create_branch(f"into-{number}", "theirs")
        with bench.fresh(made) as found, hard.run("Millpond"):
            found.branch(into.name).merge("ours")
        with hard.run("bare SQL"):
            merge_by_sql(base, ours, theirs, bench.scratch())
        single = made.create_branch(f"single-{number}", "main")
        single.put("only-here", b"1")
        single.commit("one of its own")
        with easy.run("Millpond"):
            single.merge("tenth")


def spaces(bench: Bench) -> None:
    """The rows of repositories in LMDB, and in PostgreSQL."""
    bench.spaces += space_rates(bench.pond, bench.scratch(), bench.count // 10)


def large(bench: Bench) -> None:
    """A tenth of a tenth staged over ten times as many."""
    made = bench.repository()
    main = made.branch("main")

    def slices() -> Iterator[pa.RecordBatch]:
        for start in range(0, 10 * bench.count, bench.count):
            yield from entries(range(start, start + bench.count)).to_batches()

    main.staging.push(slices())
    main.commit("base")
    small = bench.count // 10
    for name, numbers in (
        ("spread", range(0, 10 * bench.count, 100)), ("side by side", range(5 * bench.count, 5 * bench.count + small)),
    ):  # fmt: skip
        row = bench.row(f"commit of {small:,} staged over {10 * bench.count:,}, {name}")
        branch = made.create_branch(name.replace(" ", "-"), "main")
        branch.staging.stage(entries(numbers, 1))
        with row.run("Millpond"):
            branch.commit(name)


# -- one at a time, and many at once ---------------------------------------------------------------------


def singles(bench: Bench) -> None:
    """Single objects and pages."""
    made = bench.base()
    main = made.branch("main")
    dirty = made.create_branch("dirty", "main")
    dirty.staging.stage(entries(range(3_000), 5))
    encoded = encoded_rows(entries(range(bench.count)))
    with bare_lmdb(bench.scratch()) as environment:
        with environment.begin(write=True) as tx:
            tx.cursor().putmulti(encoded, append=True)
        numbers = range(0, bench.count, bench.count // 2_000)
        row = bench.row("stat, committed", rows=len(numbers), wanted="≥ 2 k/s over HTTP", lakefs="0.24–4 k/s")
        page = bench.row("page of 1,000, committed", lakefs="13 ms")
        layered = bench.row("page of 1,000, with 3,000 staged", lakefs="19 ms")
        for _ in range(bench.rounds):
            with row.run("Millpond"):
                for number in numbers:
                    main.stat(path(number))
            with row.run("bare LMDB"):
                for number in numbers:
                    with environment.begin() as tx:
                        tx.get(path(number).encode())
            for branch, timed in ((made.ref("main@"), page), (dirty, layered)):
                with timed.run("Millpond"):
                    branch.list(after=path(2_500), amount=1_000)
            with page.run("bare LMDB"), environment.begin() as tx:
                cursor = tx.cursor()
                cursor.set_range(path(2_500).encode())
                list(itertools.islice(cursor.iternext(), 1_000))


def races(bench: Bench) -> None:
    """Threads that put and commit on one branch; each commit is synced."""
    seconds = 1.0 if bench.rounds == 1 else 4.0
    for threads, theirs in ((1, "34/s"), (4, "37/s, 6 of 267 lost to 500"), (16, "42/s, up to 41 % answer 500")):
        made = bench.repository()
        main = made.branch("main")
        row = bench.row(f"put and commit on one branch, {threads} threads", wanted="rising; none fails", lakefs=theirs)
        counts: list[list[int]] = [[0, 0, 0] for _ in range(threads)]
        until = time.perf_counter() + seconds

        def work(number: int, branch: Branch = main, counts: list[list[int]] = counts, until: float = until) -> None:
            while time.perf_counter() < until:
                branch.put(f"{number}/{sum(counts[number])}", b"1")
                try:
                    branch.commit("race")
                except MillpondError as error:
                    counts[number][1 if error.kind == "no_changes" else 2] += 1
                else:
                    counts[number][0] += 1

        workers = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        done, taken, failed = (sum(column) for column in zip(*counts, strict=True))
        check_race(made, done, sum(map(sum, counts)))
        row.rate = (done + taken) / seconds
        row.figure = f"{row.rate:,.0f}/s ({done / seconds:,.0f} commits; others took {taken}); {failed} failed"


def check_race(made: Repository, commits: int, paths: int) -> None:
    """Compare what a race was told with what there is: each commit in the log once, each path in the head.

    Raises: `RuntimeError` when one was lost.
    """
    ids = [commit.id for commit in made.branch("main").log()]
    entries_there = sum(batch.num_rows for batch in made.ref("main@").entries())
    logged = len(set(ids)) - 1  # the first commit of the repository
    if (logged, len(ids), entries_there) != (commits, commits + 1, paths):
        raise RuntimeError(
            f"{commits} commits were answered and {logged} are in the log; "
            f"{paths} paths were put and {entries_there} are there"
        )


# -- the table -------------------------------------------------------------------------------------------

TASKS: dict[str, Callable[[Bench], None]] = {
    "bulk": bulk, "deletions": deletions, "tombstones": tombstones, "commits": commits, "diff": differences,
    "merge": merges, "singles": singles, "races": races, "large": large, "spaces": spaces,
}  # fmt: skip


def print_table(rows: list[Row]) -> None:
    """The figures as a Markdown table."""
    print("| task | Millpond | bare LMDB | bare SQL | lakeFS 1.84 | wanted |\n|---|---|---|---|---|---|")
    for row in rows:
        ours = row.figure or row.text("Millpond")
        print(
            f"| {row.task} | {ours} | {row.text('bare LMDB')} | {row.text('bare SQL')} | {row.lakefs} | {row.wanted} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", default="", help=", ".join(TASKS))
    options = parser.parse_args()
    chosen = options.only.split(",") if options.only else [*TASKS]
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), 100_000 if options.quick else 1_000_000, 1 if options.quick else 3)
        warm = Bench(Path(folder) / "warm", 20_000, 1)
        for act in (commits, differences, merges, deletions):
            act(warm)
        for name in chosen:
            TASKS[name](bench)
        bench.pond.close()
        warm.pond.close()
    print_table(bench.rows)
    whole, quick = not (options.quick or options.only), options.quick
    write_results(bench.count, bench.rows, bench.tombstones, bench.spaces, whole=whole, quick=quick)
    if bench.spaces:
        print_spaces(bench.spaces)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20)
    print(f"\npeak memory of this process, with its tables and its rivals: {peak:.2f} GiB")


if __name__ == "__main__":
    main()
