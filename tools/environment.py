"""Prepares this checkout on a machine with nothing prepared; run it by `tools/setup GOAL...`.

| goal | what is ready afterwards |
|---|---|
| `demo` | `.venv` with what the demo needs (requirements-demo.lock), and Java |
| `python` | `.venv` with exactly the locked dependencies (requirements.lock) |
| `tests` | that, and everything the tests start: all that follows |
| `java` | Java 17 or later for Spark |
| `s3` | the S3 server that the tests start, pinned in tools/s3_server.sha256 |
| `classes` | an archive of Spark's classes from which the JVMs of tests start, in half the time |
| `tla` | what checks the specifications of tests/specs, pinned in tools/tla.sha256 |
| `kafka` | a broker of Kafka and Spark's connector, pinned in tools/kafka.sha256 |
| `armada` | the client of Armada that the tests run, in an environment of its own, pinned in tools/armada.txt |
| `airflow` | Airflow and Armada's operator for it, likewise, pinned in tools/airflow.txt |
| `airflow-provider` | Airflow 3 and what our provider for it needs, likewise, pinned in tools/airflow-provider.txt |
| `jupyter` | a kernel of Jupyter, likewise, pinned in tools/jupyter.txt |
| `mutants` | what makes the mutants of tools/mutants.py, likewise, pinned in tools/mutants.txt |
| `postgres`, `redis`, `prometheus` | the servers that the tests start |
| `versitygw` | a second S3 server, where Go is there: its conditional writes are atomic |
| `yarn` | a cluster of YARN, pinned in tools/yarn.sha256 |
| `browser` | Debian's Chromium without a screen, in which the tests look at the console |
| `network` | `ip`, by which the tests make networks of their own |

What is there is not done again. Debian packages that are missing are installed together when root; anyone else gets
the one command that does it. Python packages are installed by uv where it is on the path or can be had from the
registry, else by pip. Steps that do not need each other run beside one another, and at least every four seconds a
line says what they are at: on a terminal always the same line.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

VENV = Path(".venv")
PYTHON = VENV / "bin" / "python"
LOCKS = {"python": Path("requirements.lock"), "demo": Path("requirements-demo.lock")}
STAMPS = {"python": VENV / ".ready", "demo": VENV / ".demo", "tests": VENV / ".tests"}
ARCHIVE = VENV / "spark.jsa"
TEST_GOALS = (
    "python", "java", "classes", "s3", "kafka", "tla", "armada", "postgres", "redis", "prometheus", "browser",
    "network",
)  # fmt: skip
BESIDE = {
    "armada": ("client of Armada", 10.0), "airflow": ("Airflow", 60.0), "airflow-provider": ("Airflow 3", 60.0),
    "jupyter": ("Jupyter", 8.0),
}  # fmt: skip
"""Environments of their own, pinned in tools/GOAL.txt: their names, and the seconds that they take."""
VERSITYGW = "github.com/versity/versitygw/cmd/versitygw@v1.8.0"
LINE_SECONDS, TERMINAL_SECONDS = 4.0, 0.2
BAR_COLUMNS = 20


class Failed(Exception):
    """A step could not be done; the message is for the person who ran it."""


@dataclass
class Step:
    """Something to do after the steps in `after`; `seconds` is what it takes by itself, roughly."""

    name: str
    seconds: float
    act: Callable[[Step], None]
    after: tuple[str, ...] = ()
    share: float = 0.0
    line: str = ""
    state: str = field(default="waiting")

    def run(self, *command: str | Path, share: Callable[[str], float | None] | None = None, **environment: str) -> None:
        """Run a command; its newest line is what the step is at, and `share` reads from a line how much is done.

        Raises: `Failed` with the end of its output when it fails.
        """
        lines = []
        with subprocess.Popen(
            [str(word) for word in command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, errors="replace", env=os.environ | environment,
        ) as process:  # fmt: skip
            assert process.stdout is not None
            for line in process.stdout:
                lines.append(line.rstrip())
                self.share = max(self.share, (share(line) if share else None) or 0.0)
                self.line = line.rpartition(":")[2].strip() if _APT_STATUS.match(line) else line.strip()
        if process.returncode:
            tail = "\n".join(lines[-20:])
            raise Failed(f"{self.name}: {command[0]} ended with {process.returncode}\n{tail}")


# -- Debian packages ----------------------------------------------------------------------------------

_APT_STATUS = re.compile(r"(dl|pm)status:[^:]*:([\d.]+):")


def java_major() -> int:
    """The major version of the Java that Spark would use, or 0."""
    home = os.environ.get("JAVA_HOME")
    java = f"{home}/bin/java" if home and os.access(f"{home}/bin/java", os.X_OK) else "java"
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    except OSError:
        return 0
    found = re.search(r'version "(\d+)', answer)
    return int(found[1]) if found else 0


def _has_venv() -> bool:
    probe = [sys.executable, "-c", "import ensurepip, venv"]
    return subprocess.run(probe, capture_output=True, check=False).returncode == 0


def _has_postgres() -> bool:
    return bool(shutil.which("initdb") or list(Path("/usr/lib/postgresql").glob("*/bin/initdb")))


# goal -> the Debian package, and whether what it brings is there
PACKAGES: dict[str, tuple[str, Callable[[], bool]]] = {
    "java": ("default-jre-headless", lambda: java_major() >= 17),  # 17 in Debian 12, 21 in Debian 13
    "postgres": ("postgresql", _has_postgres),
    "redis": ("redis-server", lambda: shutil.which("redis-server") is not None),
    "prometheus": ("prometheus", lambda: bool(shutil.which("promtool") and shutil.which("prometheus"))),
    "browser": ("chromium-headless-shell", lambda: shutil.which("chromium-headless-shell") is not None),
    "network": ("iproute2", lambda: shutil.which("ip") is not None),
}


def apt_step(name: str, packages: list[str], after: tuple[str, ...] = ()) -> Step:
    """One call of apt-get for all packages.

    Raises: `Failed` with the command to run when this is not root.
    """
    command = ("apt-get", "install", "-y", "--no-install-recommends", *packages)
    if os.getuid() != 0 or shutil.which("apt-get") is None:
        raise Failed(f"missing: {' '.join(packages)}. This installs it:  sudo {' '.join(command)}")

    def share(line: str) -> float | None:
        found = _APT_STATUS.match(line)
        return float(found[2]) / 100 * (0.4 if found[1] == "dl" else 0.6) + 0.4 * (found[1] == "pm") if found else None

    def act(step: Step) -> None:
        options = ("-o", "APT::Status-Fd=1", "-o", "DPkg::Lock::Timeout=120")
        try:
            step.run(*command, *options, share=share, DEBIAN_FRONTEND="noninteractive")
        except Failed:  # the lists of packages are old, or were never fetched
            step.run("apt-get", "update")
            step.run(*command, *options, share=share, DEBIAN_FRONTEND="noninteractive")
        if "default-jre-headless" in packages and java_major() < 17:
            raise Failed("Spark needs Java 17 or later and finds another: set JAVA_HOME")

    return Step(name, 6.0 + 8.0 * len(packages), act, after)


# -- Python packages ----------------------------------------------------------------------------------


def fresh(stamp: Path, *sources: Path) -> bool:
    """True when the stamp was made after the last change of every source."""
    return stamp.is_file() and all(stamp.stat().st_mtime >= source.stat().st_mtime for source in sources)


def _works(python: Path) -> bool:
    return python.exists() and subprocess.run([python, "-c", ""], capture_output=True, check=False).returncode == 0


def make_venv(step: Step, folder: Path) -> None:
    """A virtual environment; with pip where uv is not on the path."""
    uv = _uv_on_path()
    if uv:
        step.run(uv, "venv", "-q", "--clear", "--python", sys.executable, folder)
    else:
        step.run(sys.executable, "-m", "venv", "--clear", folder)


def _uv_on_path() -> str | None:
    return None if os.environ.get("INSTALLER") == "pip" else shutil.which("uv")


def _uv(step: Step) -> Path | None:
    """The program uv: the one on the path, else one in the environment, from the registry; None to go without."""
    if os.environ.get("INSTALLER") == "pip":
        return None
    here = VENV / "bin" / "uv"
    if (found := shutil.which("uv")) or here.exists():
        return Path(found or here)
    try:
        step.run(PYTHON, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--only-binary=uv", "uv")
    except Failed:
        return None
    return here


def _as_pip_is_set() -> dict[str, str]:
    """The index and the certificates that pip is given on this machine, in uv's words, unless uv has its own."""
    names = {"index-url": "UV_DEFAULT_INDEX", "extra-index-url": "UV_INDEX", "cert": "SSL_CERT_FILE"}
    listed = subprocess.run([PYTHON, "-m", "pip", "config", "list"], capture_output=True, text=True, check=False)
    settings: dict[str, str] = {}
    for name, value in re.findall(r"^\S+\.([\w-]+)='(.*)'$", listed.stdout, re.MULTILINE):
        if name in names and names[name] not in os.environ:
            settings.setdefault(names[name], value)
    return settings


