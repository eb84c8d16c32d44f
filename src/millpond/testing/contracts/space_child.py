"""Another process of the suites of drivers: `python -m millpond.testing.contracts.space_child`, and what it does.

`dump`: for each location that comes on standard input, its rows as JSON in hexadecimal, on one line.
`count`: threads that write until the process is killed, and tell each write that was acknowledged: `thread number`.

A count of thread t is one transaction over several rows, of which none is there without the others:

    (t, "a"), (t, "b")     the number of the write
    (t, "row", number)     one for each of the last `ROWS_LEFT` writes: older ones are deleted as a range
    ("total")              the number of writes of all threads
"""

from __future__ import annotations

import json
import os
import sys
import threading
from typing import Any

from millpond.kernel.keys import EVERYTHING, Prefix
from millpond.kernel.space import ReadTransaction, Space, Transaction
from millpond.testing.contracts.space_driver import SpaceDriver

__all__ = ("ROWS_LEFT", "TOTAL", "count_once", "counted")

ROWS_LEFT = 5
TOTAL = Prefix("total").pack()


def counted(tx: ReadTransaction, thread: int) -> int:
    """The number of writes of a thread, after a look at everything that each of them wrote."""
    rows = Prefix(thread)
    first, other = tx.get_many([rows.pack("a"), rows.pack("b")])
    number = int(first or b"0")
    assert first == other, f"half a transaction: {first!r}, {other!r}"
    there = [rows["row"].unpack(key)[0] for key in tx.keys(rows["row"].range())]
    assert there == list(range(max(0, number - ROWS_LEFT) + 1, number + 1)), f"{number}: {there}"
    return number


def count_once(tx: Transaction, thread: int) -> int:
    """One more write of a thread; its number."""
    rows = Prefix(thread)
    number = counted(tx, thread) + 1
    value = b"%d" % number
    tx.put(rows.pack("a"), value)
    tx.put(rows["row"].pack(number), bytes(200))
    tx.put(TOTAL, b"%d" % (int(tx.get(TOTAL) or b"0") + 1))
    tx.delete_range(rows["row"].range((), (number - ROWS_LEFT + 1,)))
    tx.put(rows.pack("b"), value)
    return number


def _count(space: Space, threads: list[int]) -> None:
    def work(thread: int) -> None:
        while True:
            number = space.write(lambda tx: count_once(tx, thread))
            os.write(sys.stdout.fileno(), b"%d %d\n" % (thread, number))  # one call, one line: threads do not mix

    for thread in threads:
        threading.Thread(target=work, args=(thread,), daemon=True).start()
    sys.stdin.read()


def _dump(driver: SpaceDriver) -> None:
    for line in sys.stdin:
        space = driver.open(line.removesuffix("\n"))
        with space.read() as tx:
            print(json.dumps({key.hex(): value.hex() for key, value in tx.scan(EVERYTHING)}), flush=True)
        space.close()


def _main(order: dict[str, Any]) -> None:
    driver = SpaceDriver(order["opener"], order["options"])
    if order["act"] == "dump":
        _dump(driver)
    else:
        _count(driver.open(order["location"]), order["about"]["threads"])


if __name__ == "__main__":
    _main(json.loads(sys.argv[1]))
