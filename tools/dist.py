"""Builds the sdist and the wheel into dist/, looks what is in them, and tries the wheel outside the checkout.

The sdist is built from a copy of what belongs to it, the wheel from the unpacked sdist: so the sdist has all that a
wheel needs. Neither may hold tests, what Python or numba compiled, or the path of this checkout. The wheel is installed
into a fresh environment, with the locked versions of what it needs, and a map is created, loaded and read there.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
CONTENTS = ("src", "pyproject.toml", "README.md", "LICENSE", "MANIFEST.in")
COMPILED = ("*.pyc", "__pycache__", "*.nbi", "*.nbc", "*.egg-info")
FOREIGN = ("tests", "bench", "tools", "__pycache__")
BUILD = "import sys, setuptools.build_meta as built; print(getattr(built, 'build_' + sys.argv[1])(sys.argv[2]))"
ROWS = "airport,time,temp\nJFK,2013-02-08T17:00Z,33.1\nLGA,2013-02-08T17:00Z,34.0\n"


def run(*command: str | Path, cwd: Path, **environment: str) -> str:
    """The output of a command; what it says on standard error is shown when it fails.

    Raises: `SystemExit`.
    """
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "MILLPOND_"))}
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=cwd, env=clean | environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(words)}\nended with {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def build(work: Path) -> tuple[Path, Path]:
    """The sdist and the wheel, in dist/."""
    copy = work / "copy"
    copy.mkdir()
    for name in CONTENTS:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns(*COMPILED))
        else:
            shutil.copy(ROOT / name, copy)
    shutil.rmtree(DIST, ignore_errors=True)
    DIST.mkdir()
    sdist = DIST / run(sys.executable, "-c", BUILD, "sdist", DIST, cwd=copy).splitlines()[-1]
    with tarfile.open(sdist) as archive:
        archive.extractall(work, filter="data")
    source = work / sdist.name.removesuffix(".tar.gz")
    wheel = DIST / run(sys.executable, "-c", BUILD, "wheel", DIST, cwd=source).splitlines()[-1]
    return sdist, wheel


def contents(archive: Path) -> Iterator[tuple[str, bytes]]:
    """The files of a built archive, by their names."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as packed:
            yield from ((name, packed.read(name)) for name in packed.namelist())
        return
    with tarfile.open(archive) as packed:
        for member in packed:
            file = packed.extractfile(member)
            if file is not None:
                yield member.name.partition("/")[2], file.read()


def check_contents(archive: Path, work: Path) -> int:
    """The number of files in an archive, none of which belongs elsewhere or names a folder of this machine.

    Raises: `SystemExit` naming the first one that does.
    """
    paths = [str(ROOT).encode(), str(work).encode()]
    count = 0
    for name, content in contents(archive):
        count += 1
        if name.split("/")[0] in FOREIGN or name.endswith((".pyc", ".nbi", ".nbc")):
            raise SystemExit(f"{archive.name} holds {name}, which does not belong there")
        if any(path in content for path in paths):
            raise SystemExit(f"{archive.name} holds a path of this machine in {name}")
    return count


def install(wheel: Path, folder: Path) -> Path:
    """A fresh environment with the wheel and the locked versions of what it needs; its folder of programs."""
    uv = shutil.which("uv", path=f"{os.environ['PATH']}:{ROOT / '.venv' / 'bin'}")
    python = folder / "bin" / "python"
    wanted = ("-q", "-c", ROOT / "requirements.lock", wheel)
    if uv:
        run(uv, "venv", "-q", "--python", sys.executable, folder, cwd=folder.parent)
        run(uv, "pip", "install", "--python", python, *wanted, cwd=folder.parent)
    else:
        run(sys.executable, "-m", "venv", folder, cwd=folder.parent)
        run(python, "-m", "pip", "install", *wanted, cwd=folder.parent)
    return python.parent


def try_out(programs: Path, work: Path) -> None:
    """Create a map, load two rows and get one, by the installed command.

    Raises: `SystemExit` when the package is another than the installed one, or the answer another than the row.
    """
    place = Path(run(programs / "python", "-c", "import millpond; print(millpond.__file__)", cwd=work).strip())
    if not place.is_relative_to(programs.parent):
        raise SystemExit(f"millpond was imported from {place}")
    (work / "weather.csv").write_text(ROWS)
    millpond = programs / "millpond"
    run(millpond, "create", "weather", "--kind", "temporal_state", "--value", "temp double", cwd=work)
    run(millpond, "load", "weather", "weather.csv", "--key", "airport", cwd=work)
    answer = json.loads(run(millpond, "get", "weather", "JFK", "--at", "2013-02-08T18:00Z", "--json", cwd=work))
    if "33.1" not in json.dumps(answer):
        raise SystemExit(f"the wheel answers {answer}")


def main() -> None:
    """Build, look, try."""
    with tempfile.TemporaryDirectory(prefix="dist-") as folder:
        work = Path(folder)
        print("building the sdist, and the wheel from it", flush=True)
        built = build(work)
        for archive in built:
            count = check_contents(archive, work)
            print(f"dist/{archive.name}: {count} files, {archive.stat().st_size / 1e6:.1f} MB", flush=True)
        print("installing the wheel into a fresh environment", flush=True)
        trial = work / "trial"
        trial.mkdir()
        programs = install(built[1], trial / "environment")
        print("creating, loading and reading a map there", flush=True)
        try_out(programs, trial)
    print("the wheel works; to install it:  pip install dist/*.whl")


if __name__ == "__main__":
    main()