def install(step: Step, python: Path, *wanted: str) -> None:
    """Install exactly what is named: a lock names all that its packages need, so nothing is resolved."""
    stored = {"DIST_EXTRA_CONFIG": os.environ.get("DIST_EXTRA_CONFIG", str(Path("tools/stored.cfg").resolve()))}
    seen = {"begun": 1, "ended": 0}

    def share(line: str) -> float:
        word = (line.split() or [""])[0]
        seen["begun"] += word in ("Downloading", "Building", "Collecting")
        seen["ended"] += word in ("Downloaded", "Built", "Successfully")
        return 0.9 * seen["ended"] / max(seen["begun"], 12)

    uv = _uv(step)
    if uv:
        # Every process would read sources anew where Python may not store what it compiled.
        compiled = ["--compile-bytecode"] if os.environ.get("PYTHONDONTWRITEBYTECODE") or python != PYTHON else []
        try:
            step.run(
                uv, "pip", "install", *compiled, "--no-deps", "--python", python, *wanted, share=share,
                **stored, **_as_pip_is_set(),
            )  # fmt: skip
        except Failed as failure:
            print(f"uv could not do it, so pip does:\n{failure}", file=sys.stderr)
        else:
            return
    if subprocess.run([python, "-m", "pip", "--version"], capture_output=True, check=False).returncode:
        step.run(python, "-m", "ensurepip")
    options = ("--disable-pip-version-check", "--progress-bar=off", "--use-pep517", "--no-deps")
    step.run(python, "-m", "pip", "install", *options, *wanted, share=share, **stored)


