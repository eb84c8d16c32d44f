"""Kills a process at each step of each act of repositories, and looks at what it left: `… DRIVER FOLDER`.

A program of its own: it forks for each act, so that what is killed has been started and warmed already.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from millpond.clock import Clock, SystemClock
from millpond.kernel.keys import EVERYTHING
from millpond.kernel.space import Space
from millpond.stores.lmdb.space import LmdbSpace
from millpond.stores.memory import MemorySpace
from millpond.stores.objects import ObjectStore, open_objects
from millpond.testing.faults import arm, occurrences
from millpond.versions.collect import collect
from millpond.versions.repositories import Repositories
from tests.models.test_versions_races import ACTS, SMALL, check_rows, opened, prepared, states
from tests.rings.sampling import drawn

Rows = list[tuple[bytes, bytes]]
State = dict[str, list[tuple[str, str]]]
_NOW = SystemClock()
ACTS_SAMPLED = 4
MOMENTS_SAMPLED = 2


class Later(SystemClock):
    """The time when turns and collections of the dead are over."""

    def now_ms(self) -> int:
        return super().now_ms() + 120_000


class Killed:
    """Acts on copies of one prepared repository, over one driver."""

    def __init__(self, folder: Path, open_space: Callable[[Path], Space]) -> None:
        self.folder, self.open_space = folder, open_space
        self.rows = self.prepare()

    def prepare(self) -> Rows:
        """Make the repository once: its rows, and its objects in a folder."""
        space = MemorySpace()
        prepared(self.repositories(space, self.folder / "prepared"))
        with space.read() as tx:
            return list(tx.scan(EVERYTHING))

    def copy(self, name: str) -> Path:
        """A copy of what was prepared."""
        folder = self.folder / name
        shutil.copytree(self.folder / "prepared", folder)
        space = self.open_space(folder)
        space.write(lambda tx: [tx.put(key, value) for key, value in self.rows])
        space.close()
        return folder

    @staticmethod
    def repositories(space: Space, folder: Path, clock: Clock = _NOW) -> Repositories:
        def place(where: str) -> ObjectStore:
            return open_objects(folder / where.removeprefix("local://"))

        return Repositories(space, clock, place, boundaries=SMALL)

    def act(self, folder: Path, act: str) -> None:
        """Do one act."""
        space = self.open_space(folder)
        ACTS[act](self.repositories(space, folder).get("crash"))
        space.close()

    def check(self, folder: Path, act: str, before: State, after: State) -> None:
        """Look at what a killed process left: the act was made or was not, and what follows works."""
        space = self.open_space(folder)
        repositories = self.repositories(space, folder, Later())
        repositories.sweep()
        repository = repositories.get("crash")
        found = states(repository)
        assert found in (before, after), act
        check_rows(space, repository)
        if found == before:
            ACTS[act](repository)
            assert states(repository) == after
        repository.branch("main").commit("at last", allow_empty=True)
        collect(repository.context, grace_ms=0)
        assert states(repository)["main"] == states(repository)["main@"] == after["main"]
        space.close()

    def run(self, act: str) -> int:
        """Kill at each step of an act; how many steps."""
        steps, whole = self.folder / f"{act}.steps", self.copy(act)
        steps.touch()  # an act of a single write has no steps
        before, after = (state_after(done) for done in ((), (act,)))
        assert forked(lambda: logged(steps, lambda: self.act(whole, act))) == 0
        moments = drawn(occurrences(steps), MOMENTS_SAMPLED, name=act)
        for moment in moments:
            folder = self.copy(f"{act} {moment}")
            killed = forked(lambda folder=folder, moment=moment: killed_at(moment, lambda: self.act(folder, act)))  # type: ignore[misc]
            assert killed == -signal.SIGKILL, (act, moment, killed)
            checked = forked(lambda folder=folder: self.check(folder, act, before, after))  # type: ignore[misc]
            assert checked == 0, (act, moment)
            shutil.rmtree(folder)
        return len(moments)


def state_after(acts: tuple[str, ...]) -> State:
    """The states that acts come to when nothing kills them."""
    repository = prepared(opened(MemorySpace(), {}))
    for act in acts:
        ACTS[act](repository)
    return states(repository)


def logged(steps: Path, act: Callable[[], None]) -> None:
    with arm(log=str(steps)):
        act()


def killed_at(moment: str, act: Callable[[], None]) -> None:
    with arm(kill_at=moment):
        act()


def forked(act: Callable[[], object]) -> int:
    """Run an act in a process of its own; its exit code, negative for a signal."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            act()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def main() -> None:
    driver, folder, *acts = sys.argv[1:]
    if driver == "lmdb":
        killed = Killed(Path(folder), lambda place: LmdbSpace(place / "space", durable=False))
    else:
        from millpond.stores.postgres.space import PostgresSpace

        killed = Killed(Path(folder), lambda place: PostgresSpace(f"{driver}#{place.name}"))
    for act in acts or drawn(list(ACTS), ACTS_SAMPLED, name=driver.partition(":")[0]):
        print(act, killed.run(act), flush=True)


if __name__ == "__main__":
    main()