def python_steps(kind: str, after: tuple[str, ...]) -> list[Step]:
    """The environment with the packages of a lock, unless it is as the lock says."""
    pyproject, lock = Path("pyproject.toml"), LOCKS[kind]
    if fresh(STAMPS["python"], LOCKS["python"], pyproject) or fresh(STAMPS[kind], lock, pyproject):
        return []

    def act(step: Step) -> None:
        if not _works(PYTHON):
            make_venv(step, VENV)
        install(step, PYTHON, "-r", str(lock), "-e", ".")
        if kind == "python":
            STAMPS[kind].touch()

    return [Step("Python packages", 45.0, act, after)]


def _jars(server: str, folder: str) -> Callable[[Step], None]:
    def act(step: Step) -> None:
        step.run(PYTHON, "tools/jars.py", server, VENV / folder, share=_counted)

    return act


def _counted(line: str) -> float | None:
    found = re.match(r"(\d+) of (\d+) ", line)
    return int(found[1]) / int(found[2]) if found else None


def _beside(name: str) -> Callable[[Step], None]:
    """An environment of its own, for what pins other versions than ours, or is of no use to others."""

    def act(step: Step) -> None:
        pins, folder = Path(f"tools/{name}.txt"), VENV / name
        stamp = folder / ".ready"
        if not stamp.is_file() or stamp.read_bytes() != pins.read_bytes():
            make_venv(step, folder)
            install(step, folder / "bin" / "python", "-r", str(pins))
            stamp.write_bytes(pins.read_bytes())

    return act


def _versitygw(step: Step) -> None:
    """Build the server with the Go of this machine."""
    go = shutil.which("go")
    if go is None:
        raise Failed("versitygw is built with Go, which is missing")
    step.run(go, "install", VERSITYGW, GOBIN=str((VENV / "bin").absolute()))


def _archive(step: Step) -> None:
    try:
        step.run(PYTHON, "tools/spark_archive.py", ARCHIVE)
    except Failed as failure:
        print(f"{failure}\nJVMs of tests start without it, and take longer", file=sys.stderr)


# -- all of it ----------------------------------------------------------------------------------------


def steps_for(goals: set[str]) -> list[Step]:
    """The steps that the goals need, in an order in which it can be done.

    Raises: `Failed` when Debian packages are missing that only root can install.
    """
    steps: list[Step] = []
    python = bool(goals & {"python", "demo", "classes", "s3", "kafka", "tla", "yarn", "mutants", "versitygw", *BESIDE})
    packages = [name for goal, (name, there) in PACKAGES.items() if goal in goals and not there()]
    if python and not _works(PYTHON) and not _uv_on_path() and not _has_venv():
        steps.append(apt_step("Python's own packages of Debian", ["python3-venv"]))
    first = tuple(step.name for step in steps)
    if packages:
        steps.append(apt_step("Debian packages", packages, after=first))
    if python:
        steps += python_steps("demo" if goals <= {"demo", "java"} else "python", first)
    environment = tuple(step.name for step in steps if step.name == "Python packages")
    if "s3" in goals:
        steps.append(Step("S3 server", 8.0, _jars("s3_server", "s3-server"), environment))
    if "kafka" in goals:
        steps.append(Step("Kafka", 12.0, _jars("kafka", "kafka"), environment))
    if "versitygw" in goals and not (VENV / "bin" / "versitygw").exists():
        steps.append(Step("versitygw", 300.0, _versitygw, environment))
    if "tla" in goals:
        steps.append(Step("TLC", 1.0, _jars("tla", "tla"), environment))
    if "yarn" in goals:
        steps.append(Step("YARN", 15.0, _jars("yarn", "yarn"), environment))
    for goal in sorted(goals & BESIDE.keys()):
        name, seconds = BESIDE[goal]
        steps.append(Step(name, seconds, _beside(goal), environment))
    if "classes" in goals and not fresh(ARCHIVE, LOCKS["python"], Path("tools/spark_archive.py")):
        debian = tuple(step.name for step in steps if step.name == "Debian packages")
        steps.append(Step("Spark's classes", 45.0, _archive, (*environment, *debian)))
    if "mutants" in goals:
        steps.append(Step("what makes mutants", 10.0, _beside("mutants"), environment))
    return steps


def carry_out(steps: list[Step]) -> None:
    """Do the steps, each when those before it are done.

    Raises: `Failed` of the first that failed.
    """
    over = threading.Event()
    showing = threading.Thread(target=show, args=(steps, over))
    showing.start()
    done: dict[str, Future[None]] = {}
    try:
        with ThreadPoolExecutor(len(steps)) as threads:
            for step in steps:
                done[step.name] = threads.submit(_carry_out_one, step, [done[name] for name in step.after])
        for name in done:
            done[name].result()
    finally:
        over.set()
        showing.join()


def _carry_out_one(step: Step, before: list[Future[None]]) -> None:
    for earlier in before:
        earlier.result()
    step.state = "running"
    step.act(step)
    step.share, step.state = 1.0, "done"


def show(steps: list[Step], over: threading.Event) -> None:
    """Say what the steps are at until they are over."""
    terminal, began = sys.stderr.isatty(), os.times().elapsed
    print(f"setting up: {', '.join(step.name for step in steps)}", file=sys.stderr)
    while not over.wait(TERMINAL_SECONDS if terminal else LINE_SECONDS):
        line = progress_line(steps, os.times().elapsed - began)
        if terminal:
            line = f"\r\x1b[2K{line[: shutil.get_terminal_size().columns - 1]}"
        print(line, file=sys.stderr, end="" if terminal else "\n", flush=True)
    if all(step.state == "done" for step in steps):
        end = "\r\x1b[2K" if terminal else ""
        print(f"{end}set up in {os.times().elapsed - began:.0f} s", file=sys.stderr)
    elif terminal:
        print(file=sys.stderr)


def progress_line(steps: list[Step], seconds: float) -> str:
    """A bar over all steps, and what each one that runs is at."""
    share = sum(step.share * step.seconds for step in steps) / sum(step.seconds for step in steps)
    bar = "#" * int(share * BAR_COLUMNS)
    running = "; ".join(f"{step.name}: {step.line}" for step in steps if step.state == "running")
    return f"[{bar:-<{BAR_COLUMNS}}] {share:4.0%} {seconds:4.0f} s  {running}"


def main() -> int:
    """Carry out the goals on the command line."""
    goals = set(sys.argv[1:])
    known = {*TEST_GOALS, *BESIDE, "demo", "mutants", "tests", "versitygw", "yarn"}
    if not goals or goals - known:
        print(f"usage: tools/setup {'|'.join(sorted(known))} ...", file=sys.stderr)
        return 2
    wanted = goals | (set(TEST_GOALS) if "tests" in goals else set()) | ({"java"} if "demo" in goals else set())
    try:
        steps = steps_for(wanted)
        if steps:
            carry_out(steps)
    except Failed as failure:
        print(failure, file=sys.stderr)
        return 1
    for goal in goals & {"demo", "tests"}:
        STAMPS[goal].touch()
    return 0


if __name__ == "__main__":
    sys.exit(main())
